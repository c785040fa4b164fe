"""Whose a run is: what the queue says counts, and what the run's folder claims does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from govray.governance.submission.submission import Submission
from govray.platform.indexing import indexer, run_claims
from govray.platform.indexing.index_source import searches
from govray.platform.indexing.indexer import IndexReport, index_storage
from govray.platform.indexing.model_rows import index_run_model
from govray.platform.service.identity.caller import Caller, PlaceRole
from govray.platform.service.visible.visible_models import attestations
from govray.platform.service.visible.visible_runs import experiments
from govray.platform.store import queue_entries, tables
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.experiment_tags import replace_tags, tags_of
from govray.platform.store.rebuild import rebuild
from govray.platform.store.usage import usage
from govray.train.run_folder import events
from govray.train.run_folder.run_names import trial_name
from tests.support.runs_on_storage import (
    at,
    begin_run,
    begin_search,
    finished_run,
    happen,
    settings,
)
from tests.support.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def put(store: Engine, project: str, user: str, **more: Any) -> str:
    """Submit; returns the id."""
    by = ChangedBy(user=user, at=at(0), token=None)
    told: dict[str, Any] = {"kind": "train", "name": "tiny", "config": "a: 1", "slots": 1} | more
    with Session(store) as session:
        row = queue_entries.submit(session, project=project, by=by, **told)
        session.commit()
        return row.id


def begun(storage: Path, name: str, world: World, claim: Submission | None = None) -> Path:
    folder = begin_run(storage, name, world, submission=claim)
    happen(folder, [events.AttemptStarted(at=at(0), attempt=1, world_size=2, step=0)])
    happen(folder, [events.Stopped(at=at(36), step=3)])
    return folder


def claim(id: str, project: str = "beta", user: str = "eve") -> Submission:
    return Submission(id=id, user=user, project=project, submitted=at(0))


def index(store: Engine, storage: Path, world: World) -> IndexReport:
    return index_storage(store, storage, settings(world), searches(storage)[0])


def owners(store: Engine) -> dict[str, tuple[str, str]]:
    with Session(store) as session:
        found = session.exec(select(tables.ExperimentRow)).all()
        return {row.id: (row.project, row.user) for row in found}


def tags(store: Engine, *experiments: str) -> dict[str, list[str]]:
    with Session(store) as session:
        return tags_of(session, experiments)


def test_the_queue_says_whose_a_run_and_a_search_are(
    store: Engine, storage: Path, world: World
) -> None:
    one = put(store, "beta", "eve", tags=["week-47"])
    many = put(store, "beta", "eve", kind="tune", name="many", tags=["wide"])
    begun(storage, "tiny-1", world)  # nobody submitted it: the settings say whose it is
    begun(storage, f"tiny-{one}", world, claim(one))
    record = begin_search(storage / f"many-search-{many}")
    begun(record.folder, record.drawn({"optimizer.lr": 0.25}).name, world, claim(many))
    assert index(store, storage, world).left_out == {}
    due = {
        "tiny-1": ("alpha", "ada"),
        one: ("beta", "eve"),
        many: ("beta", "eve"),
    }
    assert owners(store) == due
    assert tags(store, *due) == {one: ["week-47"], many: ["wide"]}
    with Session(store) as session:
        assert {each.name: each.runs for each in usage(session, at=at(0))} == {
            "alpha": 1,
            "beta": 2,
        }
        replace_tags(session, one, ["mine"])
        session.commit()
    index(store, storage, world)  # what somebody changed since stays
    assert tags(store, one) == {one: ["mine"]}


def test_what_a_file_says_is_shown_and_gives_nobody_a_project(
    store: Engine, storage: Path, world: World
) -> None:
    said = {"description": "first try", "notes": "a\nb", "labels": ["b", "a"]}
    begin_run(storage, "tiny-1", world, project="beta", **said)
    id = put(store, "beta", "eve", tags=["week-47"])
    begin_run(storage, f"tiny-{id}", world, submission=claim(id), project="alpha", **said)
    index(store, storage, world)
    assert owners(store) == {"tiny-1": ("alpha", "ada"), id: ("beta", "eve")}
    # Labels are the tags of a run by hand; of a submitted one, what was submitted counts.
    due = {"tiny-1": ["a", "b"], id: ["week-47"]}
    assert tags(store, *due) == due
    with Session(store) as session:
        for row in session.exec(select(tables.ExperimentRow)):
            assert (row.description, row.notes) == ("first try", "a\nb")
    begin_run(storage, "tiny-2", world, labels=["new"])
    told = settings(world, queue=store)
    rebuild(store, lambda made: index_storage(made, storage, told) and None)
    assert tags(store, *due, "tiny-2") == {**due, "tiny-2": ["new"]}


def test_a_rebuild_asks_the_queue_too(store: Engine, storage: Path, world: World) -> None:
    old, new = (put(store, "beta", "eve", tags=["wide"]) for _ in range(2))
    begun(storage, f"tiny-{old}", world)
    index(store, storage, world)
    with Session(store) as session:  # as a forged record would have it
        session.get_one(tables.ExperimentRow, old).project = "alpha"
        replace_tags(session, old, [])
        session.commit()
    begun(storage, f"tiny-{new}", world, claim(new, project="alpha"))
    told = settings(world, user="bob", queue=store)
    rebuild(store, lambda made: index_storage(made, storage, told) and None)
    assert owners(store) == {old: ("beta", "eve"), new: ("beta", "eve")}
    assert tags(store, old, new) == {new: ["wide"]}


def test_what_a_folder_claims_wins_no_project(store: Engine, storage: Path, world: World) -> None:
    hers, his = put(store, "alpha", "ada"), put(store, "beta", "eve")
    notebook = put(store, "beta", "eve", kind="command")
    begun(storage, f"tiny-{his}", world, claim(his, project="alpha", user="ada"))
    begun(storage, "by-hand", world, claim("s-elsewhere", project="alpha-secret"))
    begun(storage, f"tiny-{notebook}", world)
    false = begun(storage, "another", world, claim(hers, project="alpha"))
    report = index(store, storage, world)
    assert list(report.left_out) == [str(false)]
    assert f"whose run is called tiny-{hers}" in report.left_out[str(false)]
    assert owners(store) == {
        his: ("beta", "eve"),  # not what its own folder says
        "by-hand": ("alpha", "ada"),  # the indexer's own, for nobody knows this submission
        f"tiny-{notebook}": ("alpha", "ada"),  # a task becomes no run
    }


@pytest.mark.parametrize("defended", [True, False])
def test_no_run_by_hand_takes_the_id_of_what_was_submitted(
    store: Engine, storage: Path, world: World, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Its numbers would be shown as those of another's experiment."""
    hers = put(store, "beta", "eve")
    forged = begun(storage, hers, world)
    if not defended:
        monkeypatch.setattr(indexer, "refuse_false_claim", lambda *_: None)
    report = index(store, storage, world)
    assert list(report.left_out) == ([str(forged)] if defended else [])
    assert list(owners(store)) == ([] if defended else [hers])


@pytest.mark.parametrize("defended", [True, False])
def test_nobody_reads_a_model_by_taking_its_run_s_name(
    store: Engine, storage: Path, world: World, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """The forged folder is indexed first; without the checks its project gets the attestation."""
    hers, his = put(store, "alpha", "ada"), put(store, "beta", "eve", kind="tune", name="many")
    victim = f"tiny-{hers}"
    record = begin_search(storage / f"many-search-{his}")
    if not defended:
        monkeypatch.setattr(indexer, "refuse_another_place", lambda *_: None)
    forged = begun(record.folder, "trial-x", world)
    shutil.rmtree(forged)
    begin_run(record.folder, victim, world).rename(forged)
    index(store, storage, world)  # before the run of the submission has begun
    finished_run(storage, victim, world)
    report = index(store, storage, world)
    if not defended:  # and as if a model were indexed whose run is left out
        with Session(store) as session:
            told = settings(world)
            index_run_model(session, storage / victim, told.anchor(), told.key)
            session.commit()
    eve = Caller(
        name="eve",
        account="member",
        bound=(PlaceRole(role="engineer", reach="project", place="beta"),),
    )
    with Session(store) as session:
        beta = tables.ProjectRow(name="beta", workspace="default", settings={}, created="", user="")
        session.add(beta)
        session.flush()
        a, e = tables.AttestationRow, tables.ExperimentRow
        read = session.exec(select(a.run).where(attestations(eve))).all()
        assert session.exec(select(e.id).where(experiments(eve))).all() == (
            [] if defended else [his]
        )
    assert read == ([] if defended else [victim])
    assert owners(store).get(hers) == (("alpha", "ada") if defended else None)
    assert (str(storage / victim) in report.left_out) is not defended


@pytest.mark.parametrize("place", ["search", "replays"])
def test_nobody_takes_another_run_s_name_for_a_run_within_his_own(
    store: Engine, storage: Path, world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    hers = put(store, "alpha", "ada")
    kind = "tune" if place == "search" else "train"
    his = put(store, "beta", "eve", kind=kind)
    own = f"tiny-search-{his}" if kind == "tune" else f"tiny-{his}"
    theirs = trial_name(f"tiny-search-{hers}", 0)  # a trial's name follows from its search's
    forged = []
    for name in (f"tiny-{hers}", theirs):
        if kind == "tune":
            above = storage / own
            if not above.exists():
                begin_search(above)
            forged.append(begun(above, name, world))
        else:
            if not (storage / own).exists():
                begun(storage, own, world)
            above = storage / own / "replays"
            forged.append(begin_run(above, name, world, replay_of=own))
    assert index(store, storage, world).left_out.keys() == set(map(str, forged))
    # Negative control: then they are runs of his project, as is what is signed of such runs.
    monkeypatch.setattr(run_claims, "is_trial_of", lambda *_: True)
    monkeypatch.setattr(run_claims, "is_replay", lambda _: True)
    assert index(store, storage, world).left_out == {}
    with Session(store) as session:
        for name in (f"tiny-{hers}", theirs):
            run = session.get_one(tables.RunRow, name)
            assert session.get_one(tables.ExperimentRow, run.experiment).project == "beta"
