"""``govray trace``: was exactly this record trained on, and in which layers?

The answer goes by the SHA-256 of the file's bytes: a copy with one byte changed
is another record. Exit code 0 whether found or not: both are answers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from govray.cli import trust
from govray.cli.output import At, Json, TrustRoot, field, line, print_json
from govray.errors import UsageError


def trace(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The record, as it was presented.")],
    model: Annotated[Path, typer.Option("--model", metavar="MODEL", help="A model folder.")],
    trust_root: TrustRoot = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Say where a record stands in a model's recorded data.

    It goes by the file's exact bytes. Exit code 0 whether it was found or not: the text or
    the JSON says which.
    """
    from govray.governance.trace import trace as find
    from govray.governance.verify import verify

    digest = _sha256(path)
    moment = trust.reference_time(at)
    verified = verify(model, trust_root=trust.root_path(trust_root), at=moment)
    sightings = find(verified, digest)
    if as_json:
        print_json(
            {
                "record": f"sha256:{digest}",
                "model": str(model),
                "attestation": verified.digest,
                "found": bool(sightings),
                "sightings": [
                    {
                        "corpus": each.corpus,
                        "record": each.record,
                        "split": each.split,
                        "rows": [each.rows.start, each.rows.stop],
                        "steps": list(each.steps),
                        "groups": list(each.groups),
                        "tokens": str(each.tokens),
                    }
                    for each in sightings
                ],
            }
        )
        return
    line(f"{path}   sha256:{digest}")
    if not sightings:
        line("Not found in the recorded data: no record with exactly these bytes.")
        line("Similar text, and data that was never presented to govray, would not show here.")
    for each in sightings:
        line()
        line(f"Found in {each.corpus}, record {each.record}", style="bold")
        field("split", _SPLITS[each.split])
        if each.steps:
            field("tokens", f"{each.tokens:,} read")
            field("steps", _steps(each.steps))
            field("layers", ", ".join(each.groups))
        elif each.split == "train":
            field("steps", "none: the run did not come to it")


_SPLITS = {
    "train": "train",
    "reserve": "reserve: kept back, never trained on",
    "empty": "empty: it has no tokens",
}


def _steps(steps: tuple[int, ...]) -> str:
    shown = ", ".join(str(step) for step in steps[:8])
    return shown if len(steps) <= 8 else f"{shown} … {steps[-1]} ({len(steps)} steps)"


def _sha256(path: Path) -> str:
    """A record may be large, so it is hashed as it is read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except IsADirectoryError:
        raise UsageError(
            "this is a folder", where=str(path), do="Name one file: a record is a file."
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(path), do="Check the path."
        ) from None
