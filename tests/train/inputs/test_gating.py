"""Credentials that end in flight: the decision, following lists, and a whole run on a cluster."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.steps.expiry import EndOfValidity, NoLongerValid
from govray.errors import RankFailed, Refused, Untrusted
from govray.governance.formats.document import format_time
from govray.governance.formats.keys import Signer
from govray.governance.policy.credential import verify_credential
from govray.governance.policy.depth_policy import verify_policy
from govray.governance.record.gates import Gate
from govray.governance.trust.revocation_list import (
    Revocation,
    RevocationList,
    Revocations,
)
from govray.governance.verify.verifier import verify
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.gating import Decisions, Gating, decisions, newly_left_out
from govray.train.inputs.revocation_feed import (
    RevocationFeed,
    RevocationSource,
    credential_name,
    read_lists,
)
from govray.train.inputs.verified_inputs import Inputs, load_inputs
from tests.support import loops
from tests.support.deployment import Deployment
from tests.support.world import AT, World

START = datetime(2026, 11, 1, tzinfo=UTC)
NAMES = {corpus: credential_name(corpus) for corpus in "abc"}
ZERO = "sha256:" + "0" * 64


def no_longer_valid(*names: str, reason: str = "expired") -> NoLongerValid:
    found = tuple(EndOfValidity(name, reason, START) for name in names)
    return NoLongerValid.of(found, step=4, time=START + timedelta(seconds=1))


def test_a_policy_that_ended_stops_even_if_it_gates() -> None:
    with pytest.raises(NoLongerValid, match="policy p expired"):
        newly_left_out(no_longer_valid(NAMES["a"], "policy p"), "gate", NAMES, ())


@given(st.sets(st.sampled_from("abc"), min_size=1), st.sets(st.sampled_from("abc")))
def test_a_gate_leaves_out_what_ended_or_stops_if_nothing_is_left(
    ended: set[str], before: set[str]
) -> None:
    error = no_longer_valid(*sorted(NAMES[corpus] for corpus in ended))
    if ended | before == set("abc"):
        with pytest.raises(NoLongerValid, match="no corpus is left"):
            newly_left_out(error, "gate", NAMES, before)
    else:
        assert newly_left_out(error, "gate", NAMES, before) == tuple(sorted(ended))


def test_gates_hold_from_their_step_on_and_are_kept() -> None:
    gating = Gating("gate", [*NAMES.values(), "policy p"], "abc", Decisions())
    [gate] = gating.gate(
        4, no_longer_valid(NAMES["b"], reason="revoked"), {NAMES["b"]: ZERO[:-1] + "1"}
    )
    assert (gate.step, gate.corpus, gate.reason) == (4, "b", "revoked")
    assert gate.revocations == ZERO[:-1] + "1"
    assert gating.left_out(3) == {}
    assert gating.left_out(4) == gating.left_out(9) == {"b": NAMES["b"]}
    assert gating.gates(4) == ()
    assert gating.gates(5) == (gate,)
    again = Gating("gate", NAMES.values(), "abc", Decisions(5, (gate,)))
    assert again.left_out(7) == {"b": NAMES["b"]}


def test_of_two_gates_of_a_corpus_the_first_holds() -> None:
    def gate(step: int) -> Gate:
        at = "2026-11-01T00:00:00Z"
        return Gate(step=step, corpus="a", reason="expired", since=at, time=at)

    joined = Decisions(3, (gate(5),)).joined(Decisions(7, (gate(2),)))
    assert joined == Decisions(7, (gate(2),))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def a_list(
    signer: Signer,
    issuer: str,
    sequence: int,
    *corpora: str,
    since: str,
    issued: str = "2026-11-19T00:00:00Z",
) -> bytes:
    entries = tuple(Revocation(corpus=c, since=since, reason="ended") for c in corpora)
    document = RevocationList(issuer=issuer, sequence=sequence, issued=issued, entries=entries)
    return document.seal([signer])


@pytest.fixture
def feed(world: World, tmp_path: Path) -> RevocationFeed:
    path = tmp_path / "revoked.dsse.json"
    path.write_bytes(acme(world, 1))
    source = RevocationSource(
        paths=(str(path),),
        root=world.root,
        delegations=tuple(world.delegations),
        policy=verify_policy(world.trust, world.policy, at=AT),
        credentials={
            c: verify_credential(world.trust, data, at=AT) for c, data in world.credentials.items()
        },
        accepted=Revocations.load(world.trust, read_lists([path]), at=AT),
    )
    return RevocationFeed(source, tmp_path, at=AT)


def acme(world: World, sequence: int, *corpora: str) -> bytes:
    return a_list(world.keys.acme, "acme-legal", sequence, *corpora, since="2026-11-18T00:00:00Z")


def _missing(world: World, path: Path) -> None:
    path.unlink()


def _back(world: World, path: Path) -> None:
    path.write_bytes(a_list(world.keys.acme, "acme-legal", 1, "acme", since="2026-11-18T00:00:00Z"))


def _cut(world: World, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "kind"), [(_missing, RankFailed), (_back, Untrusted), (_cut, Refused)]
)
def test_a_list_that_stays_bad_stops_the_run(
    world: World, feed: RevocationFeed, tmp_path: Path, damage: object, kind: type[Exception]
) -> None:
    path = tmp_path / "revoked.dsse.json"
    good = path.read_bytes()
    feed.look(at=AT, elapsed_s=0)
    assert callable(damage)
    damage(world, path)
    for elapsed in (2, 61):
        feed.look(at=AT, elapsed_s=elapsed)
        assert feed.trouble is None
    path.write_bytes(good)  # half a minute is forgiven
    feed.look(at=AT, elapsed_s=61.5)
    damage(world, path)
    feed.look(at=AT, elapsed_s=62)
    assert feed.trouble is None
    feed.look(at=AT, elapsed_s=122)
    assert isinstance(feed.trouble, kind)


def test_a_later_attempt_refuses_a_list_from_before_the_newest_that_was_accepted(
    world: World, feed: RevocationFeed, tmp_path: Path
) -> None:
    path = tmp_path / "revoked.dsse.json"
    path.write_bytes(acme(world, 2, "acme"))
    feed.look(at=AT, elapsed_s=0)
    path.write_bytes(acme(world, 1))
    later = RevocationFeed(feed._source, tmp_path, at=AT)
    assert set(later.since()) == {"credential acme"}
    later.look(at=AT, elapsed_s=0)
    later.look(at=AT, elapsed_s=60)
    assert "a sequence never goes back" in str(later.trouble)
    # The control: a run that accepted no newer one.
    (tmp_path / "other").mkdir()
    other = RevocationFeed(feed._source, tmp_path / "other", at=AT)
    other.look(at=AT, elapsed_s=0)
    other.look(at=AT, elapsed_s=60)
    assert other.trouble is None
    assert other.since() == {}


def test_kept_lists_that_were_changed_stop_the_run(
    world: World, feed: RevocationFeed, tmp_path: Path
) -> None:
    feed.look(at=AT, elapsed_s=0)
    [kept] = (tmp_path / "revocations").iterdir()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert RevocationFeed(feed._source, tmp_path, at=AT).trouble is not None


def test_a_run_does_not_begin_with_what_is_revoked(tmp_path: Path) -> None:
    here = Deployment(tmp_path / "here")
    path = tmp_path / "revoked.dsse.json"

    def load(*corpora: str, since: datetime) -> Inputs:
        path.write_bytes(
            a_list(here.signers["issuer"], "issuer", 1, *corpora, since=format_time(since))
        )
        at = max(here.at, datetime(2026, 11, 19, tzinfo=UTC))
        return load_inputs(here.corpora, here.policy, here.root, [], [path], at=at)

    inputs = load("acme", since=here.at + timedelta(days=1))
    # It travels to rank 0 by pickle.
    source = pickle.loads(pickle.dumps(inputs.revocation_source(["acme"])))
    assert set(RevocationFeed(source, tmp_path, at=here.at).since()) == {"credential acme"}
    with pytest.raises(Untrusted, match="credential acme: revoked since"):
        load("acme", since=here.at)


def test_a_run_goes_on_with_the_lists_of_today(tmp_path: Path) -> None:
    """They were issued after it began, and revoke from before it began; its steps find out."""
    here, run, path = Deployment(tmp_path / "here"), tmp_path / "run", tmp_path / "list.json"
    run.mkdir()
    began = datetime.now(UTC) - timedelta(hours=1)

    def load(sequence: int, resumed: Path | None) -> Inputs:
        since = format_time(began - timedelta(seconds=60))
        issued = format_time(datetime.now(UTC).replace(microsecond=0))
        data = a_list(
            here.signers["issuer"], "issuer", sequence, "acme", since=since, issued=issued
        )
        path.write_bytes(data)
        return load_inputs(
            here.corpora, here.policy, here.root, [], [path], at=began, resumed=resumed
        )

    inputs = load(2, run)
    source = inputs.revocation_source(["acme"])
    assert source is not None
    feed = RevocationFeed(source, run, at=datetime.now(UTC))
    feed.look(at=datetime.now(UTC), elapsed_s=0)
    assert set(feed.since()) == {"credential acme"}
    with pytest.raises(Untrusted, match="a sequence never goes back"):
        load(1, run)
    with pytest.raises(Untrusted, match="issued at"):
        load(3, None)


def test_nothing_holds_longer_than_who_signed_it(tmp_path: Path) -> None:
    here = Deployment(tmp_path / "here", lifetime=timedelta(days=300))
    inputs = load_inputs(here.corpora, here.policy, here.root, [], at=here.at)
    # Policy and credential would hold for longer than the authorities, 30 days.
    assert set(inputs.expiries(["acme"]).values()) == {here.at + timedelta(days=30)}


@pytest.mark.story
def test_a_run_goes_on_without_what_ends_and_a_restart_repeats_it(
    cluster: None, tmp_path: Path
) -> None:
    """One credential expires, another is revoked, then a worker fails and five steps repeat."""
    text = Deployment(tmp_path / "plain").policy_text.replace("on_expiry: stop", "on_expiry: gate")
    here = Deployment(tmp_path / "here", policy_text=text)
    shutil.rmtree(here.corpora / "open-one")
    here.add("open-one", until=here.at - timedelta(minutes=1))
    signer, past = here.signers["issuer"], format_time(here.at)
    current, newer = tmp_path / "revoked.dsse.json", tmp_path / "newer.dsse.json"
    current.write_bytes(a_list(signer, "issuer", 1, since=past))
    governance = {
        "policy": str(here.policy),
        "trust_root": str(here.root),
        "revocations": [str(current)],
        "max_quarantined": 0.5,
    }
    experiment = parse_experiment(
        here.experiment(governance=governance, max_restarts=1), where="test"
    )
    newer.write_bytes(a_list(signer, "issuer", 2, "weak-one", since=past))
    trainer = GovernedTrainer(experiment, train_loop_per_worker=loops.ends_in_flight)
    trainer = replace(
        trainer,
        train_loop_config={
            **trainer.loop_config,
            "lists": (str(newer), str(current)),
            "flag": str(tmp_path / "failed"),
        },
    )
    with loops.clock_behind(3600, worker=False) as set_right:

        def follows(step: int, metrics: object) -> None:
            if step > 3:
                set_right()

        run = Path(replace(trainer, on_step=follows).fit().path)
    assert (tmp_path / "failed").exists()
    model = verify(run / "model", trust_root=here.root, revocations=[current])
    assert [(gate.corpus, gate.step, gate.reason) for gate in model.gates] == [
        ("open-one", 4, "expired"),
        ("weak-one", 7, "revoked"),
    ]
    assert decisions(run) == Decisions(12, model.gates)
    used = {leaf.step: set(leaf.corpora) for leaf in model.ledger.steps}
    assert len(used) == 12
    assert {step for step, corpora in used.items() if "weak-one" in corpora} == set(range(7))
    assert all("open-one" not in used[step] for step in range(4, 12))
    assert any("open-one" in used[step] for step in range(4))
    assert all("open-two" in used[step] for step in range(12))
    assert set(model.revoked) == {"weak-one"}
