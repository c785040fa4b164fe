"""How deep a verification goes: with the records, with some of them, or on the signer's word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, UsageError, VerificationFailed
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.verify.trace import sightings, trace
from govray.governance.verify.verifier import verify
from tests.support.world import AT, World


def test_the_model_folder_alone_is_a_summary(world: World, untouched: Path) -> None:
    model = verify(untouched, trust_root=world.root, at=AT)
    assert (model.depth, model.checked.parts) == ("summary", (0, 5))
    with pytest.raises(CouldNotCheck, match="--records"):
        trace(model, "00" * 32)
    with pytest.raises(CouldNotCheck, match="records are not here"):
        list(sightings(model))


def test_with_its_records_it_is_full(world: World, untouched: Path) -> None:
    model = verify(untouched, trust_root=world.root, at=AT, records=world.files.read)
    assert (model.depth, model.checked.parts) == ("full", (5, 5))
    assert model.checked.detection == 1
    found = list(sightings(model))
    assert len(found) == sum(model.records.count(c) for c in world.records)
    assert {each.split for each in found} == {"train", "reserve", "empty"}
    [seen] = trace(model, world.records["alpha"][0][0][0], world.secrets)
    assert (seen.corpus, seen.record) == ("alpha", 0)


def test_a_sample_reads_parts_that_the_attestation_draws(world: World, untouched: Path) -> None:
    read: list[tuple[str, int]] = []

    def counted(corpus, number):  # type: ignore[no-untyped-def]
        read.append((corpus.corpus, number))
        return world.files.read(corpus, number)

    one = verify(untouched, trust_root=world.root, at=AT, records=counted, sample=1e-4)
    assert (one.depth, one.checked.parts, one.checked.detection) == ("sample", (1, 5), 0.2)
    first, read = read, []
    verify(untouched, trust_root=world.root, at=AT, records=counted, sample=1e-4)
    assert first == read
    assert len(set(read)) == 1
    most = verify(untouched, trust_root=world.root, at=AT, records=counted, sample=0.7)
    assert most.checked.parts == (4, 5)
    assert (
        verify(untouched, trust_root=world.root, at=AT, records=counted, sample=1).depth == "full"
    )


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_sample_is_a_share_of_records_that_are_given(
    world: World, untouched: Path, share: float
) -> None:
    with pytest.raises(UsageError, match="--records"):
        verify(untouched, trust_root=world.root, at=AT, records=world.files.read, sample=share)
    with pytest.raises(UsageError, match="--records"):
        verify(untouched, trust_root=world.root, at=AT, sample=0.5)


def spoil(columns: RecordColumns) -> RecordColumns:
    entries = columns.entries.copy()
    entries[-1, -1] ^= 1
    return RecordColumns(entries, columns.tokens, columns.splits)


@pytest.mark.parametrize("place", [("acme", 0), ("alpha", 0), ("alpha", 1), ("gamma", 0)])
def test_a_record_that_was_changed_fails_step_7(
    world: World, untouched: Path, place: tuple[str, int]
) -> None:
    def changed(corpus, number):  # type: ignore[no-untyped-def]
        columns = world.files.read(corpus, number)
        return spoil(columns) if (corpus.corpus, number) == place else columns

    with pytest.raises(VerificationFailed, match=r"step 7 \(manifest\): the records are not those"):
        verify(untouched, trust_root=world.root, at=AT, records=changed)
    # A summary reads none of it, which is why it says so.
    assert verify(untouched, trust_root=world.root, at=AT).depth == "summary"


def with_false(change: Callable[[dict], None]) -> Callable[[Manifest], Manifest]:  # type: ignore[type-arg]
    def hook(manifest: Manifest) -> Manifest:
        value = manifest.to_json()
        change(value["corpora"][1]["parts"][0])
        return Manifest.from_json(value)

    return hook


def more_tokens(part: dict) -> None:  # type: ignore[type-arg]
    part["tokens"] += 8
    part["rows"] += 1


def other_splits(part: dict) -> None:  # type: ignore[type-arg]
    part["splits"]["train"] -= 1
    part["splits"]["empty"] += 1


@pytest.mark.parametrize(
    ("change", "says"),
    [(more_tokens, "tokens, its records make"), (other_splits, "its records are")],
)
def test_an_insiders_counts_pass_a_summary_and_fail_with_the_records(
    tmp_path: Path,
    change: Callable[[dict], None],
    says: str,  # type: ignore[type-arg]
) -> None:
    world = World(steps=2)
    folder = world.deploy(tmp_path / "m", manifest=with_false(change))
    assert verify(folder, trust_root=world.root, at=AT).depth == "summary"
    with pytest.raises(VerificationFailed, match=f"step 7 .*{says}"):
        verify(folder, trust_root=world.root, at=AT, records=world.files.read)


@pytest.mark.parametrize(("corpus", "more", "seen"), [("beta", 1000, True), ("alpha", -1, False)])
def test_coverage_beyond_what_rows_hold_fails_a_summary_and_one_too_few_with_the_records(
    tmp_path: Path, corpus: str, more: int, seen: bool
) -> None:
    world = World(steps=2)

    def changed(document: Attestation) -> Attestation:
        entries = tuple(
            each.model_copy(update={"records": each.records + more * (each.corpus == corpus)})
            for each in document.coverage
        )
        return document.model_copy(update={"coverage": entries})

    folder = world.deploy(tmp_path / "m", attestation=changed)
    if seen:
        with pytest.raises(VerificationFailed, match=r"step 11 .*rows that were read hold"):
            verify(folder, trust_root=world.root, at=AT)
        return
    assert verify(folder, trust_root=world.root, at=AT).depth == "summary"
    with pytest.raises(VerificationFailed, match="step 11"):
        verify(folder, trust_root=world.root, at=AT, records=world.files.read)
