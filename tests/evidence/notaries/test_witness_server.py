"""A witness as a real process: its statuses over HTTP, its memory over a kill, and who asks it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from govray.errors import Damaged, InfrastructureFailed, Malformed, Refused, UsageError
from govray.evidence.notaries import asking, witness_state
from govray.evidence.notaries.asking import ask_timestamp, ask_witness
from govray.evidence.notaries.witness_state import WitnessState
from govray.governance.attestation import model_folder
from govray.governance.formats import merkle
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import read_note, sign_checkpoint
from govray.governance.notary.add_checkpoint import MAX_REQUEST, AddCheckpoint, Declined
from govray.governance.notary.cosignature import cosignature_of
from govray.governance.record.ledger import Ledger, origin
from govray.governance.submission.http_exchange import HttpAnswer, post
from govray.governance.trust.witness_policy import LedgerWitness
from tests.support.command import write_key
from tests.support.distribution import require_openssl
from tests.support.process import witnessing
from tests.support.timestamp_server import Tsa
from tests.support.world import RUN, World

NAME = "witness.example/w1"
OWN = LocalSigner.generate()
WITNESS = LedgerWitness(name=NAME, key=OWN.public_key)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def model(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.deploy(tmp_path_factory.mktemp("world") / "model")


@pytest.fixture(scope="module")
def ledger(model: Path) -> Ledger:
    return Ledger.read(RUN, (model / model_folder.LEDGER).read_bytes())


@pytest.fixture(scope="module")
def place(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("witness")
    write_key(folder / "witness.pem", OWN)
    (folder / "operator.pub").write_bytes(world.keys.operator.public_key.to_pem())
    return folder


WORDS = ("--name", NAME, "--key", "witness.pem", "--log-key", "operator.pub")


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    with witnessing(place, *WORDS, "--state", "state") as (_, found):
        yield found


def now() -> datetime:
    return datetime.now(UTC)


def note(world: World, lines: list[bytes], run: str = RUN) -> bytes:
    return sign_checkpoint(origin(run), len(lines), merkle.root(lines), world.keys.operator)


def asked(world: World, old: int, lines: list[bytes], run: str, data: bytes | None = None) -> bytes:
    data = data or note(world, lines, run)
    path = (
        merkle.consistency_path(old, len(lines), lambda a, b: merkle.root(lines[a:b]))
        if 0 < old < len(lines)
        else ()
    )
    return AddCheckpoint(old, path, read_note(data), data).body()


def test_the_statuses_of_the_standard(world: World, address: str) -> None:
    """One ledger through its life, and what is declined on the way."""
    lines = [f"leaf {number}".encode() for number in range(7)]
    fork = [*lines[:2], b"other", *lines[3:]]
    run, url = "run-statuses", f"{address}/add-checkpoint"

    def told(body: bytes) -> tuple[int, str, bytes]:
        answer = post(url, body, kind="text/plain", where="witness")
        return answer.status, answer.kind, answer.body

    stranger = sign_checkpoint(origin(run), 3, merkle.root(lines[:3]), LocalSigner.generate())
    elsewhere = sign_checkpoint("example.com/log", 3, merkle.root(lines[:3]), world.keys.operator)
    assert told(b"nothing")[0] == 400
    assert told(asked(world, 0, lines[:3], run, elsewhere))[0] == 404
    assert told(asked(world, 0, lines[:3], run, stranger))[0] == 403
    assert told(asked(world, 3, lines[:3], run)) == (409, "text/x.tlog.size", b"0\n")
    status, kind, body = told(asked(world, 0, lines[:3], run))
    assert (status, kind) == (200, "text/plain")
    cosigned = read_note(note(world, lines[:3], run) + body)
    assert cosignature_of(cosigned, WITNESS) is not None
    assert told(asked(world, 0, lines[:5], run)) == (409, "text/x.tlog.size", b"3\n")
    assert told(asked(world, 3, fork[:3], run))[0] == 409
    assert told(asked(world, 3, fork, run))[0] == 422
    assert told(asked(world, 3, lines, run))[0] == 200
    assert told(asked(world, 3, lines[:5], run)) == (409, "text/x.tlog.size", b"7\n")
    assert told(asked(world, 8, lines, run))[0] == 400
    assert told(asked(world, 7, lines, run))[0] == 200  # again, with a newer time
    assert told(bytes(MAX_REQUEST + 1))[0] == 413


def test_a_runs_head_is_cosigned_from_wherever_the_witness_is(
    world: World, model: Path, ledger: Ledger, address: str
) -> None:
    lines = list(ledger.lines)
    early = asked(world, 0, lines[:4], RUN)
    assert post(f"{address}/add-checkpoint", early, kind="text/plain", where="w").status == 200
    checkpoint = (model / model_folder.CHECKPOINT).read_bytes()
    for _ in range(2):  # the second time the witness has this very head
        line, found = ask_witness(address, WITNESS, ledger, checkpoint, at=now())
        assert cosignature_of(read_note(checkpoint + line.encode()), WITNESS) == found


def test_another_key_than_the_roots_is_refused(model: Path, ledger: Ledger, address: str) -> None:
    other = LedgerWitness(name=NAME, key=LocalSigner.generate().public_key)
    checkpoint = (model / model_folder.CHECKPOINT).read_bytes()
    with pytest.raises(Refused, match="no cosignature by the key"):
        ask_witness(address, other, ledger, checkpoint, at=now())


def test_a_killed_witness_has_forgotten_nothing(world: World, place: Path) -> None:
    """And a second one cannot share its memory meanwhile."""
    lines = [f"leaf {number}".encode() for number in range(7)]
    words = (*WORDS, "--state", "killed")
    with witnessing(place, *words) as (process, address):
        body = asked(world, 0, lines[:5], "run-killed")
        url = f"{address}/add-checkpoint"
        assert post(url, body, kind="text/plain", where="w").status == 200
        with pytest.raises(UsageError, match="another witness uses this folder"):
            state(place / "killed", world)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    with witnessing(place, *words) as (_, address):
        url = f"{address}/add-checkpoint"
        answer = post(url, asked(world, 0, lines, "run-killed"), kind="text/plain", where="w")
        assert (answer.status, answer.body) == (409, b"5\n")


def state(folder: Path, world: World) -> WitnessState:
    keys, origins = [world.keys.operator.public_key], ["govray.dev/ledger/*"]
    return WitnessState(folder, NAME, OWN, keys=keys, origins=origins, clock=now)


def raced(world: World, folder: Path) -> list[Declined | str]:
    """What two histories get that come at once; both pass the check before either is written."""
    lines = [b"a", b"b", b"c"]
    bodies = [asked(world, 0, history, "run-race") for history in (lines, [*lines[:2], b"other"])]
    found: list[Declined | str] = []
    with state(folder, world) as witness:
        threads = [
            threading.Thread(target=lambda body=body: found.append(witness.add(body)))
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


@pytest.fixture
def slow_cosigning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cosigns waits for another, for a while."""
    meet, patience = threading.Barrier(2), getattr(request, "param", 0.5)
    plain = witness_state.cosign

    def slow(*words: object, **named: object) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(patience)
        return plain(*words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(witness_state, "cosign", slow)


@pytest.mark.usefixtures("slow_cosigning")
def test_of_two_histories_at_once_one_is_cosigned(world: World, tmp_path: Path) -> None:
    found = raced(world, tmp_path / "state")
    assert sorted(isinstance(each, Declined) for each in found) == [False, True]


@pytest.mark.parametrize("slow_cosigning", [60.0], indirect=True)
@pytest.mark.usefixtures("slow_cosigning")
def test_control_without_the_lock_both_are(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLock:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(witness_state, "Lock", NoLock)
    assert all(isinstance(each, str) for each in raced(world, tmp_path / "state"))


def test_a_damaged_memory_signs_nothing(world: World, tmp_path: Path) -> None:
    lines = [b"a", b"b"]
    with state(tmp_path / "state", world) as witness:
        assert isinstance(witness.add(asked(world, 0, lines, "run-damaged")), str)
        [file] = (tmp_path / "state").glob("*.checkpoint")
        file.write_bytes(file.read_bytes()[:-10])
        with pytest.raises(Damaged, match="memory"):
            witness.add(asked(world, 2, lines, "run-damaged"))


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Tsa:
    require_openssl()
    return Tsa.make(tmp_path_factory.mktemp("tsa") / "tsa")


def test_a_token_comes_back_and_verifies_at_once(tsa: Tsa, tmp_path: Path) -> None:
    with tsa.serving() as url:
        token, stamp = ask_timestamp(url, b"attestation", [tsa.named])
        assert (stamp.authority, token[:1]) == ("tsa", b"\x30")
        other = Tsa.make(tmp_path / "other")
        with pytest.raises(Refused, match="of no timestamp authority"):
            ask_timestamp(url, b"attestation", [other.named])


def test_what_is_no_authority_is_told(tsa: Tsa, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfrastructureFailed, match="does not answer"):
        ask_timestamp("http://127.0.0.1:9", b"x", [tsa.named])
    with pytest.raises(UsageError, match="no address"):
        ask_timestamp("file:///etc/passwd", b"x", [tsa.named])
    for answer, error in (
        (HttpAnswer(200, "text/html", b"<html>"), Refused),
        (HttpAnswer(302, "application/timestamp-reply", b""), Refused),
        (HttpAnswer(200, "application/timestamp-reply", b"nothing"), Malformed),
    ):
        monkeypatch.setattr(asking, "post", lambda *_, answer=answer, **__: answer)
        with pytest.raises(error):
            ask_timestamp("http://tsa.example", b"x", [tsa.named])
