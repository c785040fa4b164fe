"""The formats by name: what each is, which files it makes, and whether it needs a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from govray.errors import UsageError
from govray.evidence.exports.croissant import croissant
from govray.evidence.exports.cyclonedx import cyclonedx
from govray.evidence.exports.model_card import model_card
from govray.evidence.exports.openlineage import openlineage
from govray.evidence.exports.sigstore_bundle import model_signing, sigstore
from govray.evidence.exports.spdx import spdx
from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.formats.keys import Signer

Write = Callable[[VerifiedFacts], Mapping[str, bytes]]


@dataclass(frozen=True)
class ExportFormat:
    """One format.

    Attributes:
        place: The file that it makes, or the folder with a file for each of several.
        write: Facts → the files by name: below the folder, or the one file by ``place``.
        each: What the folder has a file for, and names it by; None of one file.
        suffix: Of the folder's files, behind that name.
    """

    place: str
    write: Write
    each: Literal["corpus", "keyid"] | None = None
    suffix: str = ""


def _one(place: str, write: Callable[[VerifiedFacts], bytes]) -> ExportFormat:
    return ExportFormat(place, lambda facts: {place: write(facts)})


def _each(
    each: Literal["corpus", "keyid"],
    place: str,
    suffix: str,
    write: Callable[[VerifiedFacts], Mapping[str, bytes]],
) -> ExportFormat:
    def files(facts: VerifiedFacts) -> dict[str, bytes]:
        return {f"{name}{suffix}": data for name, data in write(facts).items()}

    return ExportFormat(place, files, each, suffix)


SIGNED = "model-signing"
SIGNED_PLACE = "model.sig"

FORMATS: Mapping[str, ExportFormat] = {
    "sigstore": _each("keyid", "sigstore", ".sigstore.json", sigstore),
    "cyclonedx": _one("model.cdx.json", cyclonedx),
    "spdx": _one("model.spdx3.json", spdx),
    "croissant": _each("corpus", "croissant", ".croissant.json", croissant),
    "openlineage": _one("openlineage.ndjson", openlineage),
    "model-card": _one("README.md", model_card),
}
"""Those that need no key."""

NAMES = (SIGNED, *FORMATS)


def export_format(name: str, signer: Signer | None) -> ExportFormat:
    """The format of that name. ``signer``: for ``model-signing``, and for no other."""
    if name not in NAMES:
        raise UsageError("no such format", where=repr(name), do=f"Give one of {', '.join(NAMES)}.")
    if name == SIGNED and signer is not None:
        return _one(SIGNED_PLACE, lambda facts: model_signing(facts, signer))
    if name == SIGNED or signer is not None:
        raise UsageError(
            f"{SIGNED} needs a key" if signer is None else f"only {SIGNED} takes a key",
            where="--key",
            do="Give a P-256 key." if signer is None else "Leave the option out.",
        )
    return FORMATS[name]
