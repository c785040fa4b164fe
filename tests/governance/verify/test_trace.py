"""Tracing a record: exact, complete, and silent about what it does not know."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from govray.errors import UsageError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.trust.pinned_root import pinned_trust_root
from govray.governance.verify.trace import Sighting, trace
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, World, write


@pytest.fixture(scope="module")
def verified(world: World, untouched: Path) -> VerifiedModel:
    return verify(untouched, trust_root=world.root, at=AT)


def recount(model: VerifiedModel, corpus: str, index: int) -> tuple[set[int], set[tuple[int, int]]]:
    """The oracle goes forward: every step, every row, every token of it."""
    steps, tokens = set(), set()
    for leaf in model.ledger.steps:
        for rows in model.attestation.plan.rows(leaf.step).values():
            for _, name, row in rows:
                for span in model.manifest.document.row_records(name, row):
                    if (name, span.record) == (corpus, index):
                        steps.add(leaf.step)
                        tokens |= {(row, t) for t in range(span.start, span.stop)}
    return steps, tokens


def test_every_record_is_found_where_it_was_read(verified: VerifiedModel) -> None:
    seen: dict[str, int] = {"train": 0, "reserve": 0, "empty": 0, "unread": 0}
    for corpus in verified.manifest.document.corpora:
        for index, record in enumerate(corpus.records):
            [sighting] = trace(verified, record.sha256)
            steps, tokens = recount(verified, corpus.corpus, index)
            assert (sighting.corpus, sighting.record) == (corpus.corpus, index)
            assert sighting.split == record.split
            assert sighting.steps == tuple(sorted(steps))
            assert sighting.tokens == len(tokens)
            route = verified.routes[corpus.corpus]
            assert set(sighting.groups) == (set(route.groups) if steps else set())
            seen[record.split] += 1
            seen["unread"] += record.split == "train" and not steps
    # The world has every kind, so each line above was exercised.
    assert all(seen.values()), seen


def test_a_reserved_record_was_not_trained_on(verified: VerifiedModel) -> None:
    record = next(
        r for c in verified.manifest.document.corpora for r in c.records if r.split == "reserve"
    )
    [sighting] = trace(verified, record.sha256)
    assert (list(sighting.rows), sighting.steps, sighting.tokens) == ([], (), 0)


def test_one_byte_makes_another_record(verified: VerifiedModel, world: World) -> None:
    assert trace(verified, world.records["alpha"][0][0][0])
    text = b"alpha/0/0"
    assert world.records["alpha"][0][0][0] == hashlib.sha256(text).hexdigest()
    assert trace(verified, hashlib.sha256(text + b"\n").hexdigest()) == []


def test_a_record_in_two_corpora_is_found_twice(tmp_path: Path) -> None:
    world = World()
    world.records["beta"][0][0] = world.records["alpha"][0][0]
    world.credentials["beta"] = world.issue("beta")
    model = verify(world.deploy(tmp_path / "m"), trust_root=world.root, at=AT)
    found = trace(model, "sha256:" + world.records["alpha"][0][0][0].upper())
    assert [(s.corpus, s.record) for s in found] == [("alpha", 0), ("beta", 0)]


def test_a_tombstone_was_not_read(tmp_path: Path) -> None:
    world = World()
    folder = world.deploy(tmp_path / "m", plan=lambda plan: plan.without("acme"))
    model = verify(folder, trust_root=world.root, at=AT)
    for sha256, _ in world.records["acme"][0]:
        [sighting] = trace(model, sha256)
        assert (sighting.steps, sighting.groups, sighting.tokens) == ((), (), 0)


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "0" * 63, "0" * 65])
def test_what_is_no_hash_is_an_error(verified: VerifiedModel, text: str) -> None:
    with pytest.raises(UsageError, match="SHA-256"):
        trace(verified, text)


def test_a_folder_is_verified_first(
    world: World, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write(pinned_trust_root(), world.root)
    [sighting] = trace(model, world.records["alpha"][0][0][0])
    assert isinstance(sighting, Sighting)
    (model / model_folder.CONFIG).write_bytes(b"{}")
    with pytest.raises(VerificationFailed, match="step 4"):
        trace(model, world.records["alpha"][0][0][0])
