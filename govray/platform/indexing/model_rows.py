"""The models of runs, and what audits said of them, verified and then indexed."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlmodel import Session, select

from govray.data.records_file import find_prepared, reader
from govray.errors import Malformed, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.memorization_manifest import verify_memorization_manifest
from govray.governance.formats import canonical_json
from govray.governance.policy.record_commitment import read_secrets
from govray.governance.record.prepared_records import ReadPart
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import verify
from govray.platform.store import tables
from govray.platform.store.ledger_parquet import write_table
from govray.platform.store.model_index import index_model
from govray.platform.store.tile_storage import tile_folder
from govray.storage.place import Place, place
from govray.storage.regular_file import read_regular
from govray.train.inputs.run_record import read_record

MEMORIZATION = "memorization.dsse.json"
TILES = "tiles"


def index_run_model(
    session: Session, folder: Place, anchor: TrustAnchor, key: bytes, models: Place | None = None
) -> int:
    """Index a run's model folder, and write its ledger's tiles; how many models are new.
    ``models``: where an attestor puts models. Then none in a run's own folder counts."""
    own = folder / model_folder.MODEL if models is None else models / folder.name
    model = own.resolve()
    if not model.is_dir():
        return 0
    data = model_folder.Bundle(model).read(
        model_folder.ATTESTATION, limit=model_folder.MAX_ENVELOPE
    )
    held = session.exec(
        select(tables.AttestationRow).where(
            tables.AttestationRow.envelope_digest == canonical_json.sha256(data),
            tables.AttestationRow.folder == str(model),
        )
    ).first()
    known = (
        held is not None
        and session.get_one(tables.TrustRootRow, held.trust_root).envelope == anchor.root
    )
    if known and held and held.has_records:
        return 0
    record = read_record(folder)
    prepared = find_prepared(folder, record.plan.manifest)
    if known and prepared is None:
        return 0
    experiment = record.experiment
    corpora = place(experiment.data.corpora) if experiment else None
    index_folder(
        session,
        model,
        anchor,
        key,
        tiles=folder.resolve() / TILES,
        corpora=corpora,
        records=None if prepared is None else reader(prepared),
        run=record.run_id,
    )
    return 1


def index_folder(
    session: Session,
    model: Place,
    anchor: TrustAnchor,
    key: bytes,
    *,
    tiles: Place | None = None,
    corpora: Place | None = None,
    records: ReadPart | None = None,
    run: str | None = None,
) -> None:
    """Verify and index one model folder; with ``tiles``, write its ledger there too.

    The secrets of its corpora are taken from the folder ``corpora``, as far as they are there. Its
    records are read by ``records``. Without it nobody finds them. In the folder of a ``run`` it has
    to be that run's own, for it is downloaded from there.
    """
    verified = verify(model, trust_root=anchor, records=records)
    if run is not None and (signed := verified.attestation.run.id) != run:
        raise Refused(
            f"the model is that of the run {signed}, and lies in the folder of {run}",
            where=str(model),
            do="Leave a model in its own run's folder; `govray model register` takes any folder",
        )
    place = None if tiles is None else str(tiles)
    if tiles is not None:
        write_table(tile_folder(str(tiles)), verified.ledger.leaves)
    stated = {name: each.document.records for name, each in verified.credentials.items()}
    index_model(
        session,
        verified,
        trust_root=anchor.root,
        key=key,
        folder=str(model),
        tiles=place,
        secrets=read_secrets(corpora, stated)[0],
    )


def index_run_audit(session: Session, folder: Place, anchor: TrustAnchor) -> None:
    """Index the memorization manifest that lies in a run's folder, if one is signed. Raises
    `Refused`: no operator of the trust root signed it, or it is malformed."""
    path = folder / MEMORIZATION
    if not path.is_file():
        return
    if path.stat().st_size > model_folder.MAX_ENVELOPE:
        raise Malformed(f"larger than {model_folder.MAX_ENVELOPE} bytes", where=str(path))
    data, now = read_regular(path), datetime.now(UTC)
    trust = anchor.load(at=now, delegations=read_record(folder).delegations)
    audited = verify_memorization_manifest(trust, data, at=now)
    if session.get(tables.MemorizationManifestRow, audited.digest) is None:
        row = tables.MemorizationManifestRow(
            digest=audited.digest,
            run=audited.document.run,
            weights=audited.document.files[model_folder.WEIGHTS],
            signer=audited.authority.name,
            made=audited.document.made,
            envelope=data,
        )
        session.add(row)
