"""A job that tells the register: a real small run over a real door, and what is done to its folder.

One rank, in this process, no Ray.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.errors import InfrastructureFailed, Refused, Stopped, UsageError
from govray.governance.submission.register_forms import ADDRESS, SECRET, Flagged
from govray.governance.submission.submission import Submission
from govray.platform.attestor.register import Register
from govray.train.checkpoint import commit_folder, storage
from govray.train.driver.trainer import GovernedTrainer, new_or_unfinished
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import register_posts, stop_request
from govray.train.run_folder.register_posts import RegisterPosts, register_of
from govray.train.run_folder.run_names import trial_name
from govray.train.state import resume_point
from govray.train.state.cloning import clone
from govray.train.state.snapshot import committed_folders
from tests.support.deployment import Deployment
from tests.support.registered import RUN, SUBMISSION, TRUST_ROOT, acceptance, attempt, digest, door
from tests.support.solo import run_here

AT = "2026-11-24T09:00:00Z"
TUNE = acceptance(kind="tune")  # which has trials, too
ONE = Submission(id=SUBMISSION, user="ada", project="research", submitted=AT)


class Job:
    """Jobs of one submission, each an attempt with a secret of its own."""

    def __init__(self, here: Deployment, register: Register, address: str) -> None:
        self.here, self.register = here, register
        self.address = f"{address}/v1/register/submissions/{SUBMISSION}"
        self.run = here.folder / "runs" / RUN
        self.attempts = 0

    def environment(self, patch: pytest.MonkeyPatch) -> None:
        """Open the next attempt, and give this process what its job is given."""
        self.attempts += 1
        secret = f"secret {self.attempts}"
        form = attempt(self.attempts, secret, facts=TUNE.facts_digest)
        self.register.open(SUBMISSION, form, at=AT)
        patch.setenv(ADDRESS, self.address)
        patch.setenv(SECRET, secret)

    def trainer(self, **more: Any) -> GovernedTrainer:
        text = self.here.experiment(
            max_steps=6, checkpoint={"every_steps": 1}, resources={"num_workers": 1}
        )
        return new_or_unfinished(parse_experiment(text, where="test"), submission=ONE, **more)

    def stopped(self) -> None:
        """Train two steps, commit each and stop."""

        def on_step(step: int, metrics: Any) -> None:
            stop_request.request(self.run, "a test")

        with pytest.raises(Stopped):
            self.trainer(on_step=on_step).train()

    def newest(self) -> tuple[int, Path]:
        [(step, folder), *_] = committed_folders(self.run)
        assert isinstance(folder, Path)
        return step, folder

    def posts(self) -> list[tuple[int, str, int]]:
        return [
            (each.attempt, each.kind, each.step) for each in self.register.posts(SUBMISSION, RUN)
        ]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    run_here(monkeypatch)
    monkeypatch.setattr(register_posts, "WAITS_S", (0.01,))
    register = Register(f"sqlite:///{tmp_path}/register.db")
    register.accept(TUNE, root=TRUST_ROOT, at=AT)
    with door(register) as address:
        made = Job(Deployment(tmp_path / "here"), register, address)
        made.environment(monkeypatch)
        yield made
    register.close()


def test_a_run_tells_its_start_each_commit_and_its_end(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.stopped()
    assert job.posts() == [(1, "started", 0), (1, "committed", 1), (1, "committed", 2)]
    job.environment(monkeypatch)
    job.trainer().train(attest=True)
    assert job.posts()[3:] == [
        (2, "started", 2),
        *((2, "committed", step) for step in (3, 4, 5, 6)),
        (2, "finished", 6),
        (2, "ended", 6),
    ]
    last = job.register.last_commit(SUBMISSION)
    assert last is not None
    step, folder = job.newest()
    assert (last.step, last.commit) == (step, commit_folder.open_commit(folder).digest)
    assert last.ledger_size >= 6
    # Its job once more: the run is done, and the attempt says so.
    job.environment(monkeypatch)
    job.trainer().train(attest=True)
    assert job.posts()[10:] == [(3, "started", 6), (3, "finished", 6), (3, "ended", 6)]


def test_commits_that_the_attestor_would_not_find_are_refused_before_a_step(job: Job) -> None:
    there = job.trainer()
    section = there.experiment.checkpoint.model_copy(update={"storage": "s3://bucket/commits"})
    there = replace(there, experiment=there.experiment.model_copy(update={"checkpoint": section}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "require_reachable", lambda url: None)
        with pytest.raises(UsageError, match="copies a run's folder"):
            there.train()
    assert job.posts() == []


def test_a_run_by_hand_tells_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS)
    assert register_of(RUN) is None
    job.trainer().train()
    assert job.posts() == []
    monkeypatch.setenv(ADDRESS, job.address)
    monkeypatch.delenv(SECRET)
    with pytest.raises(UsageError, match="no secret"):
        register_of(RUN)


@pytest.mark.parametrize("registered", [True, False])
def test_an_older_commit_restored_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registered: bool
) -> None:
    job.stopped()
    older = tmp_path / "older"
    shutil.copytree(job.run, older)
    job.environment(monkeypatch)
    job.stopped()
    assert job.newest()[0] == 4
    shutil.rmtree(job.run)
    shutil.copytree(older, job.run)
    if registered:
        job.environment(monkeypatch)
        with pytest.raises(Refused, match="step 4 that is registered is not there"):
            job.trainer().train()
        return
    # The control: without a register the older state is taken.
    monkeypatch.delenv(ADDRESS)
    job.trainer().train()
    assert job.newest()[0] == 6


@pytest.mark.parametrize("registered", [True, False])
def test_other_weights_under_the_same_step_are_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    """Swapped, with a manifest that fits: whole by itself, and not what was committed."""
    job.stopped()
    _, folder = job.newest()
    committed = commit_folder.open_commit(folder)
    files = {name: (folder / name).read_bytes() for name in committed.entries}
    files["added.txt"] = b"not what the job wrote"
    shutil.rmtree(folder)
    commit_folder.commit(folder, files)
    if registered:
        job.environment(monkeypatch)
        with pytest.raises(Refused, match="step 2 that is registered is not there"):
            job.trainer().train()
        return
    monkeypatch.delenv(ADDRESS)
    job.trainer().train()


@pytest.mark.parametrize("registered", [True, False])
def test_a_folder_that_was_there_before_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    job.run.mkdir(parents=True)
    (job.run / "planted").touch()
    if registered:
        with pytest.raises(Refused, match="was there before its first attempt"):
            job.trainer().train()
        assert job.posts() == []
        return
    monkeypatch.delenv(ADDRESS)
    job.trainer().train()


def test_a_whole_run_that_was_planted_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as by_hand:
        by_hand.delenv(ADDRESS)
        job.stopped()
    with pytest.raises(Refused, match="was there before its first attempt"):
        job.trainer().train()


def test_a_newer_commit_that_was_not_registered_is_repeated(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that died between its commit and its post, or planted: nothing tells them apart."""
    job.stopped()
    with monkeypatch.context() as dying:
        dying.setattr(RegisterPosts, "committed", lambda *_, **__: _raise())
        job.environment(monkeypatch)
        with pytest.raises(InfrastructureFailed, match="died"):
            job.trainer().train()
    assert job.newest()[0] == 3
    assert job.posts()[-1] == (2, "started", 2)
    job.environment(monkeypatch)
    job.trainer().train()
    again = [step for number, kind, step in job.posts() if (number, kind) == (3, "committed")]
    assert again == [3, 4, 5, 6]
    assert list(job.run.glob("checkpoint_000000003.*.superseded"))


def _raise() -> None:
    raise InfrastructureFailed("it died")


def test_what_the_register_names_is_never_deleted_before_it_names_something_newer(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.stopped()
    said = RegisterPosts.committed
    seen = []

    def committed(self: RegisterPosts, **moved: Any) -> None:
        last = job.register.last_commit(SUBMISSION)
        seen.append(last is not None and last.step in [s for s, _ in committed_folders(job.run)])
        said(self, **moved)

    monkeypatch.setattr(RegisterPosts, "committed", committed)
    job.environment(monkeypatch)
    job.trainer().train()
    assert seen == [True] * 4


def test_a_register_that_does_not_answer_fails_the_attempt_as_a_machine_does(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    asked = register_posts.post

    def post(url: str, *words: Any, **more: Any) -> Any:
        if b'"committed"' in words[0]:
            tries.append(url)
            raise InfrastructureFailed("gone", where=url)
        return asked(url, *words, **more)

    monkeypatch.setattr(register_posts, "post", post)
    with pytest.raises(InfrastructureFailed, match="the register does not answer: gone"):
        job.trainer().train()
    assert len(tries) == 2
    assert job.posts() == [(1, "started", 0)]
    monkeypatch.undo()


def test_an_answer_that_is_lost_is_asked_for_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = []
    asked = register_posts.post

    def post(url: str, *words: Any, **more: Any) -> Any:
        answer = asked(url, *words, **more)
        if words[0] not in lost:
            lost.append(words[0])
            raise InfrastructureFailed("cut off", where=url)
        return answer

    monkeypatch.setattr(register_posts, "post", post)
    job.trainer().train()
    assert [kind for _, kind, _ in job.posts()] == [
        "started",
        *["committed"] * 6,
        "finished",
        "ended",
    ]


def test_two_that_post_as_one_attempt_flag_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other copied the secret. Whichever posts second stops both, and the next attempt goes on
    from what was taken."""
    twin = register_of(RUN)
    assert twin is not None

    def on_step(step: int, metrics: Any) -> None:
        if step == 1:
            with suppress(Flagged):
                twin.committed(branch=0, step=9, commit=digest("t"), size=9, root=digest("t"))

    with pytest.raises(Flagged) as caught:
        job.trainer(on_step=on_step).train()
    assert caught.value.exit_code == InfrastructureFailed.exit_code
    [flagged] = job.register.attempts(SUBMISSION)
    assert flagged.flagged is not None


def test_an_attempt_that_another_replaced_posts_no_more(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = register_of(RUN)
    assert late is not None
    late.started(planted=False)
    job.environment(monkeypatch)
    with pytest.raises(Flagged, match="attempt 2 was opened since"):
        late.committed(branch=0, step=1, commit=digest("late"), size=1, root=digest("late"))
    job.trainer().train()
    monkeypatch.setenv(SECRET, "guessed")
    guessed = register_of(RUN)
    assert guessed is not None
    with pytest.raises(Refused, match="that of no attempt"):
        guessed.standing()


def test_a_clone_is_registered_before_its_folder_appears(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that takes over another's state begins with a commit, which is not planted."""
    job.stopped()
    record = read_record(job.run)
    assert record.experiment is not None
    second, third = (trial_name(RUN, number) for number in (2, 3))
    run = job.run.with_name(second)

    def made(name: str) -> None:
        assert record.experiment is not None
        clone(job.run, 2, job.run.with_name(name), record.experiment, dict(record.config), {})

    made(second)
    [(step, folder)] = committed_folders(run)
    chain = job.register.posts(SUBMISSION, second)
    assert [(each.kind, each.step) for each in chain] == [("started", 0), ("committed", step)]
    assert chain[-1].commit == commit_folder.open_commit(folder).digest
    assert resume_point.newest(run, register_of(second)) == (folder, 2)
    # One that does not get so far leaves no folder.
    monkeypatch.setenv(SECRET, "guessed")
    with pytest.raises(Refused, match="that of no attempt"):
        made(third)
    assert not job.run.with_name(third).exists()


def test_a_rollback_is_registered(job: Job) -> None:
    """The run goes back to an earlier commit, whose step is smaller, on a branch of its own."""
    job.stopped()
    register = register_of(RUN)
    assert register is not None
    stands = register.standing()
    step, folder = job.newest()
    resume_point._register_rollback(register, folder, step, branch=1)
    resume_point._register_rollback(register, None, 0, branch=2)
    assert resume_point.newest(job.run, register) is None
    after = register.standing()
    assert (after.branch, after.step, after.commit) == (2, 0, None)
    assert (after.ledger_size, after.ledger_root) == (stands.ledger_size, stands.ledger_root)
    with pytest.raises(Refused, match="lies before"):
        resume_point._register_rollback(register, folder, step, branch=1)
