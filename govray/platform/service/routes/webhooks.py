"""Webhooks and what was told: for admins. What happened, as it was noticed, for staff.

`govray alerts run` sends; the service only keeps what is to be sent. A webhook's secret is in the
answer that makes it, and in no other.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlmodel import select

from govray.errors import UsageError
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.problems import not_found
from govray.platform.service.http.session import SessionDep
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.pagination import Listing, PageDep, filtered
from govray.platform.service.identity.repeats import OnceWithSecretDep
from govray.platform.service.identity.visit import VisitDep
from govray.platform.store import tables, webhooks
from govray.platform.store.states import DeliveryState
from govray.platform.store.store_secret import indexing_key
from govray.platform.store.webhooks import probe

router = APIRouter(tags=["alerts"])

ADMIN = needs("manage", whole=True)

_WEBHOOK = "w-0123456789ab"
_EVENT = "7c" * 32
WebhookId = Annotated[
    str, Path(pattern="^w-[0-9a-f]{12}$", description="Of the webhook.", examples=[_WEBHOOK])
]
EventId = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="Of the event.", examples=[_EVENT])
]


class Webhook(Answer):
    """An address that is told of events."""

    id: str
    url: str
    kinds: list[str] = Field(description="What it is told of.")
    project: str | None = Field(default=None, description="Only what belongs to this project.")
    created: str = Field(description="It is told of what happens from then on.")
    user: str


class MadeWebhook(Webhook):
    """A new webhook, with its secret."""

    secret: str = Field(description="Signs what is sent. It is not shown again.")


class NewWebhook(Body):
    """A webhook to make."""

    url: Annotated[
        str,
        Field(max_length=webhooks.LONGEST_URL, description="https. No user name, no fragment."),
    ]
    events: Annotated[
        list[webhooks.Kind], Field(max_length=len(webhooks.KINDS), description="None: all of them.")
    ] = Field(default_factory=list)
    project: Annotated[
        str | None, Field(max_length=200, description="Only what belongs to this project.")
    ] = None


class Happened(Answer):
    """Something that happened, as it was noticed."""

    id: str
    kind: str
    subject: str = Field(description="The run, experiment, task, corpus or attestation.")
    at: str
    noticed: str
    project: str | None = None
    data: dict[str, Any]


class SentEvent(Answer):
    """One event for one webhook."""

    webhook: str
    alert: str = Field(description="The event's id.")
    state: DeliveryState
    tries: int
    due: str = Field(description="When it is tried next, if it is pending.")
    status: int | None = Field(default=None, description="The receiver's last answer.")
    why: str | None = Field(default=None, description="Why there was none.")
    delivered: str | None = None


class Removed(Answer):
    """A webhook that is no more."""

    id: str


@router.get("/alerts", dependencies=[needs("view", whole=True)])
def happened(
    session: SessionDep,
    page: PageDep,
    kind: Annotated[webhooks.Kind | None, Query(description="Only events of this kind.")] = None,
    project: Annotated[
        str | None, Query(max_length=200, description="Only events of this project.")
    ] = None,
) -> Listing[Happened]:
    """What happened and was noticed, the latest first. For staff."""
    row = tables.Alert
    statement = filtered(select(row), (row.kind, kind), (row.project, project))
    order = (row.at, row.id)
    return page.listing(session, statement, order, Happened.model_validate, descending=True)


@router.get("/webhooks", dependencies=[ADMIN])
def listing(session: SessionDep, page: PageDep) -> Listing[Webhook]:
    """The webhooks, without their secrets. For admins."""
    row = tables.WebhookRow
    return page.listing(session, select(row), (row.id,), Webhook.model_validate)


@router.post("/webhooks", status_code=201, dependencies=[ADMIN])
def add(visit: OnceWithSecretDep, new: NewWebhook) -> MadeWebhook:
    """Make a webhook, and show its secret, once. For admins."""
    key = indexing_key(visit.session, visit.request.app.state.settings.store)
    row, secret = webhooks.add(
        visit.session, url=new.url, kinds=new.events, project=new.project, key=key, by=visit.by
    )
    visit.session.commit()
    return MadeWebhook(**Webhook.model_validate(row).model_dump(), secret=secret)


@router.delete("/webhooks/{webhook}", dependencies=[ADMIN])
def remove(visit: VisitDep, webhook: WebhookId) -> Removed:
    """Remove a webhook, with what was still to be sent to it. For admins."""
    webhooks.remove(visit.session, _find(visit.session, webhook), by=visit.by)
    visit.session.commit()
    return Removed(id=webhook)


@router.post("/webhooks/{webhook}:test", dependencies=[ADMIN])
def try_it(visit: VisitDep, webhook: WebhookId) -> SentEvent:
    """Put a test event into line for a webhook. For admins."""
    by = visit.by
    event = probe(webhook, at=by.at, number=secrets.token_hex(8))
    row = webhooks.send_test(visit.session, _find(visit.session, webhook), event, by=by)
    visit.session.commit()
    return SentEvent.model_validate(row)


@router.get("/webhooks/{webhook}/deliveries", dependencies=[ADMIN])
def deliveries(
    webhook: WebhookId,
    session: SessionDep,
    page: PageDep,
    state: Annotated[
        DeliveryState | None, Query(description="`DEAD`: those that were given up.")
    ] = None,
) -> Listing[SentEvent]:
    """What was or is to be sent to a webhook, by event. For admins."""
    _find(session, webhook)
    row = tables.Delivery
    statement = filtered(select(row).where(row.webhook == webhook), (row.state, state))
    return page.listing(session, statement, (row.alert,), SentEvent.model_validate)


@router.post("/webhooks/{webhook}/deliveries/{event}:resend", dependencies=[ADMIN])
def resend(visit: VisitDep, webhook: WebhookId, event: EventId) -> SentEvent:
    """Let an event be sent again, such as one that was given up. For admins."""
    found = _find(visit.session, webhook)
    try:
        row = webhooks.resend(visit.session, found, event, by=visit.by)
    except UsageError:
        raise not_found("delivery", event, "See the webhook's deliveries") from None
    visit.session.commit()
    return SentEvent.model_validate(row)


def _find(session: SessionDep, webhook: str) -> tables.WebhookRow:
    """The webhook that the path names. Raises 404."""
    row = session.get(tables.WebhookRow, webhook)
    if row is None:
        raise not_found("webhook", webhook, "See the list of webhooks")
    return row
