"""``govray verify``: a model folder, a file in one, a corpus, or one signed document.

`govray.governance` verifies. This module finds out what kind of thing is given, and prints the
result. It works on the base install, offline, but needs pyarrow to read a corpus's records.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import trust, user_files, verified_block
from govray.cli.option_group import Given, given_place
from govray.cli.output import (
    AllowUncovered,
    At,
    Delegations,
    Records,
    RevocationLists,
    TrustRoot,
    field,
    line,
    report,
)
from govray.cli.run_records import given_records
from govray.errors import CouldNotCheck, Refused, UsageError
from govray.storage.place import Place

if TYPE_CHECKING:
    from govray.governance.trust.trust_state import TrustState, Verified
    from govray.governance.verify.verifier import VerifiedModel


def verify(
    path: Annotated[
        Given,
        typer.Argument(
            metavar="PATH",
            parser=given_place,
            help="A model folder, a file in one, a corpus or a signed document. Of a model folder "
            "also its URL.",
        ),
    ],
    trust_root: TrustRoot = None,
    delegation: Delegations = None,
    replay: Annotated[
        list[Path] | None,
        typer.Option(
            "--replay", metavar="FILE", help="A second party's replay statement. Repeatable."
        ),
    ] = None,
    pin: Annotated[
        bool,
        typer.Option(
            "--pin", help="If all verifies, keep this trust root and the lists for later."
        ),
    ] = False,
    revocations: RevocationLists = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also",
            metavar="HEAD",
            help="A signed head of the same run that you got elsewhere (ledger.checkpoint). "
            "Different histories are refused. Repeatable.",
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(
            "--max-rows",
            metavar="N",
            min=1,
            help="The most rows to count. Default: 16,777,216. A run that read more gives exit "
            "code 3.",
        ),
    ] = None,
    records: Records = None,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample",
            metavar="SHARE",
            help="Read this share of the records' parts, one at least, drawn by the attestation's "
            "digest. With --records.",
        ),
    ] = None,
    allow_uncovered: AllowUncovered = None,
    at: At = None,
) -> None:
    """Check signatures, digests and totals, from the files alone.

    With --records it also reads the records that the run was prepared from. Without them the
    verdict says what remains the signer's word.

    Exit code 0: all of it holds. 1: something does not. 3: it could not be checked. A trust root,
    an attestation, a ledger or a fresh revocation list is missing, or there are too many rows to
    count.
    """
    from govray.governance.attestation import model_folder

    moment = trust.reference_time(at)
    delegations = delegation or []
    if not path.exists():
        raise UsageError("no such file or folder", where=str(path), do="Check the path.")
    if model_folder.find_model(path) is not None:
        if delegations:
            raise UsageError(
                "a model folder already contains its delegations",
                where="--delegation",
                do="Leave the option out.",
            )
        from govray.governance.verify.ledger_step import MAX_ROWS
        from govray.governance.verify.verifier import verify as verify_model

        model = verify_model(
            path,
            trust_root=trust.anchor(trust_root, revocations),
            replay_checks=replay or [],
            also=also or [],
            max_rows=MAX_ROWS if max_rows is None else max_rows,
            allow_uncovered=allow_uncovered or [],
            at=moment,
            records=None if records is None else given_records(records, path),
            sample=sample,
        )
        found, tell = _model(path, model)
        state = model.trust_root
    else:
        if not isinstance(path, Path):
            raise CouldNotCheck(
                "there is no attestation here",
                where=str(path),
                do="Below a URL only model folders are verified. Copy other documents to a disk.",
            )
        for option, given, what in (
            ("--also", also, "heads belong to the ledger of a model folder"),
            ("--max-rows", max_rows, "rows belong to the ledger of a model folder"),
            ("--records", records, "records belong to the manifest of a model folder"),
            ("--sample", sample, "records belong to the manifest of a model folder"),
            ("--allow-uncovered", allow_uncovered, "only a model folder can have such files"),
            ("--replay", replay, "a replay statement is about a model folder"),
        ):
            if given not in (None, []):
                raise UsageError(
                    what, where=option, do="Give a model folder, or leave the option out."
                )
        state = trust.load(
            trust_root, at=moment, delegations=delegations, checked=path, revocations=revocations
        )
        found, tell = (_corpus if path.is_dir() else _document)(path, state, moment)
    if pin:
        root = trust.root_path(trust_root)
        found["pinned"] = str(trust.pin(root, revocations or [], state, at=moment))
    report(found)
    tell()
    if pin:
        field("pinned", found["pinned"])


Told = tuple[dict[str, Any], Callable[[], None]]


def _model(path: Place, model: VerifiedModel) -> Told:
    from govray.governance.attestation import model_folder

    inside = model_folder.name_inside(path, model.path)
    found = verified_block.to_json(model)
    if inside != ".":
        if path.is_file() and inside in model.uncovered:
            raise CouldNotCheck(
                "the attestation of its folder says nothing about this file",
                where=str(path),
                do="Verify a file that it covers, or the folder.",
            )
        found["file"] = inside

    def tell() -> None:
        verified_block.print_verdict(model)
        if inside != ".":
            field("file", f"{inside}: one of the files above")

    return found, tell


def _corpus(path: Path, state: TrustState, at: datetime) -> Told:
    from govray.governance.attestation import model_folder
    from govray.governance.policy.credential import verify_credential
    from govray.governance.policy.revoked import check_unrevoked_credential

    envelope = path / "credential.dsse.json"
    if not envelope.is_file():
        raise CouldNotCheck(
            "there is no attestation and no signed credential here",
            where=str(path),
            do=f"{model_folder.what_to_give(path)} Of a corpus the credential has to be signed.",
        )
    verified = verify_credential(state, user_files.read(envelope), at=at)
    check_unrevoked_credential(state, verified, at=at)
    credential = verified.document
    # After the signature: the records are as large as the corpus.
    from govray.data.corpus import verify_corpus

    verify_corpus(path, credential.records)
    if path.resolve().name != credential.corpus:
        raise Refused(
            f"the folder holds the corpus {credential.corpus!r}",
            where=str(path),
            do="Rename the folder to the corpus's name, by which runs know it.",
        )

    def tell() -> None:
        line(f"VERIFIED corpus {credential.corpus}   {credential.records.count:,} records", "bold")
        field("root", credential.records.root)
        field("licence", f"{credential.license} ({credential.license_category})")
        field("signer", verified.authority.name)
        field("revoked", verified_block.checked_lists(state))
        field("not shown", "that the licence statement is true")

    return _to_json("corpus", credential.corpus, verified), tell


def _document(path: Path, state: TrustState, at: datetime) -> Told:
    kind, name, verified = _verified(user_files.read_signed(path), path, state, at)

    def tell() -> None:
        line(f"VERIFIED {kind} {name}", "bold")
        field("digest", verified.digest)
        field("signer", verified.authority.name)
        field("revoked", verified_block.checked_lists(state))

    return _to_json(kind, name, verified), tell


def _to_json(kind: str, name: str, verified: Verified[Any]) -> dict[str, Any]:
    return {
        "verified": True,
        "kind": kind,
        "name": name,
        "digest": verified.digest,
        "signer": verified.authority.name,
        "keyids": sorted(verified.keyids),
        "document": verified.document.to_json(),
    }


def _verified(
    data: bytes, path: Path, state: TrustState, at: datetime
) -> tuple[str, str, Verified[Any]]:
    """One signed document, verified; its kind and its name.

    The predicate type is read before anything is verified, without parsing the statement. It only
    chooses which check has to pass.
    """
    from govray.governance.attestation.case_answer import CaseAnswer, verify_case_answer
    from govray.governance.attestation.memorization_manifest import (
        MemorizationManifest,
        verify_memorization_manifest,
    )
    from govray.governance.attestation.model_attestation import Attestation
    from govray.governance.attestation.replay_check import ReplayCheck
    from govray.governance.formats.dsse import Envelope
    from govray.governance.formats.statement import claimed_type
    from govray.governance.policy.credential import Credential, verify_credential
    from govray.governance.policy.depth_policy import Policy, verify_policy
    from govray.governance.policy.revoked import check_unrevoked_credential, check_unrevoked_policy
    from govray.governance.record.prepare_manifest import Manifest, verify_manifest
    from govray.governance.trust.revocation_list import (
        RevocationList,
        Revocations,
        verify_revocations,
    )
    from govray.platform.store.promotion_gates import PromotionPolicy, verify_promotion_policy

    predicate_type = claimed_type(Envelope.parse(data, where=str(path)))
    verified: Verified[Any]
    if predicate_type == Policy.PREDICATE_TYPE:
        verified = verify_policy(state, data, at=at)
        check_unrevoked_policy(state, verified, at=at)
        kind, name = "policy", str(verified.document)
    elif predicate_type == PromotionPolicy.PREDICATE_TYPE:
        verified = verify_promotion_policy(state, data, at=at, where=str(path))
        kind, name = "promotion policy", str(verified.document)
    elif predicate_type == Credential.PREDICATE_TYPE:
        verified = verify_credential(state, data, at=at)
        check_unrevoked_credential(state, verified, at=at)
        kind, name = "credential", verified.document.corpus
    elif predicate_type == Manifest.PREDICATE_TYPE:
        verified = verify_manifest(state, data, at=at)
        kind, name = "prepare manifest", path.name
    elif predicate_type == RevocationList.PREDICATE_TYPE:
        verified = verify_revocations(state, data, at=at)
        if state.revocations:  # never behind one that is known
            Revocations.load(state, [data], at=at).following(state, state.revocations)
        kind, name = "revocation", str(verified.document)
    elif predicate_type == MemorizationManifest.PREDICATE_TYPE:
        verified = verify_memorization_manifest(state, data, at=at)
        kind, name = "memorization manifest", verified.document.run
    elif predicate_type == CaseAnswer.PREDICATE_TYPE:
        verified = verify_case_answer(state, data, at=at)
        kind, name = "answer to case", verified.document.case
    elif predicate_type == ReplayCheck.PREDICATE_TYPE:
        raise CouldNotCheck(
            "a replay statement is about a model folder",
            where=str(path),
            do="Give the folder, and this file with --replay.",
        )
    elif predicate_type == Attestation.PREDICATE_TYPE:
        raise CouldNotCheck(
            "an attestation is about the files of its model folder",
            where=str(path),
            do="Give the folder, with the attestation in governance/.",
        )
    else:
        raise CouldNotCheck(
            f"nothing here verifies a document of type {predicate_type!r}",
            where=str(path),
            do="Give a policy, a credential, a revocation list or a manifest. Give roots and "
            "delegations with --trust-root and --delegation.",
        )
    return kind, name, verified
