"""Admission: from corpora with verified credentials to packed shards and a signed manifest.

The order matters. Nothing is read before it is allowed, and nothing is used before it is checked:

1. Every corpus has a verified credential (``corpus.py``).
2. The policy decides each class. A class that no rule matches is refused. A class with an empty
   profile is quarantined: counted from its credential and never read. Too large a share in
   quarantine is refused.
3. Ray Data reads the admitted parts and packs them (``packing.py``).
4. The driver compares each corpus's record count and Merkle root with its credential.
5. The driver signs the manifest. With it the folder appears (``storage/draft_folder.py``).

Packing, the reserve and the manifest's arithmetic are those of
``governance/record/prepare_manifest.py``. Rows hold records of one corpus, so of one credential
class. Shards are partitioned by class (``class=<12 hex>/<corpus>-00000.parquet``), since routes
depend on the model and classes do not. The reserve is chosen by the salted entry of a record.
So equal records of one corpus are either all trained on or all held back. By family, so are near
copies in all corpora (``families/``).

Where the trust root names a beacon (``governance/trust/beacon.py``), the salt follows from a pulse.
A folder ``.seen`` beside the prepared ones has the time at which each credential was first here. A
credential that was not here before its pulse was due is refused: whoever signed it could have known
the salt. So preparation runs twice, without the pulse and with it.

Canaries (``governance/record/canary.py``) are planted in the corpora that ask for them: records of
the operator's, in a shard of their own beside the corpus's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from govray.data import canary_planting
from govray.data.corpus import check_root
from govray.data.families.near_families import RULE, with_families
from govray.data.packing import Packing, Progress, cannot_write, items_of, pack_all
from govray.data.records_file import open_records
from govray.data.rows.row_words import common_schema
from govray.data.tokenizer import Tokenizer
from govray.errors import Refused, Untrusted, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import Signer
from govray.governance.formats.row_schema import RowKind, RowSchema
from govray.governance.formats.statement import Sealed, Subject, seal
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.record.canary import Canaries
from govray.governance.record.prepare_manifest import (
    MANIFEST_FILE,
    Manifest,
    NearFamilies,
    PreparedCorpus,
    Quarantined,
    Reserve,
    TokenizerIdentity,
    read_manifest,
    verify_manifest,
)
from govray.governance.trust.beacon import Beacon, UsedPulse
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.draft_folder import DraftFolder
from govray.storage.folder_lock import folder_lock
from govray.storage.place import Place

SEEN = ".seen"
"""The folder of notes, beside prepared folders: a credential's digest → since when it is here."""

_AGAIN = "Remove the folder, or prepare into another one."


@dataclass(frozen=True)
class Prepared:
    """A committed prepared folder and its signed manifest."""

    folder: Place
    envelope: bytes

    @cached_property
    def sealed(self) -> Sealed[Manifest]:
        where = str(self.folder / MANIFEST_FILE)
        return read_manifest(Envelope.parse(self.envelope, where=where), where=where)

    @property
    def manifest(self) -> Manifest:
        return self.sealed.document

    @property
    def digest(self) -> str:
        """The manifest's digest, which the batch plan states."""
        return self.sealed.digest


@dataclass(frozen=True)
class Admission:
    """What the policy says about every corpus: the admitted names, sorted, and the refused."""

    admitted: tuple[str, ...]
    quarantine: tuple[Quarantined, ...]


def admit(
    policy: Policy, credentials: Mapping[str, Verified[Credential]], *, max_quarantined: float
) -> Admission:
    """Ask the policy about every class, before any record is read.
    ``max_quarantined``: largest share of records that may be refused, in [0, 1]."""
    admitted: list[str] = []
    quarantine: list[Quarantined] = []
    for corpus, credential in sorted(credentials.items()):
        document = credential.document
        decision = policy.decide(document.credential_class)
        if decision.quarantined_by is None:
            admitted.append(corpus)
            continue
        quarantine.append(
            Quarantined(
                corpus=corpus,
                rule=decision.quarantined_by,
                reason=f"licence {document.license} ({document.license_category}), "
                f"{document.sensitivity}, use {document.use}",
                records=document.records.count,
            )
        )
    total = sum(c.document.records.count for c in credentials.values())
    refused = sum(q.records for q in quarantine)
    if not admitted:
        raise Refused(
            "every corpus is quarantined, so nothing is left to train on",
            where=f"policy {policy}",
            do="Run 'govray policy explain' to see which rule decides.",
        )
    if refused > max_quarantined * total:
        largest = max(quarantine, key=lambda q: q.records)
        raise Refused(
            f"{refused:,} of {total:,} records are quarantined, more than max_quarantined "
            f"{max_quarantined:g}; most by rule {largest.rule!r}, such as {largest.corpus!r}",
            where=f"policy {policy}",
            do="Raise max_quarantined if that is intended, or leave those corpora out.",
        )
    return Admission(tuple(admitted), tuple(quarantine))


def prepare(
    corpora: Place,
    folder: Place,
    *,
    credentials: Mapping[str, Verified[Credential]],
    policy: Policy,
    tokenizer: Tokenizer,
    context: int,
    reserve_share: float,
    salt: bytes,
    pulse: bytes | None = None,
    signer: Callable[[], Signer],
    trust: TrustState,
    at: datetime,
    max_quarantined: float,
    canaries: Mapping[str, Canaries] | None = None,
    rows: RowKind = "text",
    by_family: bool = False,
    progress: Progress = lambda done, total: None,
) -> Prepared:
    """Admit, pack and sign. Needs Ray, and storage that its nodes share.

    ``folder`` is written whole or not at all. An existing one is used again if any operator of
    ``trust`` signed its manifest, and it was made from equal inputs. Only salt and signer may
    differ: the first ones stay. Of several processes one prepares, and the others wait for it. What
    a killed process had finished is verified and stays, and so does its salt.

    Args:
        corpora: The folder of corpora; only those named in ``credentials`` are looked at.
        folder: Where to prepare, on a disk or below a bucket; name it after the digests of all
            other arguments.
        context: Loss targets of a full row; 1 for images.
        reserve_share: Share of records that are never trained on, in [0, 1).
        salt: 16 to 64 random bytes that choose them, drawn after the suppliers have signed.
        pulse: The envelope of the pulse that they are chosen by instead, where ``trust`` names a
            beacon.
        signer: Asked for the operator's key if nothing is prepared; it stays in this process.
        trust, at: Whose manifests count, and the reference time.
        max_quarantined: As for ``admit``.
        rows: What the records are; ``tokenizer`` is of that kind (`row_words.load_words`).
        by_family: Whether near copies, in whatever corpus, lie on one side of the reserve
            (``families/near_families.py``). Every record is read once more for it.
        progress: Called as parts are finished.

    Raises:
        Refused: as ``admit``; records that are not those of their credential; a folder prepared
            from other inputs.
        Refused: a corpus's secret is missing, or another one.
        Refused: a pulse is missing, another one, or was due before a credential was here.
        UsageError: a context below 1, a disk that cannot be written; canaries for a corpus that
            is not admitted, or too long for a row. Canaries in rows that are no text, and
            families of images.
    """
    if context < 1:
        raise UsageError("context is below 1", where="context", do="Give loss targets per row.")
    folder = folder.resolve()
    reserve = Reserve.from_json({"share": reserve_share, "salt": salt.hex()}, where="reserve")
    admission = admit(policy, credentials, max_quarantined=max_quarantined)
    planted = dict(canaries or {})
    documents = {corpus: each.document for corpus, each in credentials.items()}
    admitted = [documents[corpus] for corpus in admission.admitted]
    schema = common_schema(documents, admission.admitted, rows)
    if schema is not None and planted:
        raise UsageError(
            f"canaries are planted in packed text, and the run reads {rows}",
            where="canaries",
            do="Leave them out.",
        )
    canary_planting.check_corpora(planted, admission.admitted)
    families = RULE if by_family and reserve_share else None
    if families and schema is not None and schema.kind == "tensors":
        raise UsageError(
            "near copies are found in text, and the run reads images",
            where="reserve_by",
            do="Split the reserve by record.",
        )

    def made() -> Prepared | None:
        # On a store, what lies there before its manifest does is no folder yet.
        if not (folder / MANIFEST_FILE if isinstance(folder, BucketPath) else folder).exists():
            return None
        found = _reopen(folder, trust, at)
        if _inputs_of(found.manifest) != inputs:
            raise Refused("prepared from other inputs", where=str(folder), do=_AGAIN)
        found.manifest.reserve.check_drawn(trust.root.beacon, admitted, at=at)
        return found

    inputs = _inputs(
        {name: credentials[name].digest for name in admission.admitted},
        admission.quarantine,
        _described(tokenizer),
        context,
        reserve_share,
        planted,
        schema,
        families,
    )
    try:
        if found := made():
            return found
        if reserve_share and (beacon := trust.root.beacon):
            here = [credentials[corpus] for corpus in admission.admitted]
            used = _due_pulse(beacon, pulse, here, folder.parent / SEEN, at)
            reserve = Reserve(share=reserve_share, salt=used.salt, pulse=used)
        elif pulse is not None:
            raise UsageError(
                "no beacon of the trust root decides here", where="pulse", do="Leave it out"
            )
        key = signer()  # before any record is read
        with folder_lock(folder):
            if found := made():  # while this process waited for the lock
                return found
            # A draft of another salt is not gone on with, where a pulse decides.
            work = f"{inputs} {reserve.salt}" if reserve.pulse else inputs
            draft = DraftFolder.begin(folder, work, reserve.salt)
            if draft.inputs != work:
                raise Refused("another preparation was begun here", where=str(folder), do=_AGAIN)
            try:
                if reserve.pulse is None:  # of a draft that goes on, the salt that was drawn first
                    reserve = Reserve(share=reserve_share, salt=draft.choice)
                packing = Packing(draft, tokenizer, context, reserve, schema)
                manifest = _fill(
                    packing, corpora, credentials, admission, planted, families, progress
                )
            except Refused:  # of what was packed nobody knows what is wrong
                draft.discard()
                raise
            # What was packed has these roots.
            subjects = [
                Subject.of(c.corpus, credentials[c.corpus].document.records.root)
                for c in manifest.corpora
            ]
            done = Prepared(folder, seal(manifest, subjects, [key]))
            _ = done.sealed  # what cannot be read back is not committed
            try:
                draft.commit(MANIFEST_FILE, done.envelope)
            except FileExistsError:  # another process has made the same, on a store
                found = made()
                assert found is not None
                return found
    except OSError as error:
        raise cannot_write(error, folder) from error
    return done


def _due_pulse(
    beacon: Beacon,
    pulse: bytes | None,
    credentials: Sequence[Verified[Credential]],
    seen: Place,
    at: datetime,
) -> UsedPulse:
    """The pulse that decides, if the credentials were here before it was due."""
    issued = {each.document.corpus: each.document.issued for each in credentials}
    number = beacon.round_for(issued, at=at)
    due = beacon.due(number)
    for each in credentials:
        if (since := _first_seen(each, seen, at)) >= due:
            raise Refused(
                f"it was first here at {format_time(since)}, and the pulse that decides (beacon "
                f"{beacon.name}, round {number}) was due at {format_time(due)}: its issuer could "
                "have known it",
                where=f"credential of corpus {each.document.corpus!r}",
                do="Its issuer signs it again with a new 'issued'; then prepare before that pulse",
            )
    if pulse is None:
        raise Refused(
            f"the reserve waits for beacon {beacon.name}, round {number}, due at "
            f"{format_time(due)}",
            where="pulse",
            do="Then run: govray prepare EXPERIMENT --pulse FILE",
        )
    used = UsedPulse.read(pulse, where="pulse")
    beacon.check(used, issued, at=at, where="pulse")
    return used


def _first_seen(credential: Verified[Credential], seen: Place, at: datetime) -> datetime:
    """When a credential was first here: noted at the first look, and read ever after."""
    note = seen / credential.digest.removeprefix("sha256:")
    if not note.exists():
        make_folder(seen)
        write_whole(note, format_time(at).encode())
    return parse_time(note.read_bytes().decode("ascii", "replace"))


def _inputs(
    credentials: Mapping[str, str],
    quarantine: Sequence[Quarantined],
    tokenizer: TokenizerIdentity,
    context: int,
    reserve_share: float,
    canaries: Mapping[str, Canaries],
    rows: RowSchema | None,
    families: NearFamilies | None,
) -> str:
    """The digest of all that prepared data follow from, but for the salt."""
    return canonical_json.sha256(
        canonical_json.encode(
            {
                "credentials": dict(credentials),
                "quarantine": [each.to_json() for each in quarantine],
                "tokenizer": tokenizer.to_json(),
                "context": context,
                "reserve": repr(reserve_share),
                "canaries": {name: each.to_json() for name, each in canaries.items()},
                "rows": rows.to_json() if rows else None,
            }
            | ({"families": families.to_json()} if families else {})
        )
    )


def _inputs_of(made: Manifest) -> str:
    """The same of prepared data, by their manifest."""
    return _inputs(
        {each.corpus: each.credential for each in made.corpora},
        made.quarantine,
        made.tokenizer,
        made.context,
        made.reserve.share,
        {each.corpus: each.planted.canaries for each in made.corpora if each.planted},
        made.rows,
        made.families,
    )


def _fill(
    packing: Packing,
    corpora: Place,
    credentials: Mapping[str, Verified[Credential]],
    admission: Admission,
    canaries: Mapping[str, Canaries],
    families: NearFamilies | None,
    progress: Progress,
) -> Manifest:
    """Write every shard below ``packing.folder``, and check every corpus. Raises as ``prepare``."""
    items = {
        corpus: tuple(items_of(corpora / corpus, credentials[corpus].document, packing.folder))
        for corpus in admission.admitted
    }
    secrets = {
        corpus: record_commitment.read_secret(
            corpora / corpus, credentials[corpus].document.records.commitment
        )
        for corpus in items
    }
    total = sum(credentials[corpus].document.records.count for corpus in items)
    if families:
        items = with_families(items, total, progress)
    work = [item for parts in items.values() for item in parts]
    packed = pack_all(packing, work, total, progress)
    corpora_made = tuple(
        PreparedCorpus.of(credentials[corpus], [packed[item].part for item in parts])
        for corpus, parts in items.items()
    )
    manifest = Manifest(
        tokenizer=_described(packing.tokenizer),
        context=packing.context,
        reserve=packing.reserve,
        corpora=corpora_made,
        quarantine=admission.quarantine,
        rows=packing.schema,
        families=families,
    )
    records = open_records(packing.folder, manifest)
    for made in corpora_made:
        stated = credentials[made.corpus].document.records
        held, root = manifest.records(made.corpus), records.merkle_root(made.corpus)
        check_root(corpora / made.corpus, held, root, stated)
    planted = canary_planting.plant(
        corpora_made,
        records,
        canaries,
        secrets,
        packing.folder,
        packing.tokenizer,
        packing.context,
    )
    return Manifest(**dict(manifest) | {"corpora": planted})


def _described(tokenizer: Tokenizer) -> TokenizerIdentity:
    return TokenizerIdentity(
        name=tokenizer.name,
        digest=tokenizer.digest,
        vocabulary=tokenizer.vocabulary,
        separator=tokenizer.separator,
    )


def _reopen(folder: Place, trust: TrustState, at: datetime) -> Prepared:
    """A folder that was committed before, if an operator signed its manifest."""
    path = folder / MANIFEST_FILE
    try:
        found = Prepared(folder, path.read_bytes())
        own = trust.each_key_counts("operator")  # other keys may sign the model later
        verify_manifest(own, found.envelope, at=at, where=str(path))
    except Untrusted as error:
        raise Untrusted(error.what, where=str(path), do=_AGAIN) from error
    except (OSError, Refused) as error:
        raise Refused("the manifest cannot be read", where=str(path), do=_AGAIN) from error
    return found
