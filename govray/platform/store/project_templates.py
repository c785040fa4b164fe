"""Templates: experiment files of a project, from which others start with a few overrides.

Functions take a session and never commit. Times are arguments. Each change has its entry in the
audit log, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlmodel import Session, select

from govray.errors import Refused, UsageError
from govray.governance.submission.yaml_overrides import overridden_text, read_mapping
from govray.platform.store.audit_log import ChangedBy, log
from govray.platform.store.tables import Project, Template
from govray.platform.store.tenancy import check_name

MOST_TEMPLATES = 200
"""Of one project."""


def put(session: Session, project: Project, name: str, text: str, *, by: ChangedBy) -> Template:
    """Make a template, or replace it. Raises `Refused`: the project is archived, or has too
    many."""
    check_name(name, "template")
    read_mapping(text, name=f"template {name}")
    if project.archived:
        raise Refused("the project is archived", where=f"project {project.name}")
    row = session.get(Template, (project.name, name))
    if row is None:
        there = select(Template.name).where(Template.project == project.name)
        if len(session.exec(there.limit(MOST_TEMPLATES)).all()) >= MOST_TEMPLATES:
            raise Refused(f"it has {MOST_TEMPLATES} templates", where=f"project {project.name}")
        row = Template(project=project.name, name=name, text=text, changed=by.at, user=by.user)
    row.text, row.changed, row.user = text, by.at, by.user
    session.add(row)
    log(session, by, "template.put", f"project {project.name}", {"template": name})
    session.flush()
    return row


def drop(session: Session, project: str, name: str, *, by: ChangedBy) -> None:
    session.delete(get(session, project, name))
    log(session, by, "template.drop", f"project {project}", {"template": name})
    session.flush()


def get(session: Session, project: str, name: str) -> Template:
    row = session.get(Template, (project, name))
    if row is None:
        raise UsageError(
            "there is no such template", where=f"{project[:80]} {name[:80]}", do="See the list"
        )
    return row


def filled(row: Template, overrides: Iterable[str]) -> str:
    """The experiment file that a template and ``path=value`` overrides make."""
    return overridden_text(row.text, overrides, name=f"template {row.name}")
