"""Where two runs first differ: the ledger leaf, and the tensor of a checkpoint.

A leaf says what a step read and updated, and holds no weights. So leaves show at which step the
*use of data* first differs. Where weights differ shows only at the checkpoints that both runs kept.
Weights, adapters and optimizer state are compared. States of random generators are not: their
effect shows in the weights. Neither is a commit's own metadata (run, environment), which names the
run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from govray.governance.attestation import model_folder
from govray.governance.record.entropy_profile import EntropyProfile
from govray.governance.record.ledger import AnyLeaf, Leaf
from govray.train.checkpoint import commit_folder, whole_file
from govray.train.checkpoint.stored_tensors import tensors_of

OPTIMIZER = ("optimizer.safetensors", "optimizer.json")


@dataclass(frozen=True)
class LeafDifference:
    """The first leaf that differs: its step and the fields, or that one run lacks it."""

    step: int
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"step {self.step}: {', '.join(self.fields)}"


@dataclass(frozen=True)
class TensorDifference:
    """The first tensor that differs, in the first checkpoint that differs.

    Attributes:
        step: The checkpoint's; it holds the state before this step.
        after: The newest earlier step at which both states were equal, or the replay's first. The
            difference arose in steps ``after … step-1``.
        file: The checkpoint's file.
        tensor: Its tensor; None if only the file's encoding differs.
        max_abs: Largest absolute difference of two elements. None if shapes or dtypes differ, or
            one run has no such tensor.
    """

    step: int
    after: int
    file: str
    tensor: str | None
    max_abs: float | None

    def __str__(self) -> str:
        what = f"{self.file}: {self.tensor or 'header'}"
        size = "" if self.max_abs is None else f", by at most {self.max_abs:.3g}"
        return f"checkpoint of step {self.step}: {what}{size}"


def first_leaf(
    original: Iterable[AnyLeaf],
    replayed: Iterable[AnyLeaf],
    start: int,
    stop: int,
    *,
    without: str | None = None,
    plan: str | None = None,
) -> LeafDifference | None:
    """The first leaf of steps ``start … stop-1`` that differs, or None.

    Args:
        original, replayed: The leaves of both, of all kinds.
        without: A corpus that the replay left out. Its uses are not expected. Gradient norms, then
            sums over other pieces, are not compared.
        plan: Digest of the replay's plan, where it differs.
    """
    ones, others = (
        {key: value for key, value in _leaves(leaves) if start <= key[0] < stop}
        for leaves in (original, replayed)
    )
    for key in sorted(ones.keys() | others.keys()):
        step, kind = key
        if kind and without:
            continue
        one, other = ones.get(key), others.get(key)
        if one is None or other is None:
            return LeafDifference(step, (f"{kind or 'leaf'} absent",))
        if not kind:
            one = _expected(one, without, plan)
        fields = tuple(k for k in sorted(one.keys() | other.keys()) if one.get(k) != other.get(k))
        if fields:
            return LeafDifference(step, fields)
    return None


def first_tensor(
    original: Mapping[int, commit_folder.CommitFolder],
    replayed: Mapping[int, commit_folder.CommitFolder],
    start: int,
    names: Collection[str],
) -> TensorDifference | None:
    """The first tensor that differs in the commits that both have, or None.

    Args:
        start: Where the replay began, from an equal state.
        names: The files to compare, in order; see `compared_files`.
    """
    after = start
    for step in sorted(original.keys() & replayed.keys()):
        for name in names:
            found = _first_in(original[step], replayed[step], name)
            if found is not None:
                return TensorDifference(step, after, name, *found)
        after = step
    return None


def compared_files(
    one: commit_folder.CommitFolder, other: commit_folder.CommitFolder, *, shared_only: bool = False
) -> list[str]:
    """Weights, then adapters, then optimizer state.
    ``shared_only``: weights and the adapters that both have, and no optimizer state."""
    weights, others = _weights(one.names), _weights(other.names)
    if shared_only:
        return _ordered(weights & others)
    return [*_ordered(weights | others), *OPTIMIZER]


def _weights(names: Collection[str]) -> set[str]:
    return {
        n
        for n in names
        if n in (model_folder.WEIGHTS, model_folder.EMA) or n.endswith(model_folder.ADAPTER_WEIGHTS)
    }


def _ordered(names: Collection[str]) -> list[str]:
    return sorted(names, key=lambda name: (name != model_folder.WEIGHTS, name))


def _first_in(
    one: commit_folder.CommitFolder, other: commit_folder.CommitFolder, name: str
) -> tuple[str | None, float | None] | None:
    """The first tensor of a file that differs, and by how much."""
    if whole_file.content(one, name) == whole_file.content(other, name):
        return None
    if name not in one.names or name not in other.names or not name.endswith(".safetensors"):
        return None, None
    before, after = tensors_of(one, name), tensors_of(other, name)
    for tensor in sorted(before.keys() | after.keys()):
        first, second = before.get(tensor), after.get(tensor)
        if first is None or second is None:
            return tensor, None
        if first.shape != second.shape or first.dtype != second.dtype:
            return tensor, None
        if not torch.equal(_bytes(first), _bytes(second)):
            return tensor, _max_abs(first, second)
    return None, None


def _bytes(tensor: Tensor) -> Tensor:
    """As uint8: unlike numbers, bytes tell NaN from NaN and -0 from 0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _max_abs(one: Tensor, other: Tensor) -> float | None:
    """None if canonical JSON cannot hold it: NaN, infinite, or too large."""
    largest = float((one.double() - other.double()).abs().max())
    return largest if largest < 1 << 53 else None


def _leaves(leaves: Iterable[AnyLeaf]) -> Iterator[tuple[tuple[int, str], dict[str, Any]]]:
    """(Step, kind) and content of every leaf; a later branch replaces an earlier one.

    Entropy profiles are left out, for a replay takes past decisions from the record. So are branch
    numbers, for a replay has one branch.
    """
    for leaf in leaves:
        if isinstance(leaf, EntropyProfile):
            continue
        kind = "" if isinstance(leaf, Leaf) else "gradientNorms"
        yield (leaf.step, kind), leaf.to_json() | {"branch": 0}


def _expected(leaf: dict[str, Any], without: str | None, plan: str | None) -> dict[str, Any]:
    """A leaf of the original as it would be without a corpus."""
    corpora = {name: use for name, use in leaf["corpora"].items() if name != without}
    return leaf | {"corpora": corpora} | ({"plan": plan} if plan else {})
