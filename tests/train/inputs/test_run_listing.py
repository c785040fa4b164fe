"""How a run stands, from its folder alone; and which may go on."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from govray import cli
from govray.data.corpus import read_credentials
from govray.engine import gpt
from govray.errors import Refused, UsageError
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.run_listing import find_unfinished, inspect
from govray.train.inputs.run_record import RunRecord
from govray.train.run_folder import events, run_lock, stop_request
from govray.train.run_folder.environment_probe import environment_here
from govray.train.run_folder.requests import STOP
from tests.support.committing import a_plan
from tests.support.deployment import POLICY, Deployment
from tests.support.leaves import DIGEST
from tests.support.tree import ROOT

AT = "2026-11-21T09:30:00Z"
FAILED = events.Failed(
    at=AT, attempt=1, failure="user", step=7, what="rank 1: a bug", decision="stop"
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("runs") / "here")


@pytest.fixture
def record(here: Deployment) -> RunRecord:
    experiment = parse_experiment(here.experiment(), where="test")
    return RunRecord(
        run_id="tiny-1",
        started=datetime(2026, 11, 21, 9, 30, tzinfo=UTC),
        finished=None,
        groups={},
        plan=a_plan(max_steps=12),
        policy=here.policy.read_bytes(),
        root=here.root.read_bytes(),
        manifest=b"{}",
        credentials=read_credentials(here.corpora),
        delegations=(),
        config={},
        experiment=experiment,
        environment=environment_here(
            seed=17,
            threads=1,
            source=run_listing.source_of(gpt.loss, experiment.entrypoint),
        ),
        start=None,
    )


@pytest.fixture
def run(record: RunRecord, here: Deployment) -> Iterator[Path]:
    folder = here.folder / "runs" / "tiny-1"
    folder.mkdir(parents=True)
    record.write(folder)
    yield folder
    shutil.rmtree(folder.parent)


def test_the_first_signal_asks_for_a_stop_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGINT):
        with stop_request.signals() as received:
            signal.raise_signal(number)
            assert received == [number.name]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_states_follow_the_files(run: Path, record: RunRecord) -> None:
    assert inspect(run).state == "interrupted"
    with run_lock.hold(run):
        assert inspect(run).state == "running"
        stop_request.request(run, "a test")
        stop_request.request(run, "a test")
        assert inspect(run).state == "stopping"
        events.append(run, events.AttemptStarted(at=AT, attempt=1, world_size=2, step=0))
        events.append(run, events.Progress(at=AT, step=4, loss=2.5))
        events.append(run, events.Progress(at=AT, step=5))  # without loss targets
        events.append(run, events.Stopped(at=AT, step=7))
    stopped = inspect(run)
    assert (stopped.state, stopped.step, stopped.loss) == ("stopped", 7, 2.5)
    assert (stopped.world_size, stopped.attempts, stopped.max_steps) == (2, 1, 12)
    with run_lock.hold(run):
        STOP.clear(run)
    assert inspect(run).state == "interrupted"
    events.append(run, FAILED)
    failed = inspect(run)
    assert (failed.state, failed.why) == ("failed", "rank 1: a bug")
    events.append(run, events.Killed(at=AT, by="a test"))
    assert inspect(run).state == "killed"
    record.end(run, record.started)
    assert inspect(run).state == "finished"
    (run / "model").mkdir()
    assert inspect(run).state == "attested"
    assert sum(isinstance(e, events.StopRequested) for e in events.read(run)) == 1


def test_only_an_unfinished_run_of_this_very_experiment_goes_on(
    run: Path, record: RunRecord
) -> None:
    experiment = record.experiment
    assert experiment is not None
    assert find_unfinished(experiment) == run
    assert find_unfinished(experiment.model_copy(update={"seed": 18})) is None
    with run_lock.hold(run):
        assert find_unfinished(experiment) is None
    changed = record.environment.model_copy(update={"code_digest": DIGEST})
    replace(record, environment=changed).write(run)
    assert find_unfinished(experiment) is None
    replace(record, replay_of="tiny-0").write(run)
    assert find_unfinished(experiment) is None
    record.write(run)
    (run / "model").mkdir()
    assert find_unfinished(experiment) is None


def test_inputs_that_changed_are_named(record: RunRecord, here: Deployment, tmp_path: Path) -> None:
    then = record.experiment
    assert then is not None
    assert run_listing.changed(record, then) == []
    policy = here.sign_policy(POLICY.replace("rank: 4", "rank: 8"))
    corpora = shutil.copytree(here.corpora, tmp_path / "corpora")
    shutil.rmtree(corpora / "acme")
    with pytest.raises(Refused, match=f"policy {policy}, credential acme"):
        run_listing.refuse_changes(
            record,
            then.model_copy(
                update={
                    "governance": then.governance.model_copy(update={"policy": str(policy)}),
                    "data": then.data.model_copy(update={"corpora": str(corpora)}),
                }
            ),
            frozenset(),
        )
    none = then.governance.model_copy(update={"trust_root": str(tmp_path / "none.json")})
    with pytest.raises(UsageError, match="no trust root"):
        run_listing.changed(record, then.model_copy(update={"governance": none}))


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main(["runs", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_a_run_that_nobody_drives_is_not_stopped(
    run: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = say(capsys, verb, str(run))
    assert code == 2
    assert "nobody drives it" in said["error"]["what"]
    assert not STOP.made(run)


def test_the_page_about_faults_names_verbs_and_settings_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    verbs = set(re.findall(r"govray (runs [a-z]+|train)", page))
    assert len(verbs) > 4
    for verb in verbs:
        assert cli.main([*verb.split(), "--help"]) == 0
    assert "--new" in page
    assert (
        f"`collective_timeout_s` ({Experiment.model_fields['collective_timeout_s'].default})"
        in page
    )
    assert set(re.findall(r"^\| ([a-z]+)(?:, ([a-z]+))? \|", page, re.M)) >= {
        (state, "") for state in get_args(run_listing.State) if state not in ("running", "stopping")
    } | {("running", "stopping")}
