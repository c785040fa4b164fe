"""What a caller may read: the one rule, for routes of ``/v1`` and for pages.

Staff reads everything. Everyone reads what is public. A supplier reads that, its own corpora, and
of the models that used them what concerns those. Who has a role in a workspace, a project or a
model reads what lies in it (`within`), and nothing elsewhere. What a caller may not read does not
exist for it: the same 404, the same text, from the same query.

Here are conditions for queries, functions that find one thing or raise that 404, and what routers
demand of a caller. No other module of the service decides by the caller's role what may be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path
from sqlalchemy import ColumnElement, Row, and_, false, or_, select, true
from sqlmodel import Session, SQLModel, col

from govray.errors import UsageError
from govray.governance.policy.route import ADAPTER
from govray.service.access import require
from govray.service.caller import STAFF, Caller, Role
from govray.service.places import everywhere, of_runs
from govray.service.places import in_projects as in_projects
from govray.service.places import is_staff as is_staff
from govray.service.places import is_within as is_within
from govray.service.places import within as within
from govray.service.problems import Problem, not_found
from govray.service.roles import places
from govray.store import lineage, tables
from govray.store.lineage import Lineage
from govray.store.run_owners import RUN_KINDS
from govray.store.semantic_version import parse_version

DigestPath = Annotated[
    str,
    Path(
        pattern="^(sha256:)?[0-9a-f]{64}$",
        description="A digest: `sha256:` and 64 hex digits, or these alone.",
        examples=["sha256:" + "7c" * 32],
    ),
]

_CORPUS_ROLES: tuple[Role, ...] = (*STAFF, "supplier")
AUDITING: tuple[Role, ...] = ("admin", "auditor")


def reads_runs(caller: Caller) -> bool:
    """Whether there may be runs that the caller reads, as `RUN_READERS`."""
    found = places(caller, "view")
    return is_staff(caller) or any(found[r] for r in ("organisation", "workspace", "project"))


def reads_corpora(caller: Caller) -> bool:
    """Whether there may be corpora that the caller reads, as `CORPUS_READERS`."""
    return caller.role in _CORPUS_ROLES or any(places(caller, "data").values())


def is_admin(caller: Caller) -> bool:
    """Whether the caller is an admin of the organisation."""
    return caller.role == "admin"


def administers(caller: Caller) -> bool:
    """Whether the caller is that, with a token that is good for it."""
    return is_admin(caller) and caller.has("admin")


def watches(caller: Caller) -> bool:
    """Whether the caller sees who is in the organisation, and has which roles."""
    return not caller.roles.isdisjoint(AUDITING)


def reads_audit(caller: Caller) -> bool:
    """Whether there may be entries of the audit log that the caller reads, as `AUDITORS`."""
    found = places(caller, "audit")
    return watches(caller) or any(
        found[r] for r in ("organisation", "workspace", "project")
    )


STAFF_ONLY = Depends(require(*STAFF))
"""What a router demands for what is nobody's alone: the numbers of the service itself."""

RUN_READERS = Depends(require(*STAFF, bound=reads_runs))
"""What a router demands for runs, what they measured and decided, and for usage."""

CORPUS_READERS = Depends(require(*_CORPUS_ROLES, bound=reads_corpora))
"""What a router demands for corpora and their records."""

AUDITORS = Depends(require(*AUDITING, bound=reads_audit))
"""What a router demands for the audit log."""

SEE_MODELS = "See the list of models"


def full_digest(text: str) -> str:
    """The digest as it stands in the store."""
    return "sha256:" + text.removeprefix("sha256:")


def absent(caller: Caller, what: str, name: str, do: str | None = None) -> Problem:
    """404 for what the caller may not read, whether or not it is there.

    In both cases the audit log records a supplier's attempt, and that of who has roles in parts of
    the organisation only. So attempts to read others' data are
    noticed, and take as long as attempts to read what does not exist.
    """
    return not_found(what, name, do, hidden=caller.role in ("supplier", "member"))


def reads_public_only(caller: Caller) -> bool:
    """Whether the caller reads what everyone reads and no more, so that caches may keep it."""
    return caller.role == "public"


def experiments(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Experiment`: those that the caller may read."""
    return in_projects(caller, tables.Experiment.project)


def trials(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Trial`: those of `experiments`."""
    return of_runs(caller, tables.Trial.id, "view")


def submissions(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Submission`: those that the caller may read."""
    return in_projects(caller, tables.Submission.project)


def reads_file(session: Session, caller: Caller, row: tables.Submission) -> bool:
    """Whether the caller may read the file of a submission that it may read.

    An experiment's file is in its run's record, for all who read that. A task's file has the words
    of a command: for who submitted it, and who may submit in its project.
    """
    if row.kind in RUN_KINDS or row.user == caller.name:
        return True
    s = tables.Submission
    found = select(col(s.id)).where(col(s.id) == row.id, in_projects(caller, s.project, "task-file"))
    return session.execute(found).first() is not None


def reads_whole(caller: Caller, attestation: Any) -> bool:
    """Whether the caller may read all of a row with the column ``public`` of `Attestation`.

    The row may have the condition `within` as a column of that name.
    """
    return attestation.public or reads_registry(caller, attestation)


def reads_entries(session: Session, caller: Caller, run: str) -> bool:
    """Whether the caller may read a ledger's entries: they name all corpora of a step."""
    if is_staff(caller) or not caller.bound:
        return is_staff(caller)
    t, a = tables.Trial, tables.Attestation
    own = select(col(t.id)).where(col(t.id) == run, trials(caller))
    attested = select(col(a.run)).where(col(a.run) == run, within(caller))
    return session.execute(own.union_all(attested).limit(1)).first() is not None


def reads_registry(caller: Caller, row: Any) -> bool:
    """Whether the caller may read more of a version than its name and attestation.

    ``row`` may have the condition `within` on its attestation as a column of that name.
    """
    return is_staff(caller) or bool(getattr(row, "within", False))


def supplied(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those of the supplier that the caller is; all, for staff."""
    return _of_supplier(caller, tables.Corpus.supplier)


def own_corpora(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Corpus`: those whose rows the caller may read, as far as `uses` says."""
    condition = supplied(caller)
    if _reads_data(caller) is None:
        return condition
    used = select(col(tables.CorpusUse.corpus)).where(uses(caller))
    return true() if _reads_data(caller) else condition | col(tables.Corpus.name).in_(used)


def uses(caller: Caller) -> ColumnElement[bool]:
    """Condition on `CorpusUse`: those that the caller may read, of corpora that it may read."""
    reads = _reads_data(caller)
    if reads is None or reads:
        return true()
    c, u, a = tables.Corpus, tables.CorpusUse, tables.Attestation
    own = select(col(c.name)).where(supplied(caller))
    attested = select(col(a.digest)).where(within(caller, "data"))
    return or_(col(u.corpus).in_(own), col(u.attestation).in_(attested))


def _reads_data(caller: Caller) -> bool | None:
    """Whether roles let the caller read all corpora; None: no role says anything of corpora."""
    found = places(caller, "data")
    if is_staff(caller) or not any(found.values()):
        return None
    return bool(found["organisation"])


def credentials(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Credential`: of a corpus that changed hands, not its former supplier's."""
    condition = _of_supplier(caller, tables.Credential.supplier)
    reads = _reads_data(caller)
    if reads is None:
        return condition
    used = select(col(tables.CorpusUse.credential)).where(uses(caller))
    return true() if reads else condition | col(tables.Credential.digest).in_(used)


def cells(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Coverage`: another corpus's adapter bears that corpus's name."""
    if is_staff(caller):
        return true()
    c, a = tables.Coverage, tables.Attestation
    condition = col(c.direct).is_(True) | ~col(c.layer_group).startswith(ADAPTER)
    if not caller.bound:
        return condition
    return condition | col(c.attestation).in_(select(col(a.digest)).where(within(caller)))


def audit_entries(caller: Caller) -> ColumnElement[bool]:
    """Condition on `AuditEntry`: what was done to places of the caller, and to what lies in them.

    Entries of reads name addresses, not places: they are for auditors of the organisation.
    """
    if watches(caller):
        return true()
    p, s, w = tables.Project, tables.Submission, tables.Workspace
    found = places(caller, "audit")
    spaces = col(w.name).in_(sorted(found["workspace"])) if not found["organisation"] else true()
    subject = col(tables.AuditEntry.subject)
    projects = in_projects(caller, p.name, "audit")
    return and_(
        col(tables.AuditEntry.outcome) == "done",
        or_(
            subject.in_(select(col(s.id)).where(in_projects(caller, s.project, "audit"))),
            subject.in_(select("project " + col(p.name)).where(projects)),
            subject.in_(select("workspace " + col(w.name)).where(spaces)),
        ),
    )


def whole_attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those that the caller may read whole."""
    if is_staff(caller):
        return true()
    public = col(tables.Attestation.public).is_(True)
    return public | within(caller) if caller.bound else public


def attestations(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Attestation`: those of which the caller may read anything."""
    whole = whole_attestations(caller)
    if caller.role != "supplier":
        return whole
    using = (
        select(col(tables.CorpusUse.attestation))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(supplied(caller))
    )
    return whole | col(tables.Attestation.digest).in_(using)


def attestation_order(caller: Caller) -> tuple[Any, ...]:
    """The columns that order `attestations`: when a run began is not for suppliers."""
    a = tables.Attestation
    return (a.started, a.digest) if is_staff(caller) else (a.digest,)


def versions(caller: Caller) -> ColumnElement[bool]:
    """Condition on `ModelVersion`: those that the caller may know of."""
    a = tables.Attestation
    return _among(caller, tables.ModelVersion.attestation, a.digest, attestations(caller))


def models(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Model`: those of which the caller may know a version."""
    v = tables.ModelVersion
    return _among(caller, tables.Model.name, v.model, versions(caller))


def ledgers(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Ledger`: those whose checkpoint and hashes the caller may read."""
    a, run = tables.Attestation, tables.Ledger.run
    attested = _among(caller, run, a.run, attestations(caller))
    return attested | of_runs(caller, run, "view") if caller.bound else attested


def policies(caller: Caller) -> ColumnElement[bool]:
    """Condition on `Policy`: rules may name suppliers and corpora, so only public ones."""
    a = tables.Attestation
    return _among(caller, tables.Policy.digest, a.policy, whole_attestations(caller))


def trust_roots(caller: Caller) -> ColumnElement[bool]:
    """Condition on `TrustRoot`: authorities may name suppliers, so only public ones."""
    a = tables.Attestation
    return _among(caller, tables.TrustRoot.digest, a.trust_root, whole_attestations(caller))


def _of_supplier(caller: Caller, supplier: Any) -> ColumnElement[bool]:
    if is_staff(caller):
        return true()
    if caller.role == "supplier" and caller.supplier is not None:
        return col(supplier) == caller.supplier
    return false()


def _among(
    caller: Caller, column: Any, named: Any, readable: ColumnElement[bool]
) -> ColumnElement[bool]:
    """That ``column`` is among the ``named`` of readable rows; anything, for staff."""
    return true() if is_staff(caller) else col(column).in_(select(col(named)).where(readable))


Found = TypeVar("Found", bound=SQLModel)


def _find(
    session: Session,
    caller: Caller,
    table: type[Found],
    named: tuple[str, str, str | None],
    *conditions: ColumnElement[bool],
) -> Found:
    """The one row that fulfils ``conditions``; ``named`` is what `absent` says of it.

    Raises:
        Problem: 404, there is none that the caller may read.
    """
    rows = session.execute(select(table).where(*conditions))
    found: Found | None = rows.scalar_one_or_none()
    if found is None:
        raise absent(caller, *named)
    return found


def promotes(caller: Caller) -> bool:
    """Whether roles in parts of the organisation let the caller write to the registry."""
    return any(places(caller, "promote").values())


def check_promotes(
    session: Session, caller: Caller, model: str, attestation: str | None = None
) -> None:
    """Return if the caller may change the versions of a registered model, or add this attestation.

    A version replaces others of its model. So who has a role in parts of the organisation has it in
    all places where versions of this model come from.

    Raises:
        Problem: 404, the attestation is none that the caller may promote; 403, the model has
            versions from elsewhere.
    """
    if everywhere(caller, "promote"):
        return
    a, v = tables.Attestation, tables.ModelVersion
    if attestation is not None and not is_within(session, caller, attestation, "promote"):
        raise absent(caller, "attestation", attestation, SEE_MODELS)
    own = select(col(a.digest)).where(within(caller, "promote"))
    others = select(col(v.model)).where(col(v.model) == model, col(v.attestation).not_in(own))
    if session.execute(others.limit(1)).first() is not None:
        raise Problem(
            403,
            "Not allowed",
            "The name is taken by a model that you may not change",
            "Take another name, or ask an engineer of the organisation",
        )


def whole_models(session: Session, caller: Caller, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` all of whose versions the caller reads whole, with what they are."""
    wanted = sorted(set(names))
    if is_staff(caller) or not caller.bound:
        return frozenset(wanted if is_staff(caller) else ())
    a, v = tables.Attestation, tables.ModelVersion
    own = select(col(a.digest)).where(within(caller))
    others = select(col(v.model)).where(col(v.model).in_(wanted), col(v.attestation).not_in(own))
    return frozenset(wanted) - set(session.execute(others).scalars())


def find_experiment(session: Session, caller: Caller, id_: str) -> tables.Experiment:
    """The experiment. Raises 404."""
    e = tables.Experiment
    named = ("experiment", id_, "See the list of experiments")
    return _find(session, caller, e, named, col(e.id) == id_, experiments(caller))


def find_trial(session: Session, caller: Caller, id_: str) -> tables.Trial:
    """The trial. Raises 404."""
    t = tables.Trial
    named = ("trial", id_, "See the list of trials")
    return _find(session, caller, t, named, col(t.id) == id_, trials(caller))


def find_submission(session: Session, caller: Caller, id_: str) -> tables.Submission:
    """The submission. Raises 404."""
    s = tables.Submission
    named = ("submission", id_, "See the list of submissions")
    return _find(session, caller, s, named, col(s.id) == id_, submissions(caller))


def find_model(session: Session, caller: Caller, name: str) -> tables.Model:
    """The registered name. Raises 404."""
    named = ("model", name, SEE_MODELS)
    return _find(
        session, caller, tables.Model, named, col(tables.Model.name) == name, models(caller)
    )


def find_version(session: Session, caller: Caller, model: str, version: str) -> tables.ModelVersion:
    """The version of a registered name. Raises 404."""
    named = ("version", f"{model} {version}", SEE_MODELS)
    try:
        number = str(parse_version(version))
    except UsageError:
        raise absent(caller, *named) from None
    v = tables.ModelVersion
    return _find(
        session,
        caller,
        v,
        named,
        col(v.model) == model,
        col(v.version) == number,
        versions(caller),
    )


def find_attestation(
    session: Session, caller: Caller, digest: str, *, whole: bool = False
) -> tables.Attestation:
    """The attestation of which the caller may read something, or the whole. Raises 404."""
    readable = whole_attestations(caller) if whole else attestations(caller)
    named = ("attestation", digest, SEE_MODELS)
    a = tables.Attestation
    return _find(session, caller, a, named, col(a.digest) == full_digest(digest), readable)


def find_policy(session: Session, caller: Caller, digest: str) -> tables.Policy:
    """The signed policy. Raises 404."""
    p = tables.Policy
    named = ("policy", digest, None)
    return _find(session, caller, p, named, col(p.digest) == full_digest(digest), policies(caller))


def find_trust_root(session: Session, caller: Caller, digest: str) -> tables.TrustRoot:
    """The signed trust root. Raises 404."""
    r = tables.TrustRoot
    named = ("trust root", digest, None)
    return _find(
        session, caller, r, named, col(r.digest) == full_digest(digest), trust_roots(caller)
    )


def find_corpus(session: Session, caller: Caller, name: str) -> tables.Corpus:
    """The corpus. Raises 404."""
    named = ("corpus", name, "See the list of corpora")
    return _find(
        session, caller, tables.Corpus, named, col(tables.Corpus.name) == name, own_corpora(caller)
    )


def find_ledger(session: Session, caller: Caller, run: str) -> tables.Ledger:
    """The ledger of a run. Raises 404."""
    named = ("ledger", run, "See the list of ledgers")
    return _find(
        session, caller, tables.Ledger, named, col(tables.Ledger.run) == run, ledgers(caller)
    )


def corpora_of(session: Session, caller: Caller, attestation: str) -> frozenset[str] | None:
    """The corpora of an attestation that the caller may read about; None: all of them.

    What is public of the attestation counts besides.
    """
    if is_within(session, caller, attestation):
        return None
    found = session.execute(
        select(col(tables.CorpusUse.corpus))
        .join(tables.Corpus, col(tables.Corpus.name) == col(tables.CorpusUse.corpus))
        .where(col(tables.CorpusUse.attestation) == attestation, supplied(caller))
    )
    return frozenset(found.scalars())


def scope_of(
    session: Session,
    caller: Caller,
    row: tables.Attestation | Row[Any] | None,
    named: tuple[str, str],
) -> frozenset[str] | None:
    """Of an attestation, the corpora that the caller reads about; None: it reads the whole.

    Args:
        row: With ``digest`` and ``public`` of an attestation, if there is one.
        named: What the address names, a version or an attestation, and which.

    Raises:
        Problem: 404, there is nothing that the caller may read.
    """
    if row is not None and reads_whole(caller, row):
        return None
    names = corpora_of(session, caller, row.digest if row is not None else "")
    if row is not None and names is None:
        return None
    if row is None or not names:
        raise absent(caller, *named, SEE_MODELS)
    return names


def find_lineage(
    session: Session,
    caller: Caller,
    row: tables.Attestation | Row[Any] | None,
    named: tuple[str, str],
) -> Lineage:
    """The lineage as far as the caller may read it: whole, or the rows of its own corpora.

    ``row`` has the column ``lineage`` too. Otherwise as `scope_of`, which raises.
    """
    names = scope_of(session, caller, row, named)
    assert row is not None  # or it was a 404
    document = lineage.decode(row.lineage)
    return document if names is None else lineage.of_corpora(document, names)
