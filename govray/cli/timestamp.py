"""``govray timestamp``: a timestamp of RFC 3161 over a model's attestation, stored beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli import trust, user_files
from govray.cli.output import (
    AllowUncovered,
    RevocationLists,
    TrustRoot,
    field,
    line,
    report,
)
from govray.errors import UsageError


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

    from govray.evidence.notaries.timestamping import ask_timestamp
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
