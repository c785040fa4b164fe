"""``govray sign``: check a source against its schema, then put a signature on it.

The same command adds a signature, to an envelope that is named directly or that lies beside the
source and holds the same document. A different document replaces the envelope's, unless that has
the same or a higher version: verifiers refuse to go back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import signing_key, user_files
from govray.cli.output import DEFAULT_KEY, Force, Key, PasswordFile, field, line, report
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.cli.source_files import Unsigned
    from govray.governance.formats.dsse import Envelope
    from govray.governance.formats.keys import Signer


def sign(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Policies, credentials, trust roots or delegations; or their envelopes.",
        ),
    ],
    key: Key = DEFAULT_KEY,
    password_file: PasswordFile = None,
    force: Force = False,
) -> None:
    """Sign documents, or add a signature to each.

    The envelope goes beside the source: NAME.dsse.json, or NAME.json for a trust root. A file that
    can't be signed ends the command; said again, it leaves those before it as they are.
    """
    read = [
        _read(path, number) for number, path in enumerate(paths, 1)
    ]  # before a key is asked for
    signer = signing_key.load(key, password_file)
    given = zip(paths, read, strict=True)
    report([_signed(path, data, signer, force) for path, data in given])


def _read(path: Path, number: int) -> bytes:
    """A file's bytes. What is no path, but could be a piece of a key, is not repeated."""
    from govray.governance.formats.keys import shown_reference

    try:
        return user_files.read(path)
    except UsageError as error:
        if shown_reference(str(path)) == str(path):
            raise
        raise UsageError(error.what, where=f"FILE {number}", do=error.do) from None


def _signed(path: Path, data: bytes, signer: Signer, force: bool) -> dict[str, Any]:
    """Sign one file, and say so."""
    from govray.cli import source_files
    from govray.governance.formats.canonical_json import sha256
    from govray.governance.formats.dsse import Envelope

    output = path
    existing = _parse(data)
    action = "unchanged"
    if existing is None:
        source = source_files.read(path)
        output = source.output
        sealed = source.document.seal([signer])
        existing = user_files.envelope(output) if output.exists() else None
        if existing is not None and existing.payload != Envelope.parse(sealed).payload:
            _check_successor(existing, source, output, force)
            existing = None
        if existing is None:
            user_files.write(output, sealed)
            existing, action = Envelope.parse(sealed), "signed"
    if action == "unchanged" and not existing.signed_by([signer.public_key]):
        cosigned = existing.cosign([signer])
        user_files.write(output, cosigned)
        existing, action = Envelope.parse(cosigned), "signature added"

    result = {
        "envelope": str(output),
        "action": action,
        "digest": sha256(existing.payload),
        "keyid": signer.public_key.keyid,
        "signatures": len(existing.signatures),
        **_root_progress(existing),
    }
    line(f"{action.capitalize()}: {output}")
    field("digest", result["digest"])
    field("key", result["keyid"])
    field("signatures", result["signatures"])
    if "rootSignatures" in result:
        field("threshold", f"{result['rootSignatures']} of {result['rootThreshold']} root keys")
    for found in result.get("findings", ()):
        field("lint", found)
    return result


def _parse(data: bytes) -> Envelope | None:
    from govray.governance.formats.dsse import Envelope

    # The first bytes decide, so that a damaged envelope is reported as one.
    if not data.startswith(b'{"payload"'):
        return None
    return Envelope.parse(data)


def _check_successor(existing: Envelope, source: Unsigned, output: Path, force: bool) -> None:
    """Refuse to replace a document by one that is not newer by its version."""
    from govray.governance.formats.statement import read

    version = getattr(source.document, "version", None)
    if force or version is None:
        return
    old: Any = read(type(source.document), existing, where=str(output)).document
    if old.name == source.name and version <= old.version:
        raise UsageError(
            f"version {version} would replace the signed version {old.version}",
            where=str(output),
            do="Raise the version in the source; --force replaces it anyway.",
        )


def _root_progress(envelope: Envelope) -> dict[str, Any]:
    """For a trust root: how many of its own keys have signed, how many must, and lint."""
    from govray.errors import Malformed
    from govray.governance.formats.statement import read
    from govray.governance.policy.lint import lint_root
    from govray.governance.trust.authority import TrustRoot

    try:
        root = read(TrustRoot, envelope).document
    except Malformed:
        return {}
    return {
        "rootSignatures": len(envelope.signed_by(root.keys)),
        "rootThreshold": root.threshold,
        "findings": [each.message for each in lint_root(root)],
    }
