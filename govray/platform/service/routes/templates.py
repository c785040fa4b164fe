"""Templates: experiment files of a project that others start from.

Whoever sees the project reads them. Its data stewards and admins write them, since a template names
the corpora and the policy.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlmodel import Session, col

from govray.errors import UsageError
from govray.governance.submission.yaml_overrides import (
    LONGEST_OVERRIDE,
    LONGEST_TEXT,
    MOST_OVERRIDES,
)
from govray.platform.service.acting.project_rules import (
    NowDep,
    PlaceName,
    changed_by,
    demand,
    find_project,
)
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.problems import Problem, not_found
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import CallerDep, require
from govray.platform.service.identity.pagination import Listing, PageDep
from govray.platform.store import project_templates, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.tenancy import NAME

router = APIRouter(
    prefix="/projects/{project}/templates",
    tags=["projects"],
    dependencies=[Depends(require("admin", "engineer", "auditor", "supplier", "member"))],
)

TemplateName = Annotated[
    str, Path(pattern=f"^{NAME}$", description="The template's name.", examples=["small-gpt"])
]


class Template(Answer):
    """A template without its text."""

    project: str
    name: str
    changed: str
    user: str = Field(description="Who changed it last.")


class TemplateText(Template):
    """A template."""

    text: str = Field(description="The experiment file.")


class NewText(Body):
    """The experiment file that a template is."""

    text: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class Overrides(Body):
    """What is to be otherwise than in the template."""

    set: list[Annotated[str, Field(max_length=LONGEST_OVERRIDE)]] = Field(
        default_factory=list,
        max_length=MOST_OVERRIDES,
        description="`path=value`, each applied after the one before; `+path=value` adds.",
    )


class Filled(BaseModel):
    """An experiment file, made of a template and overrides."""

    text: str


@router.get("")
def templates(
    project: PlaceName, session: SessionDep, caller: CallerDep, page: PageDep
) -> Listing[Template]:
    """The templates of a project, by name."""
    find_project(session, caller, project)
    row = tables.Template
    statement = select(row).where(col(row.project) == project)
    kept, cursor = page.rows(session, statement, (col(row.name),), (str,))
    return Listing(items=[Template.model_validate(each) for each in kept], next=cursor)


@router.get("/{name}")
def template(
    project: PlaceName, name: TemplateName, session: SessionDep, caller: CallerDep
) -> TemplateText:
    """One template, with its text."""
    return TemplateText.model_validate(find_template(session, caller, project, name))


@router.put("/{name}")
def put(
    project: PlaceName,
    name: TemplateName,
    new: NewText,
    session: SessionDep,
    caller: CallerDep,
    at: NowDep,
) -> TemplateText:
    """Make a template, or replace it. For data stewards and admins of the project."""
    row = demand(session, caller, "template", project, at=at)
    begin_writing(session)
    try:
        made = project_templates.put(session, row, name, new.text, by=changed_by(caller, at))
    except UsageError as error:
        raise Problem(422, "Not valid", f"body.text: {error}", error.do) from None
    session.commit()
    return TemplateText.model_validate(made)


@router.delete("/{name}", status_code=204)
def drop(
    project: PlaceName, name: TemplateName, session: SessionDep, caller: CallerDep, at: NowDep
) -> None:
    """Delete a template. For data stewards and admins of the project."""
    demand(session, caller, "template", project, at=at)
    find_template(session, caller, project, name)
    project_templates.drop(session, project, name, by=changed_by(caller, at))
    session.commit()


@router.post("/{name}:fill")
def fill(
    project: PlaceName,
    name: TemplateName,
    overrides: Overrides,
    session: SessionDep,
    caller: CallerDep,
) -> Filled:
    """The experiment file that a template makes with overrides. Nothing is submitted."""
    row = find_template(session, caller, project, name)
    try:
        return Filled(text=project_templates.filled(row, overrides.set))
    except UsageError as error:
        raise Problem(422, "Not valid", f"body.set: {error}", error.do) from None


def find_template(session: Session, caller: CallerDep, project: str, name: str) -> tables.Template:
    """The template. Raises 404."""
    find_project(session, caller, project)
    row = session.get(tables.Template, (project, name))
    if row is None:
        raise not_found("template", name, "See the project's templates")
    return row
