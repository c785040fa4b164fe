"""``govray disclose``: commit to an attestation's parts, so that each can be shown by itself."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import signing_key, user_files
from govray.cli.option_group import option_groups
from govray.cli.output import (
    DEFAULT_KEY,
    Key,
    PasswordFile,
    field,
    line,
    report,
)
from govray.cli.trust import ModelTrust
from govray.errors import UsageError

if TYPE_CHECKING:
    pass


@option_groups
def disclose(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    secret: Annotated[
        Path,
        typer.Option(
            "--secret",
            metavar="FILE",
            help="The secret behind all salts; made if it is not there. Outside of MODEL.",
        ),
    ],
    trusted: ModelTrust,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The signed disclosure, a new file.")
    ] = Path("disclosure.dsse.json"),
    key: Key = DEFAULT_KEY,
    password_file: PasswordFile = None,
) -> None:
    """Verify MODEL, and sign salted commitments to the parts of its attestation.

    Views of it are made from that with govray view make, without the key. The secret
    opens every part. The same model and secret give the same commitments.
    """
    from govray.evidence.views.disclosure import read_secret, sign_disclosure
    from govray.evidence.views.view import verify_disclosure
    from govray.governance.verify.cosign import missing_signatures

    found = trusted.verify(model)
    for path in (secret, out):
        user_files.require_outside(path, found.path)
    if os.path.lexists(out):
        raise UsageError("already exists", where=str(out), do="Choose another name.")
    made = not os.path.lexists(secret)
    used = secrets.token_bytes(32) if made else read_secret(secret)
    signer = signing_key.load(key, password_file)
    envelope = sign_disclosure(found, used, signer)
    # As others will, so that nothing is handed out that they refuse.
    one_key = found.trust_root.each_key_counts("operator")
    signed = verify_disclosure(one_key, envelope, at=trusted.time(), where=str(out))
    missing = missing_signatures(found.trust_root, envelope)
    if made:
        user_files.write(secret, used, mode=0o600, replace=False)
    user_files.write(out, envelope, replace=False)
    report(
        {
            "disclosure": str(out),
            "digest": signed.digest,
            "attestation": found.digest,
            "leaves": signed.document.leaves,
            "keyid": signer.public_key.keyid,
            "missingSignatures": missing,
            "secret": str(secret),
            "secretMade": made,
        }
    )
    line(f"Disclosed {found.path}: {out}", style="bold")
    field("leaves", f"{signed.document.leaves}, padding included")
    field("signer", f"{signed.authority.name}, key {signer.public_key.keyid}")
    field("secret", f"{secret}{', made now: keep it' if made else ''}")
    if missing:
        field("MISSING", f"{missing} further signatures: govray sign {quote(str(out))} --key KEY")
