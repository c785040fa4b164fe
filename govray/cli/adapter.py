"""``govray adapter``: take an adapter out of a model folder, or copy it elsewhere.

`remove` leaves the old folder or the new one, whatever interrupts it, and either verifies. It signs
that the adapter's tensors are absent from these files, not from copies that others hold.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import signing_key, user_files, verified_block
from govray.cli.option_group import option_groups
from govray.cli.output import DEFAULT_KEY, Key, PasswordFile, field, line, note, report
from govray.cli.trust import ModelTrust
from govray.errors import GovrayError, Refused, Untrusted, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from govray.governance.formats.keys import PublicKey, Signer
    from govray.governance.trust.revocation_list import Revocation
    from govray.governance.verify.verifier import VerifiedModel

app = typer.Typer(help="Remove or export adapters. Merging is refused, with the reason.")

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")]
Adapter = Annotated[str, typer.Argument(metavar="ADAPTER", help="The adapter's name.")]


@app.command()
@option_groups
def remove(
    model: Model,
    adapter: Adapter,
    trusted: ModelTrust,
    key: Key = DEFAULT_KEY,
    password_file: PasswordFile = None,
    revoke: Annotated[
        Path | None,
        typer.Option(
            "--revoke",
            metavar="FILE",
            help="Revoke the old attestation in this list of the operator, or in a new list.",
        ),
    ] = None,
) -> None:
    """Delete an adapter's files and sign an attestation of what is left.

    The base files keep their digests. KEY must belong to an operator of the trust root, not
    necessarily the one that signed the run. Earlier copies of the folder verify until their
    attestation is revoked. --revoke does that; without it, the entry for the operator's list is
    printed.
    """
    from govray.governance.attestation.adapter_removal import countersigned, remove_adapter_files
    from govray.governance.attestation.model_attestation import without_adapter
    from govray.governance.attestation.model_folder import find_model
    from govray.governance.formats import canonical_json
    from govray.governance.formats.document import format_time
    from govray.governance.formats.statement import seal
    from govray.governance.trust.revocation_list import Revocation
    from govray.governance.verify.cosign import missing_signatures
    from govray.governance.verify.verifier import verify, verify_to_cosign
    from govray.train.checkpoint.holds import check_not_held
    from govray.train.checkpoint.pins import locked

    signer = signing_key.load(key, password_file)
    anchor = trusted.anchor()
    now = trusted.time()
    allowed = trusted.allow_uncovered or []
    before = verify(model, trust_root=anchor, at=now, allow_uncovered=allowed)
    operator = _operator(before, signer.public_key)
    folder = find_model(model) or model
    held_by = folder.resolve().parent  # the run's, where the model lies in one
    check_not_held(held_by, "the model")
    signed = countersigned(folder, before.attestation, signer)
    after = without_adapter(
        before.attestation,
        before.routes,
        adapter,
        at=format_time(now),
        replaced={name: canonical_json.sha256(data) for name, data in signed.items()},
    )
    entry = Revocation(
        attestation=before.digest, since=format_time(now), reason=f"adapter {adapter} was removed"
    )
    listed = None if revoke is None else _listed(before, operator, revoke, entry, signer, now)
    kept = [each for each in before.subjects if not _belongs(each.name, adapter)]
    envelope = seal(after, kept, [signer])

    done: VerifiedModel

    def accept(folder: Path) -> None:
        nonlocal done
        try:
            # Further holders of the operator's keys sign what is left afterwards.
            done = verify_to_cosign(folder, trust_root=anchor, at=now, allow_uncovered=allowed)
        except GovrayError as error:
            raise Refused(
                f"the result would not verify ({error.what}), so nothing was changed",
                where=str(model),
                do=error.do,
            ) from None

    staged = None if revoke is None or listed is None else user_files.stage(revoke, listed)
    try:
        with locked(held_by):  # no case comes between this look and the deletion
            check_not_held(held_by, "the model")
            remove_adapter_files(folder, adapter, envelope, accept=accept, replaced=signed)
    except BaseException as error:
        # Once the folder is the new one, the entry must not be lost, whatever interrupted this.
        if not _holds(folder, envelope):
            if staged is not None:
                staged.unlink()
            raise
        if revoke is not None and staged is not None:
            _put(staged, revoke, entry)
        needed = f"The list of {operator} needs this entry: {_told(entry)}"
        if isinstance(error, GovrayError):
            raise UsageError(
                f"the adapter was removed, but then something else failed ({error.what})",
                where=str(model),
                do=needed if revoke is None else f"The old attestation is revoked in {revoke}.",
            ) from None
        note(f"The adapter was removed. {needed}")
        raise
    if revoke is not None and staged is not None:
        _put(staged, revoke, entry)
    levels = _levels(done, adapter)
    missing = missing_signatures(before.trust_root, envelope)
    report(
        {
            "model": str(before.path),
            "removed": adapter,
            "attestation": done.digest,
            "subjects": {each.name: each.sha256 for each in done.subjects},
            "levels": levels,
            "replaced": before.digest,
            "revocation": entry.to_json(),
            "revocations": None if revoke is None else str(revoke),
            "missingSignatures": missing,
        }
    )
    line(f"Removed {adapter} from {before.path}", style="bold")
    field("base files", f"{len(kept)} with the digests they had")
    for corpus, level in levels.items():
        field("level", f"{corpus} {level}{_why(level)}")
    field("attests", "its tensors are absent from these files; copies are not covered")
    field("replaced", before.digest)
    if missing:
        field(
            "next",
            f"govray model cosign {quote(str(before.path))}: "
            f"{missing} more of the operator's keys must sign",
        )
    else:
        root = f" --trust-root {quote(str(trusted.trust_root))}" if trusted.trust_root else ""
        field("next", f"govray verify {quote(str(before.path))}{root}")
    if revoke is not None:
        field("revoked", f"in {revoke}; earlier copies fail where that list is given")
        return
    field("revoke", f"earlier copies verify until the list of {operator} has this entry:")
    line(f"    - {_told(entry)}")


def _told(entry: Revocation) -> str:
    return f"{{attestation: {entry.attestation}, since: {entry.since}, reason: {entry.reason}}}"


def _holds(model: Path, attestation: bytes) -> bool:
    from govray.governance.attestation import model_folder

    try:
        return (model / model_folder.ATTESTATION).read_bytes() == attestation
    except OSError:
        return False


def _put(staged: Path, path: Path, entry: Revocation) -> None:
    """Rename a signed list, which lies beside ``path``, to ``path``."""
    from govray.storage.atomic_file import sync_folder

    try:
        staged.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise UsageError(
            f"the adapter was removed, but the list cannot be written: {error.strerror}",
            where=str(path),
            do=f"The signed list with the entry {_told(entry)} is {staged}; move it yourself.",
        ) from None


def _operator(model: VerifiedModel, key: PublicKey) -> str:
    operators = [each for each in model.trust_root.authorities if each.role == "operator"]
    found = next((each.name for each in operators if key in each.keys), None)
    if found is None:
        raise Untrusted(
            f"the key {key.keyid[:12]}… belongs to no operator of the trust root, so nothing was "
            "changed",
            where="--key",
            do=f"Sign with a key of {', '.join(each.name for each in operators) or 'an operator'}.",
        )
    return found


def _listed(
    model: VerifiedModel,
    operator: str,
    path: Path,
    entry: Revocation,
    signer: Signer,
    at: datetime,
) -> bytes:
    """The operator's next list, signed, with ``entry`` in it."""
    from govray.governance.trust.revocation_list import (
        Revocations,
        following_list,
        verify_revocations,
    )

    state = model.trust_root
    threshold = next(each.threshold for each in state.authorities if each.name == operator)
    if threshold > 1:
        raise Refused(
            f"a list of {operator} needs the signatures of {threshold} keys, and --revoke gives "
            "one, so nothing was changed",
            where=str(path),
            do="Leave --revoke out. Put the entry that is then printed into the operator's list, "
            "and sign the list with each key",
        )
    known = [each.document for each in state.revocations.lists] if state.revocations else []
    if path.exists():
        known.append(verify_revocations(state, user_files.read(path), at=at).document)
        if known[-1].issuer != operator:
            raise Refused(
                f"the list belongs to {known[-1].issuer}, and the key to {operator}",
                where=str(path),
                do="Name the operator's own list, or a new file.",
            )
    earlier = [each for each in known if each.issuer == operator]
    newest = max(earlier, key=lambda each: each.sequence, default=None)
    envelope = following_list(newest, operator, entry, at=at).seal([signer])
    Revocations.load(state, [envelope], at=at)  # as others will
    return envelope


@app.command()
@option_groups
def export(
    model: Model,
    adapter: Adapter,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.")],
    trusted: ModelTrust,
) -> None:
    """Copy an adapter, in peft's layout, into the new folder DIR, after verifying the model."""
    from govray.governance.attestation import model_folder

    verified = trusted.verify(model)
    subjects = {each.name: each.sha256 for each in verified.subjects}
    _require(verified, adapter)
    names = model_folder.adapter_files(adapter)
    with user_files.new_folder(out) as staged:
        for name in names:
            digest = subjects[name].removeprefix("sha256:")
            target = staged / Path(name).name
            model_folder.Bundle(verified.path).copy(name, target, sha256=digest)
    copied = {Path(name).name: subjects[name] for name in names}
    report({"adapter": adapter, "folder": str(out), "files": copied})
    line(f"Exported {adapter} to {out}")
    for name, digest in copied.items():
        field(name, digest)


def _require(model: VerifiedModel, adapter: str) -> None:
    """Refuse a name unless it is an adapter whose files are there."""
    subjects = {each.name for each in model.subjects}
    present = [
        each.name
        for each in model.attestation.adapters
        if any(_belongs(name, each.name) for name in subjects)
    ]
    if adapter not in present:
        raise UsageError(
            "the model has no such adapter",
            where=adapter,
            do=f"It has {', '.join(present) or 'none'}.",
        )


def _belongs(name: str, adapter: str) -> bool:
    from govray.governance.attestation import model_folder

    return name.startswith(f"{model_folder.ADAPTERS}/{adapter}/")


def _levels(model: VerifiedModel, adapter: str) -> dict[str, int]:
    """The adapter's corpora → what now holds for the layer groups that they do not reach."""
    adapters = model.attestation.adapters
    corpora = next(each.corpora for each in adapters if each.name == adapter)
    levels = {corpus: verified_block.exclusion_level(model, corpus) for corpus in corpora}
    return {corpus: level for corpus, level in levels.items() if level is not None}


def _why(level: int) -> str:
    if level == 3:
        return f" ({verified_block.LEVELS[level]})"
    if level == 0:
        return ": the weights that the run started from had seen it"
    return (
        ": level 3 also needs, before, a replay without the corpus (govray replay RUN --without "
        "CORPUS --key KEY) in the attestation (govray attest RUN)"
    )
