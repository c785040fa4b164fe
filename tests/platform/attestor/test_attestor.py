"""A run of a real deployment, attested by its register: once, and under no other facts."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.train import RunConfig

import govray
from govray import cli
from govray.errors import InfrastructureFailed, Refused, Stopped, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.submission.register_forms import AcceptanceForm
from govray.governance.trust.trust_state import TrustState
from govray.platform.attestor import attestor as module
from govray.platform.attestor import staging
from govray.platform.attestor.attestor import MOST_TRIES, Attestor, check_keys
from govray.platform.attestor.confinement import ParserLimits
from govray.platform.attestor.parser import confined
from govray.platform.attestor.register import Register
from govray.platform.attestor.settings import read_settings
from govray.train.checkpoint.storage import latest
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import stop_request
from govray.train.run_folder.clock import instant
from govray.train.run_folder.run_names import trial_name
from tests.support.attesting import SECRET, SUBMISSION, Room, ended, first_attempt, forms
from tests.support.committee import CommitteeDeployment
from tests.support.deployment import Deployment
from tests.support.fork import KILLED, die, in_fork
from tests.support.solo import run_here
from tests.support.tree import ROOT


def test_the_shipped_file_is_read() -> None:
    settings = read_settings(ROOT / "deploy" / "attestor.yaml")

    assert (settings.host, settings.port) == ("127.0.0.1", 8686)
    assert settings.models != settings.runs


def test_a_slip_in_the_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "attestor.yaml"
    file.write_text((ROOT / "deploy" / "attestor.yaml").read_text().replace("models:", "model:"))

    with pytest.raises(UsageError, match=r"attestor\.yaml"):
        read_settings(file)


def test_paths_are_from_the_file_s_folder_and_prepared_data_lie_on_a_disk(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "attestor.yaml").read_text()
    file = tmp_path / "attestor.yaml"
    file.write_text(text.replace("/shared/", "").replace("/etc/govray/operator/", ""))
    found = read_settings(file)
    assert (found.storage, found.keys) == (
        str(tmp_path / "runs"),
        (str(tmp_path / "operator.pem"),),
    )
    assert found.secrets == (tmp_path / "attestor-token", tmp_path / "operator.pem")

    for key in ("pkcs11:token=one", "command:sign", "env:KEY"):
        file.write_text(text.replace("/etc/govray/operator/operator.pem", f"'{key}'"))
        assert read_settings(file).keys == (key,)

    file.write_text(text.replace("/shared/runs/prepared", "s3://runs/prepared"))
    with pytest.raises(UsageError, match="'prepared': give a path, not a URL: copy or mount"):
        read_settings(file)


def test_a_secret_that_the_parser_may_read_stops_the_attestor(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "attestor.yaml"
    given = room.attestor.settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    token = Path(given["prepared"]) / "token"
    file.write_text(yaml.safe_dump(given | {"token_file": str(token)}))

    assert cli.main(["attest", "--watch", str(file), "--once"]) == 1
    assert f"may read all below {given['prepared']}" in " ".join(capsys.readouterr().err.split())


def test_a_finished_run_is_attested_once_by_the_register(room: Room) -> None:
    room = room.with_parser(confined(ParserLimits(memory=2 << 30, seconds=120)))

    [done] = room.attestor.once()

    assert done.state == "ATTESTED", done.why
    verified = govray.verify(room.model, trust_root=room.deployment.root)
    stated = verified.attestation.execution
    assert verified.digest == done.digest
    assert (stated.user, stated.project, stated.isolation) == ("ada", "research", "sharedCluster")
    assert not list(room.attestor.once())
    with pytest.raises(Refused, match="ATTESTED already"):
        room.attest()
    assert not any(path.is_dir() for path in room.attestor.settings.staging.iterdir())


def test_the_command_watches_and_answers_for_the_register(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t" * 40)
    (tmp_path / "token").chmod(0o600)
    room.deployment.key.chmod(0o600)
    file = tmp_path / "attestor.yaml"
    given = room.attestor.settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    given |= {"register": f"sqlite:///{tmp_path / 'register.db'}", "port": 0}
    file.write_text(yaml.safe_dump(given))
    command = [
        str(Path(sys.executable).with_name("govray")),
        "attest",
        "--watch",
        str(file),
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = "".join(iter(process.stdout.readline, "}\n"))
            address = json.loads(said + "}")["address"]
            asked = urllib.request.Request(
                f"{address}/v1/register/submissions/{SUBMISSION}",
                headers={"Authorization": "Bearer " + "t" * 40},
            )
            while not (told := json.load(urllib.request.urlopen(asked)))["runs"][0].get("attested"):
                assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert told["runs"][0]["attested"]["state"] == "ATTESTED"
    govray.verify(room.model, trust_root=room.deployment.root)


def swapped_weights(room: Room) -> None:
    """Other weights, with a commit's manifest that names them."""
    found = latest(room.run)
    assert found is not None
    commit = Path(str(found[0]))
    weights = commit / model_folder.WEIGHTS
    data = bytearray(weights.read_bytes())
    data[-3] ^= 4
    weights.write_bytes(data)
    manifest = json.loads((commit / "manifest.json").read_bytes())
    text = json.dumps(manifest)
    old = next(value for value in _digests(manifest) if value[0].endswith(model_folder.WEIGHTS))[1]
    new = hashlib.sha256(data).hexdigest()
    changed = json.loads(text.replace(old.removeprefix("sha256:"), new))
    (commit / "manifest.json").write_bytes(canonical_json.encode(changed))


def _digests(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _digests(each, key if not isinstance(each, str) else name)
    elif isinstance(value, list):
        for each in value:
            yield from _digests(each, name)
    elif isinstance(value, str):
        yield name, value


def flipped_weights(room: Room) -> None:
    found = latest(room.run)
    assert found is not None
    weights = Path(str(found[0])) / model_folder.WEIGHTS
    data = bytearray(weights.read_bytes())
    data[-3] ^= 4
    weights.write_bytes(data)


def another_run_s_record(room: Room) -> None:
    path = room.run / "record" / "run.json"
    path.write_bytes(path.read_bytes().replace(room.run.name.encode(), b"alone-of-another-person"))


def an_earlier_start(room: Room) -> None:
    record = read_record(room.run)
    path = room.run / "record" / "run.json"
    before = format_time(record.started).encode()
    after = format_time(record.started - timedelta(days=1)).encode()
    path.write_bytes(path.read_bytes().replace(before, after))


def another_policy(room: Room) -> None:
    text = room.deployment.policy_text.replace("rank: 4", "rank: 8")
    shutil.copyfile(room.deployment.sign_policy(text), room.run / "record" / "policy.dsse.json")


def a_root_of_ones_own(room: Room) -> None:
    other = Deployment(room.run.parent.parent / "own")
    shutil.copyfile(other.root, room.run / "record" / "root.json")


def a_link(room: Room) -> None:
    path = room.run / "record" / "policy.dsse.json"
    path.unlink()
    path.symlink_to(room.deployment.key)


@pytest.mark.parametrize(
    ("attack", "step"),
    [
        (swapped_weights, 4),
        (flipped_weights, 6),
        (another_run_s_record, 4),
        (an_earlier_start, 4),
        (another_policy, 4),
        (a_root_of_ones_own, 4),
        (a_link, 3),
    ],
)
def test_a_folder_that_was_changed_is_not_attested(
    room: Room, attack: Callable[[Room], None], step: int
) -> None:
    attack(room)

    done = room.attest()

    assert done.state == "NOT_ATTESTED"
    assert (done.why or "").startswith(f"step {step}: ")
    assert "PRIVATE KEY" not in (done.why or "")
    assert not room.model.exists()


@pytest.mark.parametrize("swaps", [True, False])
def test_a_folder_that_changes_while_it_is_copied_is_not_attested(
    room: Room, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    """Each file is whole, and of another time."""

    def opened(path: Path, mode: str) -> Any:
        if swaps and path.name == model_folder.WEIGHTS:
            flipped_weights(room)  # it was opened; the manifest was copied before it
        return open(path, mode)

    monkeypatch.setattr(staging, "open", opened, raising=False)

    assert room.attest().state == ("NOT_ATTESTED" if swaps else "ATTESTED")


def test_a_model_in_the_run_s_own_folder_means_nothing(room: Room, alone: Path) -> None:
    fake = Path(shutil.copytree(alone / "model", room.run / "model"))
    weights = (fake / model_folder.WEIGHTS).read_bytes()
    (fake / model_folder.WEIGHTS).write_bytes(weights[:-3] + b"own")

    assert room.attest().state == "ATTESTED"
    assert (room.model / model_folder.WEIGHTS).read_bytes() == weights
    govray.verify(room.model, trust_root=room.deployment.root)


def told(room: Room, change: Callable[[Any], None]) -> Callable[..., Any]:
    """A parser that was taken over: it answers what it likes."""
    honest = room.attestor.parser

    def parser(task: str, **given: Any) -> Any:
        answer = honest(task, **given)
        if task == "read":
            change(answer)
        return answer

    return parser


def _set(*path: str, to: Any) -> Callable[[Any], None]:
    def change(answer: Any) -> None:
        for each in path[:-1]:
            answer = answer[each]
        answer[path[-1]] = to

    return change


DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("lie", "step"),
    [
        (_set("claims", "run", "id", to="alone-of-another-person"), 7),
        (_set("claims", "run", "started", to="2020-01-01T00:00:00Z"), 5),
        (_set("claims", "execution", to={}), 4),
        (_set("predicateType", to="https://govray.dev/depth-policy/v1"), 4),
    ],
    ids=["run", "when", "who", "kind"],
)
def test_a_parser_that_was_taken_over_gets_nothing_else_signed(
    room: Room, lie: Callable[[Any], None], step: int
) -> None:
    """Each fact that it could lie about is in test_comparison.py."""
    done = room.with_parser(told(room, lie)).attest()

    assert done.state == "NOT_ATTESTED"
    assert (done.why or "").startswith(f"step {step}: ")
    assert not room.model.exists()


@pytest.mark.parametrize("end", ["at its start", "years later"])
def test_a_run_finished_when_the_register_was_told_so(room: Room, end: str) -> None:
    """No commit holds a run's end, so whoever writes its folder could move it: to before a
    credential expired, for instance."""
    record = read_record(room.run)
    record.end(
        room.run, record.started if end == "at its start" else record.started.replace(year=2099)
    )
    [told] = [
        each.at
        for each in room.attestor.register.posts(SUBMISSION, room.run.name)
        if each.kind == "finished"
    ]

    assert room.attest().state == "ATTESTED"
    found = govray.verify(room.model, trust_root=room.deployment.root).attestation.run
    assert found.finished == told
    assert read_record(room.run).finished != parse_time(told)  # the control


def _replayed(answer: Any) -> None:
    """As the job may say: a replay of its own without a corpus, which gave the same."""
    claims = answer["claims"]
    claims["replays"] = [
        {
            "corpus": "acme",
            "party": "operator",
            "plan": DIGEST,
            "files": {"model.safetensors": DIGEST},
            "environment": claims["environment"],
        }
    ]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (_replayed, "a job's replays and removals count for nothing"),
        (_set("claims", "validation", to={"metric": "loss", "goal": "max"}), "value"),
        (_set("claims", "memorization", to={"measured": "all"}), "memorization"),
    ],
    ids=["replay", "validation", "memorization"],
)
def test_a_job_s_statement_has_its_form_or_is_refused(
    room: Room, statement: Callable[[Any], None], why: str
) -> None:
    """The signer reads it by itself, and loads no torch (`test_door.py`)."""
    done = room.with_parser(told(room, statement)).attest()

    assert done.state == "NOT_ATTESTED"
    assert why in (done.why or "")
    assert not room.model.exists()


def test_the_parser_reads_no_other_prepared_data_than_the_project_names(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = room.attestor.settings.prepared
    [own] = prepared.iterdir()
    other = prepared / "another-project-s"
    other.mkdir()
    sealed = sign_payload(b"{}", [room.deployment.signers["operator"]])
    (other / MANIFEST_FILE).write_bytes(sealed)
    mine = canonical_json.sha256(Envelope.parse((own / MANIFEST_FILE).read_bytes()).payload)
    accepted = room.attestor.register.accepted(SUBMISSION)
    honest, read = room.attestor.parser, set()

    def parser(task: str, **given: Any) -> Any:
        read.update(given["read"])
        return honest(task, **given)

    def attested(*manifests: str) -> str:
        named = accepted.model_copy(update={"manifests": manifests})
        monkeypatch.setattr(Register, "accepted", lambda *_: named)
        monkeypatch.setattr(Register, "settle", lambda *_, before: True)
        shutil.rmtree(room.model, ignore_errors=True)
        read.clear()
        return room.with_parser(parser).attest().state

    assert attested(mine) == "ATTESTED"
    assert own in read
    assert other not in read
    assert attested() == "ATTESTED"  # negative control: nothing is named
    assert other in read


def test_two_keys_sign_where_two_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    where = CommitteeDeployment(tmp_path / "committee")
    run = where.trainer(max_steps=2, checkpoint={"every_steps": 2}).train(attest=True)
    trust = TrustState.load(where.root.read_bytes(), at=instant())
    one, two = where.signers["operator"], where.signers["second"]
    with pytest.raises(Refused, match="too few of any operator"):
        check_keys(trust, [one])
    check_keys(trust, [one, two])
    with ended(run, where, tmp_path) as room:
        attestor = replace(room.attestor, signers=(one, two))
        assert attestor.attest(SUBMISSION, run.name).why is None
        verified = govray.verify(room.model, trust_root=where.root)
    assert verified.keyids == {one.public_key.keyid, two.public_key.keyid}


def test_a_trial_that_its_search_stopped_is_attested_as_far_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    where = Deployment(tmp_path / "here")
    value = where.experiment(checkpoint={"every_steps": 1}, resources={"num_workers": 1})
    name = trial_name("a-search", 0)
    run = where.folder / "runs" / name
    trainer = replace(
        GovernedTrainer(parse_experiment(value, where="test")),
        run_config=RunConfig(name=name, storage_path=str(run.parent)),
        on_step=lambda step, metrics: stop_request.request(run, "by its search"),
    )
    with pytest.raises(Stopped):
        trainer.train()
    with ended(run, where, tmp_path, search="a-search") as room:
        assert room.attest().why is None
        facts = govray.verify(room.model, trust_root=where.root).attestation
    assert (facts.run.id, facts.plan.max_steps) == (name, 12)
    assert facts.ledger.size < 12


def test_nobody_s_model_is_taken_for_another_submission_s(room: Room) -> None:
    """It lies where the run's model belongs, signed by the operator for somebody else."""
    assert room.attest().state == "ATTESTED"
    register = Register(f"sqlite:///{room.run.parent.parent / 'other.db'}")
    theirs = room.attestor.register.accepted(SUBMISSION)
    form = AcceptanceForm(
        **{name: getattr(theirs, name) for name in AcceptanceForm.model_fields}
        | {"submission": "s-another"}
    )
    register.accept(form, root=theirs.trust_root, at=theirs.registered)
    register.open("s-another", first_attempt(form), at=theirs.registered)
    shutil.copytree(room.model, room.run / "model")
    for post in forms(room.run, theirs.registered):
        register.post("s-another", SECRET, post, at=format_time(instant()))

    done = replace(room.attestor, register=register).attest("s-another", room.run.name)

    register.close()
    assert done.state == "NOT_ATTESTED"
    assert done.why is not None
    assert "another model lies in its place" in done.why


def test_what_does_not_end_is_tried_later_each_time_and_then_given_up(room: Room) -> None:
    calls = []

    def silent(task: str, **given: Any) -> Any:
        calls.append(task)
        raise TypeError("the parser says nothing that anybody foresaw")

    times = iter(instant() + timedelta(minutes=each) for each in count(0, 5))
    attestor = replace(room.attestor, parser=silent, clock=lambda: next(times))

    for _ in range(400):
        if done := list(attestor.once()):
            break

    assert [each.state for each in done] == ["NOT_ATTESTED"]
    assert (done[0].why or "") == f"{MOST_TRIES} tries did not end: step 4: TypeError"
    assert len(calls) == MOST_TRIES


def test_a_parser_that_sleeps_holds_the_attestor_no_longer_than_a_run_may_take(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it dies just before its time is over."""
    clock, slept = count(0, 1000), []
    limits = room.attestor.settings.confinement

    def sleeps(task: str, *, within: float, **given: Any) -> Any:
        slept.append(min(within, 1000.0))
        raise InfrastructureFailed("the parser ended without an answer")

    monkeypatch.setattr(module, "monotonic", lambda: next(clock))
    room = room.with_parser(sleeps)
    done = None
    while done is None:
        with suppress(InfrastructureFailed):
            done = room.attest()

    assert done.why is not None
    assert "all the time that its parsers have together" in done.why
    assert 1000 * (len(slept) - 1) + slept[-1] == limits.of_a_run
    assert len(slept) == 1 + limits.of_a_run // 1000


def test_a_stop_ends_a_pass_before_the_next_run(room: Room) -> None:
    assert not list(room.attestor.once(lambda: True))
    assert len(room.attestor.register.waiting()) == 1
    assert len(list(room.attestor.once(lambda: False))) == 1  # negative control


@pytest.mark.parametrize(
    ("place", "point", "which", "late"),
    [
        (Register, "attested", 1, True),  # step 1 is done
        (Register, "ended", 1, True),  # 2
        (module, "copy_once", 1, True),  # 3
        (module, "compare", 1, False),  # 4
        (module, "compare", 1, True),  # 5
        (module, "sign_head", 1, True),
        (module, "copy_once", 2, True),
        (module, "_put", 1, True),
        (Attestor, "_check", 1, True),  # 6
        (module, "_put", 2, True),  # 7
        (Attestor, "_check", 2, True),  # what verifies is not in its place
        (module, "sync_all", 1, True),
        (module, "_publish", 1, True),  # it is, and nobody knows
        (Register, "settle", 1, True),  # 8
    ],
    ids=lambda each: getattr(each, "__name__", str(each)).rpartition(".")[2],
)
def test_killed_between_any_two_steps_it_is_attested_once(
    room: Room, place: Any, point: str, which: int, late: bool
) -> None:
    calls, real, register = count(1), getattr(place, point), room.attestor.register

    def killed(*given: Any, **more: Any) -> Any:
        due = next(calls) == which
        if due and not late:
            die()
        found = real(*given, **more)
        return die() if due else found

    def attest() -> None:
        setattr(place, point, killed)  # in the fork alone
        room.attest()

    register.close()  # a fork shares no connection
    assert in_fork(attest) == KILLED
    left = [each.name for each in room.attestor.settings.staging.glob("*.copy")]
    assert len(left) == (0 if place is Register and point != "settle" else 1)  # it was no exception
    done = [each.state for each in room.attestor.once()]

    assert done == ([] if point == "settle" else ["ATTESTED"])
    settled = register.attested(SUBMISSION, room.run.name)
    assert settled is not None
    assert govray.verify(room.model, trust_root=room.deployment.root).digest == settled.digest
    assert [each.name for each in room.attestor.settings.models.iterdir()] == [room.run.name]
