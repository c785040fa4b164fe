"""``/v1/cases``: was a work used? Somebody asks, staff answer, and what follows is on record.

Somebody who is no supplier sends a text, a file or domains, and gets a number and a key. Staff
search the recorded data, look at what was found, and give a signed answer. Then they decide, and
link the version of a model whose attestation shows it. The service refuses a link that does not.

The requester reads the case's standing and its answer by the key, and nothing else. Names of
corpora are withheld unless staff release them.
"""

from __future__ import annotations

import codecs
from base64 import b64decode
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import AfterValidator, Field, model_validator
from sqlalchemy import ColumnElement, false, select, true
from sqlmodel import Session

from govray.errors import UsageError
from govray.governance.attestation.case_answer import Decision
from govray.governance.formats.document import NAME
from govray.platform.service.acting.case_answers import check_shows, missing_links, signed_answer
from govray.platform.service.acting.case_desk import CaseDesk, DeskDep
from govray.platform.service.acting.case_search import search_case
from govray.platform.service.acting.stated_domains import LONGEST, domain_of
from govray.platform.service.http.answer import Answer, Body
from govray.platform.service.http.problems import not_allowed, not_found, not_valid
from govray.platform.service.http.statuses import refusing
from govray.platform.service.identity.access import Caller, needs
from govray.platform.service.identity.pagination import Listing, PageDep, columns_of, filtered
from govray.platform.service.identity.repeats import OnceWithSecretDep
from govray.platform.service.identity.rights import everywhere, may
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.attestations import DSSE, ENVELOPE, trust_roots
from govray.platform.service.routes.models import VERSION
from govray.platform.service.visible.lookup import Finder
from govray.platform.service.visible.visible_models import find_model, find_version
from govray.platform.store import cases as store
from govray.platform.store.cases import LONGEST_CONTACT, LONGEST_REASON, MOST_BYTES, MOST_DOMAINS
from govray.platform.store.database import begin_writing
from govray.platform.store.states import CaseState
from govray.platform.store.tables import RightsCase

router = APIRouter(tags=["cases"])

READERS = needs("case")

CasePath = Annotated[
    str,
    Path(
        pattern="^c-[0-9a-f]{12}$",
        description="The case's number.",
        examples=["c-0123456789ab"],
    ),
]

EXCERPT = 2000
"""Characters of the text that staff are shown."""

_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_CASE = "c-0123456789ab"


def _printable(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("should be one line of printable characters")
    return text.strip()


def _encodable(text: str) -> str:
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("should be text without NUL and surrogates")
    return text


Line = Annotated[str, AfterValidator(_printable)]
Words = Annotated[str, AfterValidator(_encodable)]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="Govray-Case-Key",
        max_length=128,
        description="The requester's key, from the answer that gave the number.",
    ),
]


class AskedCase(Body):
    """What somebody asks: about a text, a file's bytes, or where data came from."""

    contact: Annotated[Line, Field(max_length=LONGEST_CONTACT)] = Field(
        description="Who asks, and where to answer. Staff of the service read it."
    )
    model: Annotated[str | None, Field(pattern=NAME)] = Field(
        None,
        description="A registered model, in all versions. Without it: all public models.",
    )
    text: Annotated[str | None, Field(min_length=1, max_length=MOST_BYTES)] = Field(
        None, description="The work, or a part of it. Kept until the case is closed."
    )
    content: Annotated[str | None, Field(max_length=6_000_000, pattern=_BASE64)] = Field(
        None, description="A file's bytes, in base64, in place of a text."
    )
    sources: (
        Annotated[list[Annotated[str, Field(max_length=LONGEST)]], Field(max_length=MOST_DOMAINS)]
        | None
    ) = Field(None, description="URLs or domains, in place of a text. Domains are looked for.")

    @model_validator(mode="after")
    def _asks_one_thing(self) -> AskedCase:
        given = [each for each in (self.text, self.content, self.sources) if each]
        if len(given) != 1:
            raise ValueError("give one of text, content and sources")
        return self

    def bytes_asked(self) -> bytes | None:
        if self.text is not None:
            data = self.text.encode(errors="surrogatepass")
        elif self.content is not None:
            data = b64decode(self.content)
        else:
            return None
        if len(data) > MOST_BYTES:
            raise not_valid("body", f"{len(data):,} bytes are more than {MOST_BYTES:,}")
        return data

    def domains_asked(self) -> tuple[str, ...]:
        try:
            return tuple(sorted({domain_of(each) for each in self.sources or ()}))
        except UsageError as error:
            raise not_valid("body.sources", error.what, error.do) from None


class ReceivedCase(Answer):
    """A case that was received. The key is shown here, and never again."""

    case: str = Field(description="Its number.")
    key: str = Field(description="Shows the case's standing and its answer to whoever has it.")
    received: str


class LinkedVersion(Answer):
    """A version whose attestation shows what was decided; the service checked that it does."""

    model: str
    version: str
    attestation: str


class CaseStanding(Answer):
    """How a case stands, as its requester sees it."""

    case: str = Field(validation_alias="id", description="Its number.")
    state: CaseState
    model: str | None = Field(description="None: all public models.")
    received: str
    answered: str | None = Field(description="When it was answered; the answer is signed.")
    decision: Decision | None
    reason: str | None
    decided: str | None
    links: list[LinkedVersion]
    closed: str | None = Field(description="From then on what was asked about is no longer kept.")


class CaseItem(Answer):
    """A case of the list."""

    id: str = Field(description="Its number.", examples=[_CASE])
    state: CaseState
    model: str | None = Field(description="None: all public models.")
    contact: str
    requester: str = Field(description="The user that asked; `public` without a token.")
    received: str
    decision: str | None


class StaffCase(CaseItem):
    """A case as staff see it, with the names of corpora."""

    sha256: str | None = Field(description="Of what was asked about, if that is bytes.")
    size: int | None
    domains: list[str]
    excerpt: str | None = Field(
        description=f"The first {EXCERPT} characters; none where it is no text, or closed."
    )
    searched: str | None
    found: dict[str, Any] = Field(description="What the last search found; `{}` before it.")
    released: list[str] = Field(description="Corpora that the answer names.")
    answered: str | None
    reason: str | None
    decided: str | None
    decided_by: str | None
    links: list[LinkedVersion]
    missing: list[str] = Field(
        description="Models that something was found in, for which no version is linked."
    )
    closed: str | None


class Released(Body):
    """Which corpora an answer names."""

    release: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=500)] = Field(
        default_factory=list,
        description="Names of corpora. Of all others their class is told, and no name.",
    )


class CaseDecision(Body):
    """What is decided in a case."""

    decision: Decision = Field(
        description="`removed`: an adapter is deleted. `revoked`: the corpus is revoked, and a "
        "later version is without it. `refused`: neither. `nothing_found`: there is nothing to do."
    )
    reason: Annotated[Words, Field(min_length=1, max_length=LONGEST_REASON)] = Field(
        description="The requester reads it."
    )


class NewLink(Body):
    """A version to link."""

    model: Annotated[str, Field(pattern=NAME)]
    version: Annotated[str, Field(pattern=VERSION)]


@router.post("/cases", status_code=201)
def receive(visit: OnceWithSecretDep, asked: AskedCase, desk: DeskDep) -> ReceivedCase:
    """Ask whether a work was used. Without a token only where the operator allows it.

    What you send is kept until the case is closed. Then its SHA-256 stays.
    """
    content, domains = asked.bytes_asked(), asked.domains_asked()
    if asked.model is not None:
        find_model(visit.session, visit.caller, asked.model)
    desk.admit(visit.request, visit.caller)
    new = store.NewCase(contact=asked.contact, model=asked.model, content=content, domains=domains)
    row, key = store.receive(visit.session, new, by=visit.by)
    told = ReceivedCase(case=row.id, key=key, received=row.received)
    visit.session.commit()
    return told


@router.get("/cases", dependencies=[READERS])
def listing(
    visit: VisitDep,
    _desk: DeskDep,
    page: PageDep,
    state: Annotated[CaseState | None, Query(description="In this state.")] = None,
) -> Listing[CaseItem]:
    """The cases that you may read, the latest first. For staff and auditors."""
    c = RightsCase
    statement = select(*columns_of(c, CaseItem)).where(cases(visit.caller))
    statement = filtered(statement, (c.state, state))
    order = (c.received, c.id)
    return page.listing(visit.session, statement, order, CaseItem.model_validate, descending=True)


@router.get("/cases/{case}", dependencies=[READERS])
def case(visit: VisitDep, case: CasePath, _desk: DeskDep) -> StaffCase:
    """A case with what was found for it. For staff and auditors."""
    row = find_case(visit.session, visit.caller, case)
    told = staff_case(visit.session, row)
    store.shown(visit.session, row, by=visit.by)
    visit.session.commit()
    return told


@router.get("/cases/{case}/standing")
def standing(
    visit: VisitDep, case: CasePath, _desk: DeskDep, key: KeyHeader = None
) -> CaseStanding:
    """How a case stands. For its requester, by the key, and for who reads the case."""
    row = shown_case(visit, case, key)
    told = CaseStanding.model_validate(row)
    store.shown(visit.session, row, by=visit.by)
    visit.session.commit()
    return told


@router.get("/cases/{case}/answer", response_class=Response, responses={200: ENVELOPE})
def answer(visit: VisitDep, case: CasePath, _desk: DeskDep, key: KeyHeader = None) -> Response:
    """The signed answer. For the requester, by the key, and for who reads the case."""
    return Response(answer_bytes(visit, case, key), media_type=DSSE)


def answer_bytes(visit: Visit, case: str, key: str | None) -> bytes:
    """The envelope of the answer; that it was read is logged."""
    row = shown_case(visit, case, key)
    if row.answer is None:
        raise not_found("answer to case", case, "It has none yet; look again later")
    data = row.answer
    store.shown(visit.session, row, by=visit.by)
    visit.session.commit()
    return data


@router.post("/cases/{case}:search", dependencies=[READERS], responses=refusing(409))
def search(visit: VisitDep, case: CasePath, desk: DeskDep) -> StaffCase:
    """Look into the recorded data for a case. For admins and data stewards.

    The requester is told nothing of it. The first search in a corpus reads all its records, and
    may take minutes.
    """
    row = _decidable(visit, case)
    store.check_step(row, "search")
    with desk.searching() as sources:
        result = search_case(visit.session, visit.caller, visit.audit, row, sources)
    visit.session.rollback()  # what was read is old by now
    begin_writing(visit.session)
    visit.session.refresh(row)
    store.searched(visit.session, row, result, by=visit.by)
    visit.session.commit()
    return staff_case(visit.session, row)


@router.post("/cases/{case}:answer", dependencies=[READERS], responses=refusing(409))
def give_answer(visit: VisitDep, case: CasePath, new: Released, desk: DeskDep) -> StaffCase:
    """Sign the answer, which the requester sees from now on. For admins and data stewards."""
    row = _decidable(visit, case, writing=True)
    store.check_step(row, "answer")
    envelope = signed_answer(
        row,
        desk.signer,
        _roots(visit.session),
        released=new.release,
        at=visit.request.app.state.clock(),
    )
    store.answered(visit.session, row, envelope, new.release, by=visit.by)
    visit.session.commit()
    return staff_case(visit.session, row)


@router.post("/cases/{case}:decide", dependencies=[READERS], responses=refusing(409))
def decide(visit: VisitDep, case: CasePath, new: CaseDecision, desk: DeskDep) -> StaffCase:
    """Decide on a case that is answered. For admins and data stewards.

    `refused` and `nothing_found` close it. The others wait for a version that shows them.
    """
    row = _decidable(visit, case, writing=True)
    store.decided(visit.session, row, new.decision, new.reason, by=visit.by)
    if new.decision in ("refused", "nothing_found"):
        _close(visit, desk, row)
    visit.session.commit()
    return staff_case(visit.session, row)


@router.post("/cases/{case}:link", dependencies=[READERS], responses=refusing(409))
def link(visit: VisitDep, case: CasePath, new: NewLink, desk: DeskDep) -> StaffCase:
    """Link a version whose attestation shows what was decided. For admins and data stewards.

    Refused, unless it does: the corpora are not in its manifest and are revoked, or their adapters
    are stated as removed. The last one that is missing closes the case.
    """
    row = _decidable(visit, case, writing=True)
    store.check_step(row, "link")
    found = find_version(visit.session, visit.caller, new.model, new.version)
    state = visit.request.app.state
    shown = check_shows(visit.session, row, found, state.revocations, at=state.clock())
    store.linked(visit.session, row, shown, by=visit.by)
    visit.session.flush()
    if not missing_links(visit.session, row):
        _close(visit, desk, row)
    visit.session.commit()
    return staff_case(visit.session, row)


def _close(visit: Visit, desk: CaseDesk, row: RightsCase) -> None:
    """Sign the answer again with what was decided, and close the case."""
    envelope = signed_answer(
        row,
        desk.signer,
        _roots(visit.session),
        released=row.released,
        outcome=store.outcome_of(row),
        at=visit.request.app.state.clock(),
    )
    store.closed(visit.session, row, envelope, by=visit.by)


def cases(caller: Caller) -> ColumnElement[bool]:
    """Condition on `RightsCase`: those that the caller may read: a case has somebody's contact, and
    names corpora that its answer withholds."""
    return true() if everywhere(caller, "case") else false()


find_case = Finder("case", RightsCase, "id", cases, "See the list of cases")


def shown_case(visit: Visit, case: str, key: str | None) -> RightsCase:
    """The case, for its requester or for who reads it. Raises 404."""
    if key is not None and (row := store.of_key(visit.session, case, key)) is not None:
        return row
    if not everywhere(visit.caller, "case"):
        # Like a wrong key: nobody is told which numbers there are.
        raise not_found("case", case, "Give its key", hidden=True)
    return find_case(visit.session, visit.caller, case)


def staff_case(session: Session, row: RightsCase) -> StaffCase:
    missing = missing_links(session, row) if row.decision in ("removed", "revoked") else []
    fields = {name: getattr(row, name) for name in StaffCase.model_fields if hasattr(row, name)}
    return StaffCase(**fields, excerpt=excerpt(row.content), missing=missing)


def excerpt(content: bytes | None) -> str | None:
    """The beginning of what was asked about, if it is text."""
    if content is None:
        return None
    try:
        # A character that the cut goes through is left out, and nothing else is.
        text, _ = codecs.utf_8_decode(content[: 4 * EXCERPT], "strict", False)
    except ValueError:
        return None
    return text[:EXCERPT]


def _decidable(visit: Visit, case: str, *, writing: bool = False) -> RightsCase:
    """The case, if the caller decides on it; ``writing``: nobody else changes it meanwhile."""
    row = find_case(visit.session, visit.caller, case)
    if not may(visit.caller, "decide", None):
        raise not_allowed(
            "Cases are decided by admins and data stewards of the organisation",
            "Use a token of one, with the scope write",
        )
    if writing:
        begin_writing(visit.session)
        visit.session.refresh(row)
    return row


def _roots(session: Session) -> Any:
    """The trust roots of the store. Which there are is the operator's to know."""
    return trust_roots(session, Caller(name=store.PUBLIC, account="auditor"))
