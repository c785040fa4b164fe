"""``govray model export`` and ``evidence``: a verified model in a format that others check.

The model folder itself is never written to. Its attestation covers every file that a loader reads,
so another file there would no longer verify.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from govray.cli import signing_key, user_files
from govray.cli.option_group import Given, given_place, option_groups
from govray.cli.output import DEFAULT_KEY, Force, PasswordFile, field, line, report
from govray.cli.trust import ModelTrust
from govray.errors import UsageError


@option_groups
def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="model-signing, sigstore, cyclonedx, spdx, croissant, openlineage or model-card.",
        ),
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    trusted: ModelTrust,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The folder for it, outside of MODEL. Default: MODEL.exports beside MODEL.",
        ),
    ] = None,
    force: Force = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="For model-signing: a P-256 key, as PEM file or env:NAME. Default: "
            "env:GOVRAY_KEY.",
        ),
    ] = None,
    password_file: PasswordFile = None,
) -> None:
    """Verify MODEL, then write what its records state in another format.

    Nothing is written unless MODEL verifies. Equal models give equal bytes, signatures apart.
    """
    from govray.evidence.exports.export_format import SIGNED, export_format
    from govray.evidence.exports.verified_facts import VerifiedFacts

    signing = name == SIGNED or key is not None or password_file is not None
    signer = signing_key.load(key or DEFAULT_KEY, password_file) if signing else None
    chosen = export_format(name, signer)
    verified = trusted.verify(model)
    if out is None:
        folder = Path(str(verified.path)).resolve()
        out = folder.with_name(f"{folder.name}.exports")
    user_files.require_outside(out, verified.path)
    facts = VerifiedFacts.of(verified)
    files = dict(chosen.write(facts))
    target = out / chosen.place
    # A dangling link counts as existing.
    if os.path.lexists(target) and not force:
        raise UsageError("already exists", where=str(target), do="Give --force to replace it.")
    user_files.make_folder(out)
    if chosen.each is not None:
        _write_folder(target, files, chosen.suffix, replace=force)
    else:
        user_files.write(target, files[chosen.place], replace=force)
    report(
        {
            "format": name,
            "model": str(verified.path),
            "attestation": verified.digest,
            "written": str(target),
            "files": sorted(files),
            "keyid": signer.public_key.keyid if signer else None,
            "uncovered": list(verified.uncovered),
        }
    )
    line(f"Wrote {target}", style="bold")
    field("model", f"{facts.name}, verified: {len(facts.files)} files, signer {facts.signer}")
    field("attests", verified.digest)
    if chosen.each == "corpus":
        field("corpora", ", ".join(each.name for each in facts.trained) or "none trained")
    for signed in facts.keys if chosen.each == "keyid" else ():
        field("signed by", f"{signed.keyid}, named {signed.openssh_fingerprint}")
    if signer:
        field("key", signer.public_key.keyid)
    for each in verified.uncovered if signer else ():
        field("NOT SIGNED", f"{each}: the attestation says nothing about this file")


def _write_folder(target: Path, files: Mapping[str, bytes], suffix: str, *, replace: bool) -> None:
    """Put the folder ``target`` there with these files, whole or not at all."""
    from govray.storage.staged_folder import staged_folder

    try:
        there = os.listdir(target) if os.path.lexists(target) else []
        if other := sorted(each for each in there if not each.endswith(suffix)):
            raise UsageError(
                f"the folder holds {other[0]!r}, which is no export",
                where=str(target),
                do="Move it away, or name another folder.",
            )
        with staged_folder(target, replace=replace) as staged:
            for name, data in files.items():
                (staged / name).write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}",
            where=str(target),
            do="Check the space and the permissions there.",
        ) from None


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
        str | None,
        typer.Option("--for", metavar="CASE", help="The purpose, which stands in the archive."),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Include the model's weights, however large.")
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
