"""Tracing a record: exact, complete, and silent about what it does not know."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from govray.errors import Refused
from govray.governance.policy.record_commitment import RecordOpening
from govray.governance.verify.trace import closed, sightings, trace, trace_opening
from govray.governance.verify.verifier import VerifiedModel
from tests.support.world import World


@pytest.fixture(scope="module")
def verified(world: World, untouched: Path) -> VerifiedModel:
    return world.verify(untouched)


def recount(model: VerifiedModel, corpus: str, index: int) -> tuple[set[int], set[tuple[int, int]]]:
    """The oracle goes forward: every step, every row, every token of it."""
    steps, tokens = set(), set()
    for leaf in model.ledger.steps:
        for rows in model.attestation.plan.rows(leaf.step).values():
            for _, name, row in rows:
                for span in model.records.row_records(name, row):
                    if (name, span.record) == (corpus, index):
                        steps.add(leaf.step)
                        tokens |= {(row, t) for t in range(span.start, span.stop)}
    return steps, tokens


def test_every_record_is_found_where_it_was_read(tmp_path: Path) -> None:
    world = World(steps=4)
    verified = world.verify(world.deploy(tmp_path / "m"))
    seen: dict[str, int] = {"train": 0, "reserve": 0, "empty": 0, "unread": 0}
    for corpus in verified.manifest.document.corpora:
        for index, sha256 in enumerate(hashes(world, corpus.corpus)):
            record = verified.records.record(corpus.corpus, index)
            [sighting] = trace(verified, sha256, world.secrets)
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


def test_a_reserved_record_was_not_trained_on(verified: VerifiedModel, world: World) -> None:
    reserved = next(each for each in sightings(verified) if each.split == "reserve")
    record = hashes(world, reserved.corpus)[reserved.record]
    [sighting] = trace(verified, record, world.secrets)
    assert (list(sighting.rows), sighting.steps, sighting.tokens) == ([], (), 0)


def test_one_byte_makes_another_record(verified: VerifiedModel, world: World) -> None:
    assert trace(verified, world.records["alpha"][0][0][0], world.secrets)
    text = b"alpha/0/0"
    assert world.records["alpha"][0][0][0] == hashlib.sha256(text).hexdigest()
    assert trace(verified, hashlib.sha256(text + b"\n").hexdigest(), world.secrets) == []


def test_a_tombstone_was_not_read(tmp_path: Path) -> None:
    world = World()
    folder = world.deploy(tmp_path / "m", plan=lambda plan: plan.without("acme"))
    model = world.verify(folder)
    for sha256, _ in world.records["acme"][0]:
        [sighting] = trace(model, sha256, world.secrets)
        assert (sighting.steps, sighting.groups, sighting.tokens) == ((), (), 0)


def hashes(world: World, corpus: str) -> list[str]:
    return [sha256 for part in world.records[corpus] for sha256, _ in part]


@pytest.mark.parametrize("corpus", ["acme", "gamma"])
def test_records_are_found_with_the_secret_only(
    verified: VerifiedModel, world: World, corpus: str
) -> None:
    others = {name: secret for name, secret in world.secrets.items() if name != corpus}
    wrong = dict.fromkeys(world.secrets, bytes(32))
    for index, sha256 in enumerate(hashes(world, corpus)):
        for secrets in (None, {}, others, wrong):
            assert trace(verified, sha256, secrets) == []
        [seen] = trace(verified, sha256, world.secrets)
        assert (seen.corpus, seen.record) == (corpus, index)
        # Nor does the leaf, which anyone reads, pass for a record's hash.
        leaf = verified.records.record(corpus, index).entry
        assert trace(verified, leaf, world.secrets) == []
    assert closed(verified, {}) == ("acme", "alpha", "beta", "gamma")
    assert closed(verified, others) == (corpus,)


def test_an_opening_is_a_proof_against_the_credential_alone(
    verified: VerifiedModel, world: World
) -> None:
    stated = verified.credentials["gamma"].document.records
    records = [bytes.fromhex(each) for each in hashes(world, "gamma")]
    for index, record in enumerate(records):
        made = RecordOpening.make("gamma", world.secrets["gamma"], records, index, stated)
        [seen] = trace(verified, record.hex(), world.secrets)
        assert trace_opening(verified, made, where="opening") == seen
    for changes, says in (
        ({"corpus": "delta"}, "not trained on a corpus 'delta'"),
        ({"corpus": "acme"}, "another version"),
    ):
        with pytest.raises(Refused, match=says):
            trace_opening(verified, made.model_copy(update=changes), where="opening")
