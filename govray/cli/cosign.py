"""``govray cosign``: another holder of an operator's key verifies a model and signs it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

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
        line("It verifies once the others have signed: govray cosign with another key")
