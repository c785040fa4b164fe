"""A submission is one search. What a search runs is shown in test_search_on_cluster.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.errors import Refused, UsageError
from govray.governance.submission.register_forms import ADDRESS, SECRET
from govray.governance.submission.submission import Submission
from govray.platform.attestor.register import Register
from govray.train.driver.trainer import GovernedTrainer
from govray.tune import search, search_record
from govray.tune.objective import Conclusion
from govray.tune.search import find_unfinished, run
from govray.tune.search_config import SearchFile, parse_search
from tests.support.registered import TRUST_ROOT, acceptance, attempt, committed, door, started
from tests.support.search_files import FILE

ONE = Submission(id="s-1", user="ada", project="search", submitted="2026-11-24T20:30:49Z")
TWO = ONE.model_copy(update={"id": "s-2"})


class Died(Exception):
    """The driver's end, with the folder of its search."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SearchFile:
    """A search whose driver dies once it has recorded what it searches, unless it may conclude."""

    def dies(record: search_record.SearchRecord, *given: Any, begun: bool, **more: Any) -> Any:
        if not begun:
            record.write()
        record.drawn({"optimizer.lr": 0.25})
        raise Died(record.folder)

    monkeypatch.setattr(search, "_search", dies)
    value = FILE | {"storage_path": str(tmp_path / "runs")}
    return parse_search(value, where="here")


def folder(file: SearchFile, **more: Any) -> Path:
    """Where a job's search lies, which its driver left behind."""
    gone_on: list[Path] = []
    with pytest.raises(Died) as died:
        run(file, on_resume=gone_on.append, **more)
    found: Path = died.value.args[0]
    assert gone_on in ([], [found])
    return found


def test_two_submissions_of_one_file_are_two_searches(file: SearchFile) -> None:
    first, byhand = folder(file, submission=ONE), folder(file)
    assert first.name == f"{file.experiment.name}-search-s-1"
    record = search_record.read(first)
    assert record.submission == ONE
    assert search_record.read(byhand).submission is None
    assert folder(file, submission=TWO).name == f"{file.experiment.name}-search-s-2"
    assert folder(file, submission=ONE) == first  # its job was started again
    assert len(search_record.read(first).trials) == 2
    found = find_unfinished(file)
    assert found is not None
    assert found.folder == byhand
    assert folder(file) == byhand
    assert folder(file, new=True) not in (first, byhand)


def test_a_search_goes_on_for_its_own_submission_alone(
    file: SearchFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder(file, submission=ONE)
    eve = ONE.model_copy(update={"user": "eve"})
    with pytest.raises(Refused, match="began with another submission"):
        run(file, submission=eve)
    other = parse_search(
        FILE | {"storage_path": file.experiment.storage_path, "seed": 3}, where="here"
    )
    with pytest.raises(Refused, match="began with another file"):
        run(other, submission=ONE)
    with pytest.raises(UsageError, match="starts no new one"):
        run(file, submission=ONE, new=True)
    assert len(search_record.read(first).trials) == 1
    monkeypatch.setattr(search, "refuse_other_search", lambda *given: None)
    with pytest.raises(Died):  # the control
        run(file, submission=eve)
    assert len(search_record.read(first).trials) == 2


@pytest.mark.parametrize("unsigned", [True, False])
def test_an_unsigned_search_leaves_its_trials_to_others(
    file: SearchFile, monkeypatch: pytest.MonkeyPatch, unsigned: bool
) -> None:
    attested: list[Path] = []

    def ends(
        record: search_record.SearchRecord, base: GovernedTrainer, *given: Any, **more: Any
    ) -> None:
        record.write()
        record.ended(record.drawn({"optimizer.lr": 0.25}).name, "finished", "the last step")
        assert base.unsigned == unsigned

    def attest(record: search_record.SearchRecord, *given: Any) -> dict[str, Path]:
        attested.append(record.folder)
        return {}

    monkeypatch.setattr(search, "_search", ends)
    monkeypatch.setattr(search, "_attest", attest)
    if unsigned:
        monkeypatch.setattr(GovernedTrainer, "signer", lambda self: pytest.fail("a key"))
    else:
        monkeypatch.setattr(GovernedTrainer, "signer", lambda self: None)
    found = run(file, submission=ONE, unsigned=unsigned)
    assert search_record.read(found.folder).concluded
    assert (found.models, attested) == ({}, [] if unsigned else [found.folder])


def test_its_job_tells_which_trials_have_ended_the_best_even_if_it_was_stopped(
    file: SearchFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Register(f"sqlite:///{tmp_path}/register.db")
    accepted = acceptance(run=ONE.run_of("tiny-search"), kind="tune")
    register.accept(accepted, root=TRUST_ROOT, at=ONE.submitted)
    facts, names, runs = accepted.facts_digest, {}, {}

    def ends(record: search_record.SearchRecord, *given: Any, **more: Any) -> None:
        record.write()
        for how in ("finished", "stopped", "stopped too", "failed"):
            names[how] = trial = record.drawn({"optimizer.lr": 0.25}).name
            record.ended(trial, how.split()[0], "as said")
        # An earlier attempt has trained them.
        register.open("s-1", attempt(1, "one", facts=facts), at=ONE.submitted)
        for how, trial in names.items():
            runs[how] = record.trials[trial].run
            for post in (started(run=runs[how]), committed(1, 5, run=runs[how])):
                register.post("s-1", "one", post, at=ONE.submitted)
        register.open("s-1", attempt(2, "two", facts=facts), at=ONE.submitted)

    monkeypatch.setattr(search, "_search", ends)

    def concludes(*given: Any) -> Conclusion:
        return Conclusion(best=names["stopped"], front=(), leader=None, why=None)

    monkeypatch.setattr(search, "_conclude", concludes)
    with door(register) as address:
        monkeypatch.setenv(ADDRESS, f"{address}/v1/register/submissions/s-1")
        monkeypatch.setenv(SECRET, "two")
        run(file, submission=ONE, unsigned=True)
    assert set(register.waiting()) == {("s-1", runs[how]) for how in ("finished", "stopped")}
    register.close()
