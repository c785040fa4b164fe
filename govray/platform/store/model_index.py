"""A verified model as rows: what its attestation, policy, credentials and ledger say, to be asked.

Invariants

* Only a `VerifiedModel` goes in. The bytes that are kept are read from its folder again, and
  refused unless they are the ones that were verified.
* All rows of one model are written in the caller's transaction: a model is in the index whole or
  not at all.
* Indexing a model again changes nothing but what is derived by newer code, its folder, and the
  trust root if that one is newer. The order in which models are indexed does not matter.
* No two histories of one run are in it: of the heads of a run, each begins every longer one.
* A record is found by its leaf, which tells nothing of it to who has not the corpus's secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from tempfile import TemporaryFile
from typing import Any, TextIO

from sqlalchemy import delete, insert, inspect
from sqlmodel import Session, SQLModel, col, select

from govray.errors import CouldNotCheck, Damaged
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_folder import Bundle
from govray.governance.attestation.tree_heads import check_extends, fork
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.signed_note import TreeHead
from govray.governance.record.ledger import Ledger
from govray.governance.record.row_counts import corpus_totals
from govray.governance.trust.authority import SENSITIVITIES
from govray.governance.verify.trace import sightings
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store import lineage, store_secret, tables
from govray.platform.store.database import begin_writing
from govray.platform.store.store_secret import mask_secret
from govray.platform.store.tile_storage import tile_folder
from govray.platform.store.tiles import TileReader, write_tiles


def check_known(session: Session, ledger: Ledger) -> bool:
    """Whether no head that was seen of this run is longer; each of them fits to ``ledger``.

    Raises:
        Refused: One does not: a fork.
        CouldNotCheck: A longer one was seen, and there are no tiles to compare with.
    """
    of_run = select(tables.Head).where(col(tables.Head.run) == ledger.run)
    seen = session.exec(of_run.order_by(col(tables.Head.size))).all()
    for head in seen:
        where = f"ledger of run {ledger.run}, a head of {head.size} leaves that was seen before"
        if head.size <= ledger.size:
            check_extends(ledger, TreeHead(ledger.origin, head.size, _root(head)), where=where)
        elif _tiles(session, head, where).root(ledger.size) != ledger.root:
            raise fork(ledger.size, where=where)
    return all(head.size <= ledger.size for head in seen)


def keep(session: Session, ledger: Ledger, checkpoint: bytes) -> None:
    """Keep the head of ``ledger``, which `check_known` has passed; the caller commits."""
    root = "sha256:" + ledger.root.hex()
    _add(session, tables.Head(run=ledger.run, size=ledger.size, root=root, checkpoint=checkpoint))


def _root(head: tables.Head) -> bytes:
    return bytes.fromhex(head.root.removeprefix("sha256:"))


def _tiles(session: Session, head: tables.Head, where: str) -> TileReader:
    ledger = session.get(tables.LedgerRow, head.run)
    if ledger is None or not ledger.tiles:
        raise CouldNotCheck(
            "a longer head of this run was seen, and its tiles are not on storage",
            where=where,
            do="Index the run that it is of with `govray store index`, then this one",
        )
    return TileReader(tile_folder(ledger.tiles), head.size, _root(head))


MAX_STEPS = 100
"""How many steps of a record are listed; `Record.step_count` has their number."""

_BATCH = 5_000


def index_model(
    session: Session,
    model: VerifiedModel,
    *,
    trust_root: bytes,
    key: bytes,
    public: bool | None = None,
    folder: str | None = None,
    tiles: str | None = None,
    secrets: Mapping[str, bytes] | None = None,
) -> tables.AttestationRow:
    """Write the rows of one verified model; the caller commits.

    Args:
        trust_root: The envelope that it was verified against.
        public: Whether anyone may read the attestation. None leaves it as it is; at first, not.
        folder: Where the model lies, for downloads. None leaves it as it is.
        tiles: Where to write the ledger's tiles: a folder, or an object store's URL. None leaves
            what there is.
        secrets: Corpus → what its records are committed under, of those at hand. Without them
            nobody finds the records of these corpora.

    Raises:
        Refused: The store is indexed under another secret.
        Refused: A head of the same run was seen that this ledger does not extend or begin.
        CouldNotCheck: A longer one was seen, and there are no tiles to compare with.
    """
    files = _GovernanceFiles(model)
    longest = check_known(session, model.ledger)  # and again behind the lock
    # Before the lock: nobody waits for them, and they are only ever added to.
    if tiles is not None and longest:
        write_tiles(tile_folder(tiles), model.ledger.lines, files.checkpoint)
    with TemporaryFile("w+") as sighted:
        # Before the lock too: minutes for a million records, which nobody should wait for.
        if _lacks_records(session, model):
            _sight(model, sighted)
        begin_writing(session)
        store_secret.claim(session, key)
        row = _write(session, model, files, sighted, trust_root, key, secrets or {})
    row.public = row.public if public is None else public
    row.folder = row.folder if folder is None else folder
    if tiles is not None and longest:
        session.get_one(tables.LedgerRow, model.ledger.run).tiles = tiles
    session.flush()
    return row


def _write(
    session: Session,
    model: VerifiedModel,
    files: _GovernanceFiles,
    sighted: TextIO,
    trust_root: bytes,
    key: bytes,
    secrets: Mapping[str, bytes],
) -> tables.AttestationRow:
    _add_trust_root(session, model, trust_root, files)
    _add_policy(session, model, files)
    _add_corpora(session, model, files, key, secrets)
    _add_ledger(session, model, files)
    session.flush()
    document = lineage.lineage(model.attestation, model.digest, model.replayed_by)
    row = session.get(tables.AttestationRow, model.digest)
    known = row is not None
    if row is None:
        row = _attestation(model, files, lineage.encode(document))
        session.add(row)
    else:
        row.lineage = lineage.encode(document)
        row.assurance = model.assurance_level
        held = session.get_one(tables.TrustRootRow, row.trust_root)
        if held.version < model.trust_root.root.version:
            row.trust_root = model.trust_root.digest
    session.flush()
    if not known:
        for each in model.subjects:
            named = {"name": each.name, "sha256": each.sha256}
            session.add(tables.SubjectRow(attestation=model.digest, **named))
        run = document.run
        began = {each.run for each in run.ancestry or ()}
        for what in sorted(began | {*(run.initial_weights or {}).values()}):
            session.add(tables.Origin(attestation=model.digest, what=what))
        _insert(session, tables.CoverageRow, _coverage(document))
        _insert(session, tables.Inherited, _inherited(document))
        _insert(session, tables.CorpusUseRow, _uses(model))
    if not known or not row.has_records:
        row.has_records = model.checked.records is not None
        if row.has_records:
            if not sighted.tell():  # a rebuild took the model away since
                _sight(model, sighted)
            _insert(session, tables.Record, _records(model, sighted))
    add_decisions(session, model)
    return row


def _lacks_records(session: Session, model: VerifiedModel) -> bool:
    row = session.get(tables.AttestationRow, model.digest)
    return row is None or not row.has_records


def add_decisions(session: Session, model: VerifiedModel) -> None:
    """The decisions that the ledger and the gates tell of, if the run is in the index."""
    run = model.attestation.run.id
    if session.get(tables.RunRow, run) is None:
        return
    of_run = col(tables.DecisionRow.run) == run
    of_ledger = col(tables.DecisionRow.source) == "ledger"
    session.connection().execute(delete(tables.DecisionRow).where(of_run, of_ledger))
    _insert(session, tables.DecisionRow, _decisions(model, run))


class _GovernanceFiles:
    """The bytes of a model's governance files, each the one that was verified."""

    def __init__(self, model: VerifiedModel) -> None:
        folder, pinned = Bundle(model.path), model.attestation.files
        self.attestation = folder.read(model_folder.ATTESTATION, limit=model_folder.MAX_ENVELOPE)
        envelope = Envelope.parse(self.attestation, where=model_folder.ATTESTATION)
        keys = [k for a in model.trust_root.authorities if a.role == "operator" for k in a.keys]
        if canonical_json.sha256(
            envelope.payload
        ) != model.digest or not model.keyids <= envelope.signed_by(keys):
            raise _changed(model, model_folder.ATTESTATION)

        def read(name: str) -> bytes:
            data = folder.read(name, limit=model_folder.MAX_ENVELOPE)
            if canonical_json.sha256(data) != pinned.get(name):
                raise _changed(model, name)
            return data

        self.policy = read(model_folder.POLICY)
        self.checkpoint = read(model_folder.CHECKPOINT)
        self.delegations = (
            read(model_folder.DELEGATIONS) if model_folder.DELEGATIONS in pinned else b""
        )
        self.credentials = {
            canonical_json.sha256(Envelope.parse(line).payload): line
            for line in read(model_folder.CREDENTIALS).split(b"\n")[:-1]
        }


def _changed(model: VerifiedModel, name: str) -> Damaged:
    return Damaged(
        "the file is no longer the one that was verified",
        where=str(model.path / name),
        do="Verify and index the folder again when nothing writes to it",
    )


def _add_trust_root(
    session: Session, model: VerifiedModel, envelope: bytes, files: _GovernanceFiles
) -> None:
    trust = model.trust_root
    if canonical_json.sha256(Envelope.parse(envelope).payload) != trust.digest:
        raise Damaged("this is not the trust root that it was verified against", where="trust root")
    name, version = trust.root.name, trust.root.version
    root = tables.TrustRootRow(digest=trust.digest, name=name, version=version, envelope=envelope)
    _add(session, root)
    if files.delegations:
        digest = canonical_json.sha256(files.delegations)
        row = tables.Delegations(trust_root=trust.digest, digest=digest, lines=files.delegations)
        _add(session, row)


def _add(session: Session, row: SQLModel) -> bool:
    """Add a row, unless the one of its key is there. Whether it was added."""
    if session.get(type(row), inspect(type(row)).primary_key_from_instance(row)) is not None:
        return False
    session.add(row)
    session.flush()
    return True


def _add_policy(session: Session, model: VerifiedModel, files: _GovernanceFiles) -> None:
    policy = model.policy
    row = tables.PolicyRow(
        digest=policy.digest,
        name=policy.document.name,
        version=policy.document.version,
        signer=policy.authority.name,
        envelope=files.policy,
    )
    _add(session, row)


def _add_corpora(
    session: Session,
    model: VerifiedModel,
    files: _GovernanceFiles,
    key: bytes,
    secrets: Mapping[str, bytes],
) -> None:
    for corpus, credential in sorted(model.credentials.items()):
        document = credential.document
        row = tables.CredentialRow(
            digest=credential.digest,
            corpus=corpus,
            supplier=credential.authority.name,
            license=document.license,
            category=document.license_category,
            jurisdiction=document.jurisdiction,
            sensitivity=document.sensitivity,
            valid_from=document.valid.from_,
            valid_until=document.valid.until,
            records=document.records.count,
            commitment=document.records.commitment,
            envelope=files.credentials[credential.digest],
        )
        if _add(session, row):
            _settle_corpus(session, corpus)
        if corpus in secrets:
            held = session.get_one(tables.CredentialRow, credential.digest)
            held.secret = mask_secret(secrets[corpus], held.commitment, key)


def _settle_corpus(session: Session, name: str) -> None:
    """What the credentials of a corpus say together, whatever order they came in."""
    of_corpus = select(tables.CredentialRow).where(tables.CredentialRow.corpus == name)
    credentials = session.exec(of_corpus).all()
    latest = max(credentials, key=lambda each: (each.valid_from, each.digest))
    sensitivity = max((each.sensitivity for each in credentials), key=SENSITIVITIES.index)
    row = session.get(tables.Corpus, name)
    if row is None:
        row = tables.Corpus(name=name, supplier="", sensitivity="")
        session.add(row)
    row.supplier, row.sensitivity = latest.supplier, sensitivity


def _add_ledger(session: Session, model: VerifiedModel, files: _GovernanceFiles) -> None:
    ledger = model.ledger
    longest = check_known(session, ledger)
    keep(session, ledger, files.checkpoint)
    known = session.get(tables.LedgerRow, ledger.run)
    if known is None or (longest and known.size < ledger.size):
        row = tables.LedgerRow(
            run=ledger.run,
            origin=ledger.origin,
            size=ledger.size,
            root="sha256:" + ledger.root.hex(),
            checkpoint=files.checkpoint,
            tiles="",  # those of this size come behind
        )
        session.merge(row)


def _attestation(
    model: VerifiedModel, files: _GovernanceFiles, encoded: bytes
) -> tables.AttestationRow:
    stated, judged = model.attestation, model.attestation.validation
    return tables.AttestationRow(
        digest=model.digest,
        run=stated.run.id,
        name=stated.run.name,
        signer=model.signer,
        trust_root=model.trust_root.digest,
        policy=model.policy.digest,
        assurance=model.assurance_level,
        isolation=stated.execution.isolation,
        metric=judged.metric if judged else None,
        goal=judged.goal if judged else None,
        value=judged.value if judged else None,
        validated_on=",".join(sorted(judged.corpora or ())) if judged else "",
        started=stated.run.started,
        finished=stated.run.finished,
        envelope_digest=canonical_json.sha256(files.attestation),
        envelope=files.attestation,
        lineage=encoded,
    )


def _insert(session: Session, table: type[Any], rows: Iterator[dict[str, Any]]) -> None:
    """In batches, so that a million rows need no room."""
    connection = session.connection()
    while batch := list(islice(rows, _BATCH)):
        connection.execute(insert(table), batch)


def _coverage(document: lineage.Lineage) -> Iterator[dict[str, Any]]:
    for corpus in document.corpora:
        for cell in corpus.cells:
            yield {
                "attestation": document.attestation,
                "corpus": corpus.corpus,
                "layer_group": cell.group,
                "category": corpus.license_category,
                "tokens": cell.tokens,
                "norm_share": cell.gradient_norm_share,
                "direct": cell.direct,
                "transitive": cell.transitive,
                "level": cell.level,
            }


def _inherited(document: lineage.Lineage) -> Iterator[dict[str, Any]]:
    categories = {each.corpus: each.license_category for each in document.corpora}
    for group in document.groups:
        for source in sorted({*group.pretrained, *group.transitive}):
            yield {
                "attestation": document.attestation,
                "layer_group": group.group,
                "source": source,
                "category": categories.get(source, "unknown"),
                "start": source in group.pretrained,
            }


def _uses(model: VerifiedModel) -> Iterator[dict[str, Any]]:
    stated = model.attestation
    totals = corpus_totals(
        model.ledger.steps, stated.plan, model.manifest.document, model.record_counts
    )
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for leaf in model.ledger.steps:
        for corpus in leaf.corpora:
            first[corpus] = min(leaf.step, first.get(corpus, leaf.step))
            last[corpus] = max(leaf.step, last.get(corpus, leaf.step))
    for each in stated.corpora:
        total = totals.get(each.corpus)
        yield {
            "corpus": each.corpus,
            "attestation": model.digest,
            "credential": each.credential,
            "records": total.records if total else 0,
            "rows": total.rows if total else 0,
            "tokens": total.tokens if total else 0,
            "steps": total.steps if total else 0,
            "first_step": first.get(each.corpus),
            "last_step": last.get(each.corpus),
        }


def _sight(model: VerifiedModel, out: TextIO) -> None:
    """Where all records stand, a line each, to be read by `_records`; none are at a summary."""
    if model.checked.records is None:
        return
    for seen in sightings(model):
        steps = seen.steps[:MAX_STEPS]
        line = [seen.corpus, seen.record, seen.split, seen.tokens, len(seen.steps), steps]
        out.write(json.dumps(line) + "\n")


def _records(model: VerifiedModel, sighted: TextIO) -> Iterator[dict[str, Any]]:
    sighted.seek(0)
    for line in sighted:
        corpus, record, split, tokens, step_count, steps = json.loads(line)
        yield {
            "record_key": model.records.record(corpus, record).entry,
            "attestation": model.digest,
            "corpus": corpus,
            "record": record,
            "split": split,
            "tokens": tokens,
            "step_count": step_count,
            "steps": steps,
        }


def _decisions(model: VerifiedModel, run: str) -> Iterator[dict[str, Any]]:
    found = model.attestation.memorization
    told: list[dict[str, Any]] = [
        {
            "kind": made.action,
            "step": made.step,
            "corpus": made.corpus,
            "reason": f"memorization in {', '.join(made.layers)}: {made.followed}",
            "evidence": made.to_json(),
            "at": None,
        }
        for made in (found.decisions if found else ())
    ]
    told += [
        {
            "kind": "gate",
            "step": gate.step,
            "corpus": gate.corpus,
            "reason": f"the credential {gate.reason} at {gate.since}"
            if gate.reason == "expired"
            else f"the credential was {gate.reason} at {gate.since}",
            "evidence": gate.to_json(),
            "at": gate.time,
        }
        for gate in model.gates
        if gate.legal
    ]
    for number, each in enumerate(told):
        yield {"run": run, "source": "ledger", "number": number, **each}
