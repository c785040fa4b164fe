"""``govray model cosign`` and ``timestamp``: what others sign over a model's attestation."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from govray.cli import signing_key, trust, user_files
from govray.cli.option_group import option_groups
from govray.cli.output import (
    DEFAULT_KEY,
    AllowUncovered,
    Key,
    PasswordFile,
    RevocationLists,
    TrustRoot,
    field,
    line,
    report,
)
from govray.cli.trust import ModelTrust
from govray.errors import UsageError


@option_groups
def cosign(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    trusted: ModelTrust,
    key: Key = DEFAULT_KEY,
    password_file: PasswordFile = None,
) -> None:
    """Verify MODEL except for missing signatures, then sign it with another key of its operator.

    For operators whose threshold is two or more. The first key trains and attests, and each other
    holder runs this. The model verifies once the last one has signed.
    """
    from govray.governance.attestation.model_folder import find_model
    from govray.governance.verify.cosign import cosign_model

    signer = signing_key.load(key, password_file)
    done = cosign_model(
        model,
        signer,
        anchor=trusted.anchor(),
        at=trusted.time(),
        allow_uncovered=trusted.allow_uncovered or [],
    )
    folder = find_model(model) or model
    for name, envelope in done.files.items():
        user_files.write(folder / name, envelope)
    report(
        {
            "model": str(done.model.path),
            "attestation": done.model.digest,
            "operator": done.model.signer,
            "keyid": signer.public_key.keyid,
            "added": list(done.files),
            "signatures": done.signatures,
            "threshold": done.threshold,
            "complete": done.complete,
        }
    )
    said = "Signed" if done.files else "Had signed before"
    line(f"{said}: {done.model.path}", style="bold")
    field("attests", done.model.digest)
    field("run", done.model.attestation.run.id)
    field("operator", f"{done.model.signer}: {done.signatures} of {done.threshold} signatures")
    if done.complete:
        line(f"Next  govray verify {quote(str(done.model.path))} --trust-root ROOT")
    else:
        line("It verifies once the others have signed: govray model cosign with another key")


def timestamp(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    tsa: Annotated[
        str,
        typer.Option("--tsa", metavar="URL", help="The timestamp authority, over http or https."),
    ],
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    allow_uncovered: AllowUncovered = None,
) -> None:
    """Verify MODEL, and let a timestamp authority sign when its attestation existed.

    The authority gets a digest and nothing else. The trust root has to name it, with certificates
    that its token leads to. An earlier timestamp by the same authority is kept.
    """
    from datetime import UTC, datetime

    from govray.evidence.notaries.asking import ask_timestamp
    from govray.governance.attestation import model_folder
    from govray.governance.formats.document import format_time
    from govray.governance.notary.timestamp import check_timestamps

    found = trust.ModelTrust(
        trust_root=trust_root, revocations=revocations, allow_uncovered=allow_uncovered
    ).verify(model)
    folder = Path(str(found.path))
    authorities = found.trust_root.root.timestamp_authorities
    if not authorities:
        raise UsageError(
            "the trust root names no timestamp authority, so no token would count",
            where="--trust-root",
            do="Let its owner add timestamp_authorities, with their certificates",
        )
    envelope = user_files.read(folder / model_folder.ATTESTATION)
    token, stamp = ask_timestamp(tsa, envelope, authorities)
    finished = found.attestation.run.finished
    now = datetime.now(UTC)
    # What the verifier would refuse is not stored.
    check_timestamps(found.trust_root, [(tsa, token)], envelope, finished=finished, at=now)
    path = folder / model_folder.timestamp_file(stamp.authority)
    user_files.write(path, token, replace=False)
    report(
        {
            "model": str(folder),
            "attestation": found.digest,
            "authority": stamp.authority,
            "time": format_time(stamp.time),
            "file": str(path),
        }
    )
    line(f"Stamped {folder}", style="bold")
    field("attests", found.digest)
    field("timestamp", str(stamp))
    field("file", str(path))
