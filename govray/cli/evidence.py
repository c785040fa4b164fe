"""``govray evidence``: one archive with what it takes to verify a model offline, later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli.option_group import option_groups
from govray.cli.output import field, line, report
from govray.cli.place_argument import Given, given_place
from govray.cli.trust import ModelTrust
from govray.errors import UsageError


@option_groups
def evidence(
    path: Annotated[
        Given,
        typer.Argument(
            metavar="MODEL", parser=given_place, help="A model folder, or a run that has one."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The archive, a new .zip.")],
    trusted: ModelTrust,
    case: Annotated[
        str | None, typer.Option("--for", metavar="CASE", help="What it is for; stands in it.")
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="With the model's weights, however large.")
    ] = False,
) -> None:
    """Verify a model, and pack what that rests on, with what verifies it.

    The archive has the signed documents, the ledger, the trust root and the revocation lists. It
    has this verifier's wheel, and a script that needs only Python and cryptography. Names of
    corpora are in it; keys, records and secrets are not. The same --at gives the same bytes.
    """
    from govray.evidence.packs.evidence_pack import write_pack
    from govray.governance.attestation.model_folder import MODEL, find_model

    if not path.exists():
        raise UsageError("no such file or folder", where=str(path), do="Check the path.")
    if find_model(path) is None and (path / MODEL).is_dir():
        path = path / MODEL
    if not out.parent.is_dir():
        raise UsageError("there is no such folder", where=str(out.parent), do="Check --out.")
    verified, digests = write_pack(
        path,
        out,
        trust=trusted.anchor(),
        at=trusted.time(),
        case=case,
        weights=weights,
        allow_uncovered=trusted.allow_uncovered or (),
    )
    root = verified.trust_root
    report({"pack": str(out), "attestation": verified.digest, "files": digests})
    line(f"{out}: {len(digests) + 1} files, of a model that verifies", "bold")
    field("run", f"{verified.attestation.run.id}, {verified.digest}")
    field("trust", f"root {root.root.name} v{root.root.version}, {root.digest}")
    line("Its reader needs the trust root, or its digest, from the root's owner.")
