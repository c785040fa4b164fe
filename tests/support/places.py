"""A library whose runs lie in projects, and people with roles bound to parts of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlmodel import Session

from govray.governance.formats.document import format_time
from govray.platform.service.identity import tokens
from govray.platform.store import queue_entries, role_bindings, tenancy
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.role_bindings import Grant
from govray.platform.store.states import CheckpointState, ExperimentState, RunState
from govray.platform.store.tables import CheckpointRow, DecisionRow, MetricRow
from tests.support.happened import ZERO, experiment, run_row
from tests.support.library import Library
from tests.support.people import NOW

RUNS = {"first": "vision", "guarded": "speech", "second": "payroll"}
"""Model → the project of its run."""
WORKSPACES = {"vision": "research", "speech": "research", "payroll": "finance"}
UNTIL = format_time(NOW + timedelta(days=1))
BY = ChangedBy(user="admin", at=format_time(NOW - timedelta(days=9)))

GRANTS: dict[str, tuple[tuple[str, str, str, str | None], ...]] = {
    "viewer": (("viewer", "project", "vision", None),),
    "space-viewer": (("viewer", "workspace", "research", None),),
    "wide-viewer": (("viewer", "organisation", "", None),),
    "bound-engineer": (("engineer", "project", "vision", None),),
    "steward": (("steward", "project", "vision", None),),
    "bound-auditor": (("auditor", "project", "vision", UNTIL),),
    "bound-admin": (("admin", "project", "vision", None),),
    "space-admin": (("admin", "workspace", "research", UNTIL),),
}
"""Member → role, scope, place and end."""
READS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("viewer", "bound-engineer", "steward", "bound-auditor", "bound-admin"),
        frozenset({"first"}),
    ),
    **dict.fromkeys(("space-viewer", "space-admin"), frozenset({"first", "guarded"})),
    "wide-viewer": frozenset(RUNS),
}
"""Member → the models that it reads whole."""


@dataclass(frozen=True)
class Places:
    """The library, and the submission of each project."""

    library: Library
    entries: dict[str, str]


def placed(library: Library) -> Places:
    """Put the runs of a library into projects, and make everyone of `GRANTS` a token."""
    service, made = library.service, {}
    with Session(service.engine) as session:
        for name in sorted(set(WORKSPACES.values())):
            tenancy.make_workspace(session, name, by=BY)
        for project, workspace in WORKSPACES.items():
            tenancy.make_project(session, project, workspace=workspace, by=BY)
            made[project] = queue_entries.submit(
                session,
                kind="train",
                name=f"gpt-{project}",
                project=project,
                config="seed: 1",
                slots=1,
                by=BY,
            ).id
        for model, project in RUNS.items():
            _run(session, model, project)
        for name, grants in GRANTS.items():
            service.tokens[name] = tokens.new(
                session, name, role="member", scopes=("admin",), at=NOW
            )
            for role, scope, place, until in grants:
                grant = Grant(
                    subject_kind="user",
                    subject=name,
                    role=role,
                    scope=scope,
                    place=place,
                    until=until,
                )
                role_bindings.bind(session, grant, by=BY)
        session.commit()
    return Places(library, made)


def _run(session: Session, model: str, project: str) -> None:
    """An experiment with one ended run, named as the run that the model's attestation names."""
    times = {"started": "2026-11-20T08:00:00Z", "finished": "2026-11-20T09:00:00Z"}
    experiment(
        session,
        f"e-{model}",
        name=f"gpt-{project}",
        state=ExperimentState.COMPLETED,
        project=project,
        user=f"{project}-user",
        storage="runs",
        **times,
    )
    run = f"run-{model}"
    run_row(
        session,
        run,
        RunState.COMPLETED,
        experiment=f"e-{model}",
        folder=f"runs/{run}",
        step=1,
        max_steps=1,
        worker_seconds=3600,
        **times,
    )
    session.add_all(
        [
            MetricRow(run=run, group="training", name="loss", step=1, attempt=0, value=1.0),
            CheckpointRow(run=run, step=1, state=CheckpointState.COMPLETED, digest=ZERO),
            DecisionRow(
                run=run, source="events", number=0, kind="stop", reason="asked", evidence={}
            ),
        ]
    )
