"""Loss targets of conversations: bound by the manifest, compared as far as a check reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from govray.errors import VerificationFailed
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.record.ledger import CorpusUse, Leaf
from govray.governance.record.prepare_manifest import Manifest, RowTargets
from govray.governance.verify import ledger_step
from govray.governance.verify.verifier import verify
from tests.support.chat_world import ChatWorld
from tests.support.world import AT


@pytest.fixture(scope="module")
def chat() -> ChatWorld:
    return ChatWorld()


def with_use(place: int, change: Callable[[CorpusUse], Any]) -> Callable[[list[Leaf]], list[Leaf]]:
    """A hook that changes what one step used of corpus alpha."""

    def hook(leaves: list[Leaf]) -> list[Leaf]:
        leaf = leaves[place]
        use = leaf.corpora["alpha"]
        corpora = {**leaf.corpora, "alpha": CorpusUse(rows=use.rows, targets=change(use))}
        return [*leaves[:place], leaf.model_copy(update={"corpora": corpora}), *leaves[place + 1 :]]

    return hook


def test_a_model_verifies_and_says_how_targets_were_checked(
    chat: ChatWorld, tmp_path: Path
) -> None:
    folder = chat.model(tmp_path)
    full = verify(folder, trust_root=chat.root, at=AT, records=chat.files.read)
    assert (full.depth, full.targets_bounded) == ("full", False)
    summary = verify(folder, trust_root=chat.root, at=AT)
    assert (summary.depth, summary.targets_bounded) == ("summary", True)
    sample = verify(folder, trust_root=chat.root, at=AT, records=chat.files.read, sample=0.3)
    assert (sample.depth, sample.targets_bounded) == ("sample", True)
    assert any(use.targets == 0 for leaf in full.ledger.steps for use in leaf.corpora.values())


def moved(leaves: list[Leaf]) -> list[Leaf]:
    """A target of corpus alpha more in one step, and one less in the next."""
    raised = with_use(1, lambda use: use.targets + 1)(leaves)
    return with_use(2, lambda use: use.targets - 1)(raised)


def test_a_target_in_another_step_is_found_with_the_records(
    chat: ChatWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = chat.model(tmp_path, moved)
    told = r"step 10 \(ledger\): rows and targets of corpus alpha"
    with pytest.raises(VerificationFailed, match=told):
        verify(folder, trust_root=chat.root, at=AT, records=chat.files.read)
    # A summary cannot know, which is why it says so.
    assert verify(folder, trust_root=chat.root, at=AT).targets_bounded
    # The counts beside the records are what finds it.
    monkeypatch.setattr(ledger_step, "_check_counts", lambda *_: None)
    verify(folder, trust_root=chat.root, at=AT, records=chat.files.read)


def test_more_targets_than_rows_have_tokens_are_found_without_records(
    chat: ChatWorld, tmp_path: Path
) -> None:
    folder = chat.model(tmp_path, with_use(1, lambda use: use.rows * chat.context + 1))
    with pytest.raises(VerificationFailed, match="rows and targets of corpus alpha"):
        verify(folder, trust_root=chat.root, at=AT)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_sum_that_whole_epochs_do_not_have_is_found_without_records(
    chat: ChatWorld, tmp_path: Path, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = chat.model(tmp_path, with_use(1, lambda use: use.targets + change))
    with pytest.raises(VerificationFailed, match=r"have \d+ to \d+ in the epochs that it read"):
        verify(folder, trust_root=chat.root, at=AT)
    monkeypatch.setattr(ledger_step, "_check_totals", lambda *_: None)
    verify(folder, trust_root=chat.root, at=AT)


def changed(columns: RecordColumns) -> RecordColumns:
    assert columns.row_targets is not None
    other = columns.row_targets.copy()
    other[0], other[1] = other[1] + 1, other[0]
    return replace(columns, row_targets=other)


@pytest.mark.parametrize(
    "spoil", [changed, lambda columns: replace(columns, row_targets=None)], ids=["other", "none"]
)
def test_counts_that_the_manifest_does_not_bind_are_refused(
    chat: ChatWorld, tmp_path: Path, spoil: Callable[[RecordColumns], RecordColumns]
) -> None:
    folder = chat.model(tmp_path)
    with pytest.raises(VerificationFailed, match="loss targets of its rows are not those"):
        verify(
            folder, trust_root=chat.root, at=AT,
            records=lambda corpus, number: spoil(chat.files.read(corpus, number)),
        )  # fmt: skip


def test_a_row_with_more_targets_than_tokens_is_refused_in_full(tmp_path: Path) -> None:
    world = ChatWorld()

    def moved_into_one(manifest: Manifest) -> Manifest:
        """The totals stay: one row has more, others less."""
        alpha = max(manifest.corpora, key=lambda each: each.parts[0].rows)
        digest = alpha.parts[0].records_digest
        columns = world.files[digest]
        assert columns.row_targets is not None
        found = np.zeros_like(columns.row_targets)
        found[0] = columns.row_targets.sum()
        world.files[digest] = replace(columns, row_targets=found)
        parts = (
            alpha.parts[0].model_copy(update={"targets": RowTargets.of(found)}),
            *alpha.parts[1:],
        )
        corpora = [
            c.model_copy(update={"parts": parts}) if c is alpha else c for c in manifest.corpora
        ]
        fields = {name: getattr(manifest, name) for name in Manifest.model_fields}
        world.manifest = Manifest(**fields | {"corpora": tuple(corpora)})
        return world.manifest

    folder = world.model(tmp_path, manifest=moved_into_one)
    with pytest.raises(VerificationFailed, match="a row with more loss targets than tokens"):
        verify(folder, trust_root=world.root, at=AT, records=world.files.read)
