"""Experiments submitted over HTTP: what is written, once, by whom, and what is refused before."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session, col, delete, select

from govray.cli import experiments
from govray.platform.service.acting import acting
from govray.platform.store import leases, pools
from govray.platform.store import queue_entries as queue
from govray.platform.store.database import open_store
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import AuditEntry, Lease, PoolRow, QueueEntry
from govray.platform.wire.answers import Experiment
from tests.support.databases import on_both
from tests.support.people import Service, serve

JOBS = Path(__file__).parents[3] / "jobs"
FILE = (JOBS / "train.yaml").read_text()
SEARCH = (JOBS / "tune.yaml").read_text()
S = ExperimentState
LONG = [f"+{letter}={'y' * 4000}" for letter in "abcdefghijklmnopq"]


@pytest.fixture
def served(store_url: str, made: Engine) -> Iterator[Service]:
    with serve(store_url) as running:
        yield running


@pytest.fixture
def made(store_url: str) -> Engine:
    return open_store(store_url, create=True)


@pytest.fixture
def empty(service: Service) -> Service:
    with Session(service.engine) as session:
        for table in (QueueEntry, PoolRow):
            session.execute(delete(table))
        session.commit()
    return service


STEPS_LINE, WORKERS_LINE = (
    next(f"experiment:{n}: " for n, line in enumerate(FILE.splitlines(), 1) if name in line)
    for name in ("max_steps:", "num_workers:")
)


def send(service: Service, kind: str = "engineer", **body: Any) -> Any:
    body = body if "forkOf" in body else {"file": FILE, **body}
    return service.client(kind).post("/v1/experiments", json=body)


def submitted(service: Service, kind: str = "engineer", **body: Any) -> dict[str, Any]:
    answer = send(service, kind, **body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def rows(service: Service) -> list[QueueEntry]:
    with Session(service.engine) as session:
        return list(session.exec(select(QueueEntry).order_by(col(QueueEntry.submitted))))


def log(service: Service, subject: str) -> list[str]:
    with Session(service.engine) as session:
        found = session.exec(select(AuditEntry).where(AuditEntry.subject == subject))
        return [f"{row.user} {row.action}" for row in found]


def test_a_file_becomes_an_entry_of_the_queue(empty: Service) -> None:
    made = submitted(empty, project="search-team", pool="gpu", priority=-3, tags=["b", "a"])
    [row] = rows(empty)
    assert row.config == FILE  # byte for byte
    assert (row.kind, row.name, row.slots) == ("train", "python-source-gpt", 2)
    assert (row.project, row.pool, row.priority) == ("search-team", "gpu", -3)
    assert (row.user, row.state, made["tags"]) == ("engineer", S.QUEUED, ["a", "b"])
    assert row.token is not None
    assert (made["id"], made["position"], made["file"]) == (row.id, 1, FILE)
    assert log(empty, row.id) == ["engineer experiment submitted"]
    value = yaml.safe_load(FILE)  # an object stands for the file
    assert yaml.safe_load(submitted(empty, file=value)["file"]) == value


@pytest.mark.parametrize(
    ("until", "told"),
    [(None, "yet"), ("2026-01-02T03:04:05Z", "since 2026-01-02T03:04:05Z"), ("2999-01-01", None)],
)
def test_what_waits_for_nobody_says_so_everywhere(
    empty: Service, until: str | None, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(empty.engine) as session:
        session.execute(delete(Lease))
        if until is not None:
            session.add(Lease(name=leases.RECONCILER, holder="w1", until=until))
        session.commit()
    start = "The cluster's operator does by: govray queue run deploy/queue.yaml"
    why = f"Nobody works off the queue {told}. {start}" if told else None

    def says(text: str) -> bool:
        return (why or start) in " ".join(unescape(text).split())

    made, client = submitted(empty), empty.client("engineer")
    task = {"name": "look", "config": "kind: command\nargv: [sh]\n"}
    waits = client.post("/v1/tasks", json=task).json()
    pages = ["/queue", "/tasks"]
    for kind, row in (("experiments", made), ("tasks", waits)):
        [listed] = client.get(f"/v1/{kind}").json()["items"]
        found = client.get(f"/v1/{kind}/{row['id']}").json()
        assert (found["state"], found["why"], listed["why"]) == ("QUEUED", why, why)
        pages.append(f"/{kind}/{row['id']}")
    for path in pages:
        assert says(client.get(path).text) == (why is not None), path
    experiments.tell(Experiment.model_validate(made))
    assert says(capsys.readouterr().out) == (why is not None)
    # What has ended keeps its own reason.
    assert client.post(f"/v1/experiments/{made['id']}:stop").json()["why"].startswith("stop asked")


def test_project_and_labels_of_a_file_count_where_the_submitter_says_nothing(
    empty: Service,
) -> None:
    def kept(**body: Any) -> tuple[str, list[str], str]:
        made = submitted(empty, **body)
        return made["project"], made["tags"], made["id"]

    file = f"{FILE}project: filed\nlabels: [b, a, b]\n"
    project, tags, origin = kept(file=file)
    assert (project, tags) == ("filed", ["a", "b"])
    assert kept(file=file, project="asked", tags=["c"])[:2] == ("asked", ["c"])
    # A fork is where its origin is, unless an override says otherwise.
    moved = kept(file=file, project="asked")[2]
    assert kept(forkOf=moved)[:2] == ("asked", ["a", "b"])
    assert kept(forkOf=moved, set=["project=other", "labels=[z]"])[:2] == ("other", ["z"])
    assert kept(forkOf=origin, project="mine")[0] == "mine"
    engineer = empty.client("engineer")
    assert engineer.put(f"/v1/experiments/{moved}/tags", json={"tags": ["q"]}).status_code == 200
    assert kept(forkOf=moved)[1] == ["q"]
    assert kept(forkOf=moved, tags=["own"])[1] == ["own"]
    assert kept(forkOf=moved, set=["labels=[z]"])[1] == ["z"]


def test_a_search_holds_the_workers_of_all_trials_at_once(empty: Service) -> None:
    refused = send(empty, file=SEARCH)
    assert refused.status_code == 422
    assert "search.max_concurrent_trials" in refused.json()["detail"]
    some = submitted(empty, file=SEARCH, set=["+search.max_concurrent_trials=2"])
    assert (some["kind"], some["slots"]) == ("tune", 2)
    # Never more than there are runs.
    more = ["+search.max_concurrent_trials=64", "resources.num_workers=[1, 3]"]
    assert submitted(empty, file=SEARCH, set=more)["slots"] == 4 * 3


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"pool": "unheard-of"}, "there is no pool 'unheard-of'; there are: default, gpu"),
        ({"pool": "gpu"}, "it needs 2 slots, and pool 'gpu' has 1"),
        ({"project": "small"}, "project 'small' may hold 1 in pool 'default'"),
        ({"archive": None}, "it has no working directory"),
    ],
)
def test_what_could_never_start_is_refused_when_it_is_submitted_or_checked(
    empty: Service, more: dict[str, Any], told: str
) -> None:
    good = {"file": FILE, "archive": "sha256:" + "5" * 64}
    client = empty.client("engineer")
    assert client.post("/v1/experiments", json=good | more).is_success  # no pool is known yet
    with Session(empty.engine) as session:
        stated = [PoolRow(name="default", slots=2, most={"small": 1}), PoolRow(name="gpu", slots=1)]
        pools.state(session, stated)
        session.commit()
    for path in ("/v1/experiments", "/v1/experiments:check"):
        answer = client.post(path, json=good | more)
        assert (answer.status_code, told in answer.text) == (409, True), answer.text
        assert client.post(path, json=good).is_success


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"file": FILE.replace("max_steps:", "max_stesp:")}, "body.file", STEPS_LINE),
        ({"file": FILE.replace("max_steps:", "max_stesp:")}, "body.file", "mean 'max_steps'"),
        ({"file": FILE.replace("num_workers: 2", "num_workers: 0")}, "body.file", WORKERS_LINE),
        ({"file": "a: ["}, "body.file", "not readable as YAML"),
        ({"file": "a: &x 1"}, "body.file", "anchors and aliases"),
        ({"file": "- 1"}, "body.file", "an experiment is a mapping"),
        ({"file": {"name": 5}}, "body.file", "name"),
        ({"file": FILE, "set": ["max_stepz=3"]}, "body.set", "max_stepz"),
        ({"file": FILE, "set": ["max_steps"]}, "body.set", "no override"),
        ({"file": FILE, "set": ["max_steps=-3"]}, "body.file", "max_steps"),
        ({"file": FILE, "tags": ["a b"]}, "body.tags", "no tag"),
        ({"file": FILE, "policy": "sha256:" + "1" * 64}, "body.policy", "no policy"),
        ({"file": FILE, "forkOf": "s-one"}, "body.file", "either"),
        ({}, "body.file", "either"),
        ({"file": FILE, "pools": "gpu"}, "body.pools", ""),
        ({"file": FILE, "project": "../up"}, "body.project", ""),
        ({"file": FILE, "priority": 10**9}, "body.priority", ""),
        ({"file": "x" * (1 << 16) + ":"}, "body.file", ""),
        ({"file": {"x": "x" * (1 << 16)}}, "body.file", "more than 65536"),
        ({"file": FILE, "set": LONG}, "body.set", "longer"),
    ],
)  # fmt: skip
def test_what_is_no_experiment_is_refused_before_anything_is_written(
    empty: Service, body: dict[str, Any], field: str, said: str
) -> None:
    for path in ("/v1/experiments", "/v1/experiments:check"):
        answer = empty.client("engineer").post(path, json=body)
        if "tags" in body and path.endswith(":check"):
            continue  # tags are the queue's
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["field"].startswith(field)
        assert said in answer.json()["detail"]
    assert rows(empty) == []


def test_a_file_that_names_code_is_not_run(empty: Service, tmp_path: Path) -> None:
    """What a file names is the cluster's to load."""
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    submitted(empty, set=["entrypoint=trap:main"])
    recipe = ["+search.max_concurrent_trials=1", f"search.searcher={trap}"]
    submitted(empty, file=SEARCH, set=[*recipe, "+search.stop=[{rule: 'trap:rule'}]"])
    assert not (tmp_path / "sprung").exists()


def ids(client: TestClient, **params: Any) -> list[str]:
    return [each["id"] for each in client.get("/v1/experiments", params=params).json()["items"]]


@on_both
def test_the_list_is_filtered_and_has_no_files(served: Service) -> None:
    made = [
        submitted(served, project="a", tags=["Base", "x_y"]),
        submitted(served, "admin", project="b", pool="gpu", tags=["base"]),
        submitted(served, project="a", tags=["uber", "xay"]),
    ]
    one, two, three = (each["id"] for each in made)
    reader = served.client("auditor")
    everything = reader.get("/v1/experiments").json()["items"]
    assert {each["id"] for each in everything} == {one, two, three}
    assert not any("config" in each for each in everything)
    assert set(ids(reader, project="a")) == {one, three}
    assert ids(reader, user="admin") == ids(reader, pool="gpu") == [two]
    assert ids(reader, tag="Base") == ids(reader, tag="x_y") == [one]
    assert ids(reader, tag="uber") == [three]
    assert ids(reader, tag='"') == ids(reader, tag="as") == []
    assert ids(reader, state="RUNNING") == ids(reader, archived=True) == []
    for sort in ("submitted", "-user", "state"):
        asked = {"limit": 2, "sort": sort}
        first = reader.get("/v1/experiments", params=asked).json()
        rest = reader.get("/v1/experiments", params={**asked, "cursor": first["next"]}).json()
        found = [each["id"] for each in first["items"] + rest["items"]]
        assert found[0] == sorted(found, reverse=sort == "-user")[0]
        assert sorted(found) == sorted([one, two, three])
    assert reader.get("/v1/experiments", params={"sort": "file"}).status_code == 422


@on_both
def test_a_position_is_by_pool_priority_and_time(served: Service) -> None:
    first, second = submitted(served, priority=-9), submitted(served, priority=-9)
    urgent, other = submitted(served), submitted(served, pool="gpu")

    def positions() -> list[int | None]:
        listed = {
            each["id"]: each["position"]
            for each in served.client("auditor").get("/v1/experiments").json()["items"]
        }
        alone = [
            served.client("auditor").get(f"/v1/experiments/{each['id']}").json()["position"]
            for each in (first, second, urgent, other)
        ]
        assert [listed[each["id"]] for each in (first, second, urgent, other)] == alone
        return alone

    before = sorted([first["id"], second["id"]])  # of one second: by id
    expected = [2, 3] if before[0] == first["id"] else [3, 2]
    if first["submitted"] < second["submitted"]:
        expected = [2, 3]
    assert positions() == [*expected, 1, 1]
    with Session(served.engine) as session:
        queue.move(session, session.get_one(QueueEntry, urgent["id"]), S.RUNNING)
        session.commit()
    assert positions() == [expected[0] - 1, expected[1] - 1, None, 1]


def act(service: Service, kind: str, id_: str, verb: str) -> tuple[int, Any]:
    answer = service.client(kind).post(f"/v1/experiments/{id_}:{verb}")
    return answer.status_code, answer.json()


def test_what_is_asked_of_an_experiment_is_the_queues_to_allow(empty: Service) -> None:
    id_ = submitted(empty)["id"]
    assert act(empty, "engineer", id_, "archive")[0] == 409  # it waits
    status, stopped = act(empty, "engineer", id_, "stop")
    assert (status, stopped["state"], stopped["position"]) == (200, "STOPPED", None)
    assert stopped["why"] == "stop asked by engineer while it waited"
    assert act(empty, "engineer", id_, "stop")[0] == 409
    assert act(empty, "engineer", id_, "archive")[1]["archived"] is True
    assert ids(empty.client("auditor")) == []
    assert ids(empty.client("auditor"), archived=True) == [id_]
    assert act(empty, "engineer", id_, "unarchive")[1]["archived"] is False
    assert act(empty, "engineer", id_, "resume")[1]["state"] == "QUEUED"
    assert act(empty, "engineer", id_, "kill")[1]["state"] == "KILLED"
    verbs = ["submitted", "stop", "archive", "unarchive", "resume", "kill"]
    assert log(empty, id_) == [f"engineer experiment {verb}" for verb in verbs]


def test_an_engineer_acts_on_its_own_and_an_admin_on_all(empty: Service) -> None:
    theirs = submitted(empty, "admin")["id"]
    for verb in ("stop", "kill", "resume", "archive", "unarchive"):
        status, problem = act(empty, "engineer", theirs, verb)
        assert (status, "admin submitted it" in problem["detail"]) == (403, True)
    assert act(empty, "admin", submitted(empty)["id"], "stop")[0] == 200
    assert act(empty, "engineer", "s-none", "stop")[0] == 404
    for path in ("/v1/experiments", "/v1/experiments:check"):
        answer = empty.client("engineer").post(path, json={"forkOf": "s-none"})
        assert answer.status_code == 404


def test_without_the_seam_an_engineer_stops_what_is_anothers(
    empty: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = submitted(empty, "admin")["id"]
    monkeypatch.setattr(acting, "may_act", lambda *_, **__: None)
    assert act(empty, "engineer", theirs, "stop")[0] == 200
