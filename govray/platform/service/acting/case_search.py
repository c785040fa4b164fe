"""What the records of some models say of a rights holder's text, file or domains.

Three searches, over the models that a case names: all versions of one registered model, or all
models that are public.

exact
    By the SHA-256 of the bytes, in the store's index of records.
near
    By common sequences, in corpora that lie at hand
    (`govray.platform.service.visible.near_records`). The store has no texts. A record counts only
    if the index has its entry at its place.
domain
    By what issuers state in credentials' descriptions. Records carry no address.

What could not be looked at is a part of the result, with the reason. Nobody is told anything here:
`govray.platform.service.acting.case_answers` makes the answer, once somebody has looked at the
result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from govray.errors import GovrayError, Refused
from govray.governance.attestation.case_answer import (
    MOST_FINDINGS,
    AskedModel,
    CaseFinding,
    CaseSearch,
    CaseUnchecked,
    CorpusClass,
    CorpusSearch,
    Match,
)
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.formats.text_form import TEXT_FORM
from govray.governance.policy import credential as credentials
from govray.governance.policy.route import ADAPTER
from govray.platform.service.acting.stated_domains import stated_domains, states_domains
from govray.platform.service.identity.access import Caller
from govray.platform.service.identity.audit_log import LOGGED, Audit
from govray.platform.service.visible.near_records import LEAST_OVERLAP, NearSearch
from govray.platform.service.visible.record_index import leaves_of, places_of, store_key
from govray.platform.store import lineage, tables
from govray.storage.place import Place

MOST_MODELS = 100
"""Models that one case is about; the newest."""
MOST_UNCHECKED = 100

_RANK: dict[Match, int] = {"exact": 0, "near": 1, "domain": 2}


@dataclass(frozen=True)
class CaseSources:
    """Where a search looks beside the store.

    Attributes:
        store: The store's URL, for its secret.
        corpora: The folder of corpora at hand, if any.
        near: What finds near copies there; None: nothing does.
    """

    store: str
    corpora: Place | None
    near: NearSearch | None


@dataclass(frozen=True)
class _CorpusInModel:
    """A corpus in one model. ``row`` is what the model's lineage says of it."""

    attestation: str
    credential: credentials.Credential
    row: lineage.CorpusLineage
    steps: int
    removed: str | None

    @property
    def corpus(self) -> str:
        return self.credential.corpus

    @property
    def kind(self) -> CorpusClass:
        stated = self.credential
        return CorpusClass(
            license_category=stated.license_category,
            jurisdiction=stated.jurisdiction,
            source=stated.described.source,
        )

    def finding(self, match: Match, *, trained: bool, **found: Any) -> CaseFinding:
        """A match in it. ``trained``: steps read what was found."""
        own = [each.group for each in self.row.cells if each.direct and each.tokens]
        levels = {
            each.group: each.level
            for each in self.row.cells
            # Another corpus's adapter bears that corpus's name.
            if each.level is not None and (each.direct or not each.group.startswith(ADAPTER))
        }
        return CaseFinding(
            attestation=self.attestation,
            corpus=self.corpus,
            corpus_class=self.kind,
            match=match,
            groups=tuple(own) if trained else (),
            levels=levels or None,
            removed=self.removed,
            **found,
        )

    def unchecked(self, match: Match, why: str) -> CaseUnchecked:
        """That it could not be looked at."""
        return CaseUnchecked(match=match, corpus=self.corpus, corpus_class=self.kind, why=why)


@dataclass
class _SearchedCorpus:
    search: CorpusSearch
    findings: list[CaseFinding]
    unchecked: list[CaseUnchecked]


def search_case(
    session: Session,
    caller: Caller,
    audit: Audit,
    row: tables.RightsCase,
    sources: CaseSources,
) -> CaseSearch:
    """Everything that is found for a case, with the names of corpora. ``caller``: who looks.
    Corpora are read in its name, all of them.

    Raises:
        Refused: The case is about no model: an answer would say "not found" where nobody looked.
    """
    reader = replace(caller, account="auditor")  # who may search cases may read every corpus
    models, older = _models(session, row.model)
    if not models:
        about = "public models" if row.model is None else f"versions of {row.model}"
        raise Refused(
            f"there is nothing to search: the store has no {about}",
            where=f"case {row.id}",
            do="Register one first: govray model register, with --public if all may ask about it",
        )
    uses = [use for each in models for use in _uses(session, each)]
    found = []
    if row.sha256 is not None:
        found.append(_exact(session, reader, row.sha256, uses, sources))
        found.append(_near(session, row, uses, sources))
    if row.domains:
        found.append(_domains(row.domains, uses))
    findings = sorted((each for one in found for each in one.findings), key=_order)
    unchecked = [each for one in found for each in one.unchecked]
    if older:
        why = f"There are more than {MOST_MODELS} models; older ones were not looked into."
        unchecked.insert(0, CaseUnchecked(match=found[0].search.match, why=why))
    shown = findings[:MOST_FINDINGS]
    named = _versions(session, [each.digest for each in models])
    _record_reads(session, audit, shown)
    return CaseSearch(
        models=tuple(
            AskedModel(attestation=each.digest, name=each.name, versions=tuple(named[each.digest]))
            for each in models
        ),
        searches=tuple(each.search for each in found),
        findings=tuple(shown),
        more=len(findings) > MOST_FINDINGS,
        unchecked=tuple(unchecked[:MOST_UNCHECKED]),
    )


def _order(each: CaseFinding) -> tuple[Any, ...]:
    return (_RANK[each.match], -(each.overlap or 0), each.attestation, each.corpus or "")


def _models(session: Session, model: str | None) -> tuple[Sequence[Any], bool]:
    """The models that a case is about, the newest first, and whether there are older ones."""
    a, v = tables.AttestationRow, tables.ModelVersion
    statement = select(col(a.digest), col(a.name), col(a.lineage))
    if model is None:
        statement = statement.where(col(a.public))
    else:
        named = select(col(v.attestation)).where(col(v.model) == model)
        statement = statement.where(col(a.digest).in_(named))
    ordered = statement.order_by(col(a.started).desc(), col(a.digest)).limit(MOST_MODELS + 1)
    rows = session.execute(ordered).all()
    return rows[:MOST_MODELS], len(rows) > MOST_MODELS


def _versions(session: Session, digests: Sequence[str]) -> dict[str, list[str]]:
    """Attestation → its names in the registry."""
    v = tables.ModelVersion
    rows = session.execute(
        select(col(v.attestation), col(v.model), col(v.version))
        .where(col(v.attestation).in_(digests))
        .order_by(col(v.model), col(v.major), col(v.minor), col(v.patch))
    )
    found: dict[str, list[str]] = {digest: [] for digest in digests}
    for digest, model, version in rows:
        found[digest].append(f"{model} {version}")
    return found


def _uses(session: Session, model: Any) -> Iterator[_CorpusInModel]:
    u, c = tables.CorpusUseRow, tables.CredentialRow
    document = lineage.decode(model.lineage)
    rows = {each.corpus: each for each in document.corpora}
    removed = {each.group: each.removed for each in document.groups if each.removed}
    stated = (
        select(col(u.corpus), col(u.steps), col(c.envelope))
        .join(c, col(c.digest) == col(u.credential))
        .where(col(u.attestation) == model.digest)
        .order_by(col(u.corpus))
    )
    for each in session.execute(stated):
        own = rows[each.corpus]
        gone = [removed[cell.group] for cell in own.cells if cell.direct and cell.group in removed]
        envelope = Envelope.parse(each.envelope, where="credential")
        yield _CorpusInModel(
            attestation=model.digest,
            credential=read(credentials.Credential, envelope).document,
            row=own,
            steps=each.steps,
            removed=gone[0] if gone else None,
        )


def _exact(
    session: Session, reader: Caller, sha256: str, uses: list[_CorpusInModel], sources: CaseSources
) -> _SearchedCorpus:
    key = store_key(session, sources.store)
    bare = sha256.removeprefix("sha256:")
    leaves, closed = leaves_of(session, reader, bare, key)
    by_place = {(each.attestation, each.corpus): each for each in uses}
    a = tables.AttestationRow
    asked = col(a.digest).in_({each.attestation for each in uses})
    places = places_of(reader, bare, leaves, most=MOST_FINDINGS, attestations=asked)
    findings = [
        _record_finding(by_place[row.Record.attestation, row.Record.corpus], "exact", row.Record)
        for row in session.execute(places)
        if row.Record.record < row.own_records  # a canary is nobody's work
    ]
    shut = {each.corpus: each for each in uses if each.corpus in closed}
    why = "The store lacks its secret, or the records of a model that was trained on it."
    corpora = {each.corpus for each in uses}
    return _SearchedCorpus(
        CorpusSearch(match="exact", corpora=len(corpora) - len(shut), of=len(corpora)),
        findings,
        [shut[name].unchecked("exact", why) for name in sorted(shut)],
    )


def _record_finding(
    use: _CorpusInModel, match: Match, record: tables.Record, **found: Any
) -> CaseFinding:
    return use.finding(
        match,
        trained=record.split == "train" and record.step_count > 0,
        split=record.split,
        steps=tuple(record.steps),
        step_count=record.step_count,
        **found,
    )


def _near(
    session: Session, row: tables.RightsCase, uses: list[_CorpusInModel], sources: CaseSources
) -> _SearchedCorpus:
    versions: dict[tuple[str, str], list[_CorpusInModel]] = {}
    for use in uses:
        versions.setdefault((use.corpus, use.credential.records.root), []).append(use)
    names = {corpus for corpus, _ in versions}
    looked: set[str] = set()
    findings: list[CaseFinding] = []
    unchecked: list[CaseUnchecked] = []
    search, corpora, content = sources.near, sources.corpora, row.content
    if search is None or corpora is None or content is None:
        why = "No corpora lie at hand of this service, so no near copies were looked for."
        return _SearchedCorpus(_near_search(0, names), [], [CaseUnchecked(match="near", why=why)])
    for (corpus, _), own in sorted(versions.items()):
        index = _IndexedPlaces(session, own)
        try:
            near = search(content, corpora, corpus, own[0].credential.records, index.holds)
        except GovrayError as error:
            unchecked.append(own[0].unchecked("near", _reason(error)))
            continue
        looked.add(corpus)
        for each in near:
            if f"sha256:{each.sha256}" != row.sha256:  # else the index has it already
                findings += [
                    _record_finding(use, "near", record, jaccard=each.jaccard, overlap=each.overlap)
                    for use, record in index.at(each.record)
                ]
    same = {each.why for each in unchecked}
    if len(unchecked) > 1 and len(same) == 1:  # of the text, not of a corpus
        unchecked = [CaseUnchecked(match="near", why=same.pop())]
    return _SearchedCorpus(_near_search(len(looked), names), findings, unchecked)


def _near_search(corpora: int, names: Collection[str]) -> CorpusSearch:
    return CorpusSearch(
        match="near",
        corpora=corpora,
        of=len(names),
        least_overlap=LEAST_OVERLAP,
        text_form=TEXT_FORM,
    )


def _reason(error: GovrayError) -> str:
    """What is wrong, as a sentence; where that lies is not the requester's business."""
    what = error.what[:1].upper() + error.what[1:]
    return f"{what.rstrip('.')}."


class _IndexedPlaces:
    """Which entries the index has at which places of one corpus, of models that read it."""

    def __init__(self, session: Session, uses: list[_CorpusInModel]) -> None:
        self._session, self._uses = session, uses
        self._keys: dict[int, str] = {}

    def holds(self, number: int, entry: str) -> bool:
        """Whether a model's index has this entry there."""
        self._keys[number] = entry
        return bool(self.at(number))

    def at(self, number: int) -> list[tuple[_CorpusInModel, tables.Record]]:
        """The records at a place that `holds` was asked about, in each model."""
        rows = [
            (
                use,
                self._session.get(
                    tables.Record, (self._keys[number], use.attestation, use.corpus, number)
                ),
            )
            for use in self._uses
        ]
        return [(use, record) for use, record in rows if record is not None]


def _domains(asked: Sequence[str], uses: list[_CorpusInModel]) -> _SearchedCorpus:
    findings = [
        use.finding(
            "domain",
            trained=use.steps > 0,
            domain=each.domain,
            size=each.size,
            unit=each.unit,
            step_count=use.steps,
        )
        for use in uses
        for each in dict.fromkeys(
            stated for one in asked for stated in stated_domains(use.credential.description, one)
        )
    ]
    corpora = {each.corpus: states_domains(each.credential.description) for each in uses}
    silent = sum(not stated for stated in corpora.values())
    unchecked = []
    if silent:
        why = f"The issuers of {silent} of {len(corpora)} corpora state no domains."
        unchecked.append(CaseUnchecked(match="domain", why=why))
    search = CorpusSearch(match="domain", corpora=len(corpora) - silent, of=len(corpora))
    return _SearchedCorpus(search, findings, unchecked)


def _record_reads(session: Session, audit: Audit, findings: Sequence[CaseFinding]) -> None:
    """Log the reads of confidential corpora, as a search for a record does."""
    named = {each.corpus for each in findings}
    c = tables.Corpus
    secret = select(col(c.name)).where(col(c.name).in_(named), col(c.sensitivity).in_(LOGGED))
    for corpus in sorted(session.execute(secret).scalars()):
        audit.read("record.read", corpus)
