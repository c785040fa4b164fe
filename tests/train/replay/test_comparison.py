"""The first leaf and the first tensor that differ, by name and size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from govray.governance.attestation import model_folder
from govray.governance.record.ledger import AnyLeaf, CorpusUse
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import contents
from govray.train.replay.comparison import (
    LeafDifference,
    TensorDifference,
    compared_files,
    first_leaf,
    first_tensor,
)
from tests.support.leaves import DIGEST, leaf, norms

OTHER = "sha256:" + "cd" * 32
ADAPTER = model_folder.adapter_files("a")[1]

Tensors = dict[str, Tensor]


@pytest.mark.parametrize(
    ("other", "step", "fields"),
    [
        ([leaf(0), norms(0), leaf(1, world=3), leaf(2, rows=1)], 1, ("worldSize",)),
        ([leaf(0), norms(0), leaf(1), leaf(2, rows=1)], 2, ("corpora",)),
        ([leaf(0), norms(0, square=0.25), leaf(1), leaf(2)], 0, ("squaredNorms",)),
        ([leaf(0), leaf(1), leaf(2)], 0, ("gradientNorms absent",)),
        ([leaf(0), norms(0), leaf(1)], 2, ("leaf absent",)),
    ],
)
def test_the_first_leaf_that_differs_is_named(
    other: list[AnyLeaf], step: int, fields: tuple[str, ...]
) -> None:
    ledger = [leaf(0), norms(0), leaf(1), leaf(2)]
    assert first_leaf(ledger, other, 0, 3) == LeafDifference(step, fields)
    assert first_leaf(ledger, other, 3, 4) is None  # other steps are not looked at


def test_leaves_without_a_corpus_lack_its_uses_and_nothing_else() -> None:
    both = {"a": CorpusUse(rows=3, targets=24), "b": CorpusUse(rows=1, targets=8)}
    ledger = [leaf(0).model_copy(update={"corpora": both}), norms(0)]
    without_b = leaf(0).model_copy(update={"plan": OTHER})
    assert first_leaf(ledger, [without_b], 0, 1, without="b", plan=OTHER) is None
    assert first_leaf(ledger, [without_b], 0, 1, without="a", plan=OTHER) == LeafDifference(
        0, ("corpora",)
    )
    assert first_leaf(ledger, [without_b], 0, 1, without="b", plan=DIGEST) == LeafDifference(
        0, ("plan",)
    )


def committed(folder: Path, **files: Tensors | bytes) -> commit_folder.CommitFolder:
    names = {
        "weights": model_folder.WEIGHTS,
        "adapter": ADAPTER,
        "moments": "optimizer.safetensors",
    }
    content = {names[name]: value for name, value in files.items()}
    commit_folder.commit(folder, contents({"optimizer.json": b"{}"} | content))
    return commit_folder.load(folder)


def test_the_first_tensor_that_differs_is_named_with_its_size(tmp_path: Path) -> None:
    base = {"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.bfloat16)}
    moved = base | {"b": torch.tensor([1.0, 1.5], dtype=torch.bfloat16)}
    ours = {
        2: committed(tmp_path / "o2", weights=base),
        4: committed(tmp_path / "o4", weights=moved),
        6: committed(tmp_path / "o6", weights=moved),
    }
    theirs = {step: committed(tmp_path / f"t{step}", weights=base) for step in (2, 4, 6, 8)}
    names = compared_files(ours[2], theirs[2])
    found = first_tensor(theirs, ours, 0, names)
    assert found == TensorDifference(4, 2, model_folder.WEIGHTS, "b", 0.5)
    assert str(found) == "checkpoint of step 4: model.safetensors: b, by at most 0.5"
    assert first_tensor(theirs, {2: ours[2]}, 0, names) is None
