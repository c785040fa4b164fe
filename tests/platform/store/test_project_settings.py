"""Config policies: what they add to a submission, what they refuse, and the limits they state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlmodel import Session

from govray.errors import Refused, UsageError
from govray.platform.store import project_settings, role_bindings
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.project_settings import (
    ProjectSettings,
    TaskKind,
    Wanted,
    parse_settings,
    resolve,
    resolve_task,
)
from govray.platform.store.role_bindings import Grant
from govray.platform.store.tables import UserRow
from govray.platform.tasks.task_file import KINDS
from tests.support.databases import on_both

ADA = ChangedBy(user="ada", at="2026-11-24T09:00:00Z")


@pytest.fixture
def session(store: Engine) -> Iterator[Session]:
    with Session(store) as opened:
        yield opened


def settings(**given: Any) -> ProjectSettings:
    return parse_settings(given, where="settings")


def search(**limit: Any) -> dict[str, Any]:
    return {"search": {"memorization": limit} if limit else {}}


def test_defaults_lie_below_and_fixed_values_stand_fast() -> None:
    policy = settings(defaults={"a": {"b": 1, "c": 2}}, fixed={"f": {"g": 3}, "on": True})
    resolved = resolve(policy, Wanted(config={"a": {"b": 9}}, slots=1), project="p")
    assert resolved.config == {"a": {"b": 9, "c": 2}, "f": {"g": 3}, "on": True}
    assert resolved.changed
    for config, wrong in (
        ({"f": {"g": 4}}, "f.g"),
        ({"f": 3}, "f.g"),
        ({"f": {"g": "hunter2"}}, "f.g"),
        ({"on": 1}, "on"),
    ):
        with pytest.raises(Refused, match=f"{wrong} is fixed") as refused:
            resolve(policy, Wanted(config=config, slots=1), project="p")
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("fixed", "search", "why"),
    [
        ({"max_steps": 100}, {"max_time": 10}, "max_steps is fixed, and search.max_time"),
        ({"max_steps": 100}, {"max_time": 100}, None),
        ({"max_steps": 100}, {"max_time": None}, None),
        ({"max_steps": 100}, {}, None),
        ({"seed": 100}, {"max_time": 10}, None),
        (
            {"optimizer": {"weight_decay": 0.1}},
            {"space": {"optimizer.name": {"choice": ["adamw", "sgd"]}}},
            "another optimizer.name of the search drops it",
        ),
        (
            {"optimizer": {"arguments": {"momentum": 0.9}}},
            {"space": {"seed": {"one_of": [{"value": 1, "space": {"optimizer.name": 1}}]}}},
            "another optimizer.name",
        ),
        ({"optimizer": {"lr": 0.1}}, {"space": {"optimizer.name": {"choice": ["sgd"]}}}, None),
        ({"optimizer": {"lr": 0.1}}, {"searcher": "searchers/mine.py"}, "a searcher of your own"),
        ({"data": {"epochs": 1}}, {"searcher": "./mine.py"}, "a searcher of your own"),
        ({"data": {"epochs": 1}}, {"searcher": "asha"}, None),
        ({"governance": {"policy": "p"}}, {"searcher": "searchers/mine.py"}, None),
    ],
)
def test_no_field_of_a_search_goes_round_what_is_fixed(
    fixed: dict[str, Any],
    search: dict[str, Any],
    why: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, wanted = settings(fixed=fixed), Wanted(config={"search": search}, slots=1)
    if why is None:
        resolve(policy, wanted, project="p")
        return
    with pytest.raises(Refused, match=why):
        resolve(policy, wanted, project="p")
    # Negative control: by the file's own values alone it is accepted.
    monkeypatch.setattr(project_settings, "_by_the_way", lambda *_: [])
    resolve(policy, wanted, project="p")


def test_no_prepared_data_at_all_is_not_taken_for_all_of_them() -> None:
    with pytest.raises(UsageError, match="manifests"):
        parse_settings({"manifests": []}, where="here")


def test_where_depth_policies_are_limited_no_task_runs_any_program() -> None:
    def allowed(policy: ProjectSettings) -> set[str]:
        found = set()
        for kind in KINDS:
            with suppress(Refused):
                resolve_task(policy, kind=kind, slots=1, pool=None, priority=None, project="p")
                found.add(kind)
        return found

    assert set(get_args(TaskKind)) == set(KINDS)  # those that there are
    assert allowed(settings(depth_policies=["licences"])) == {"tensorboard", "inference"}
    assert allowed(settings(depth_policies=[])) == {"tensorboard", "inference"}
    some = settings(depth_policies=["licences"], tasks=["command"])
    assert allowed(some) == {"command"}  # an admin's word, and nothing else
    assert allowed(settings(tasks=[])) == set()
    assert allowed(settings()) == set(KINDS)  # the control: nothing is limited
    with pytest.raises(UsageError, match="tasks"):
        settings(tasks=["jupyter"])
    with pytest.raises(Refused, match="its setting tasks may allow it"):
        resolve_task(
            settings(depth_policies=["x"]),
            kind="command",
            slots=1,
            pool=None,
            priority=None,
            project="p",
        )


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        ({"tau": 2.0}, True),
        ({"tau": 1}, True),
        ({"tau": 2.1}, False),
        ({"tau": float("inf")}, False),
        ({"tau": float("nan")}, False),
        ({"tau": True}, False),
        ({"tau": "1"}, False),
        ({"statistic": "x"}, False),
        ({}, False),
    ],
)
def test_a_search_declares_a_limit_of_memorization_that_is_no_laxer(
    limit: dict[str, Any], allowed: bool
) -> None:
    policy, wanted = settings(memorization_tau=2.0), Wanted(config=search(**limit), slots=1)
    if allowed:
        resolve(policy, wanted, project="p")
    else:
        with pytest.raises(Refused, match=r"search\.memorization\.tau"):
            resolve(policy, wanted, project="p")
    resolve(policy, Wanted(config={}, slots=1), project="p")  # no search
    resolve(ProjectSettings(), wanted, project="p")  # the control: without the limit


@pytest.mark.parametrize("default", [-3, 0, 4])
def test_nobody_goes_before_others_unless_an_admin_said_so(default: int) -> None:
    """Else whoever says 1000 stops the runs of all."""
    unset = settings(default_priority=default)
    for priority in (None, default, default - 1):
        resolve(unset, Wanted(config={}, slots=1, priority=priority), project="p")
    above = Wanted(config={}, slots=1, priority=default + 1)
    with pytest.raises(Refused, match=f"priority {default + 1} is above {default}"):
        resolve(unset, above, project="p")
    resolve(settings(default_priority=default, max_priority=9), above, project="p")


@given(
    st.integers(1, 20),
    st.integers(-5, 20),
    st.sampled_from(["cpu", "gpu", "big"]),
    st.integers(1, 20),
    st.integers(0, 10),
)
def test_what_is_beyond_a_limit_is_refused_and_nothing_else(
    slots: int, priority: int, pool: str, most: int, highest: int
) -> None:
    policy = settings(
        pools=["cpu", "gpu"],
        default_pool="cpu",
        max_priority=highest,
        max_slots=20,
        max_slots_per_experiment=most,
    )
    wanted = Wanted(config={}, slots=slots, pool=pool, priority=priority)
    wrong = [slots > most, priority > highest, pool == "big"]
    if not any(wrong):
        resolved = resolve(policy, wanted, project="p")
        assert (resolved.slots, resolved.pool, resolved.priority) == (slots, pool, priority)
        return
    with pytest.raises(Refused) as refused:
        resolve(policy, wanted, project="p")
    assert refused.value.what.count(";") + 1 == sum(wrong)


@on_both
def test_groups_and_their_roles_are_found_on_both_databases(session: Session) -> None:
    session.add(UserRow(name="ada", role="member", created=ADA.at))
    session.flush()
    for subject_kind, subject, until in (
        ("group", "given", "2026-11-25T00:00:00Z"),
        ("group", "others", None),
        ("user", "ada", None),
    ):
        grant = Grant(
            subject_kind=subject_kind,
            subject=subject,
            role="viewer",
            scope="project",
            place="default",
            until=until,
        )
        role_bindings.bind(session, grant, by=ADA)

    def subjects(at: str) -> set[str]:
        return {row.subject for row in role_bindings.of_caller(session, "ada", ["given"], at=at)}

    assert subjects("2026-11-24T23:59:59Z") == {"given", "ada"}
    assert subjects("2026-11-25T00:00:00Z") == {"ada"}
    assert not role_bindings.has_admin(session)
