"""The options that say what a source is and how to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from govray.governance.policy.credential import Normalisation

FormatName = Literal["files", "jsonl", "csv", "parquet", "arrow", "webdataset"]
OnFlaw = Literal["refuse", "quarantine"]

SourceArgument = Annotated[
    str, typer.Argument(metavar="SRC", help="A file or folder, or a URL: s3://, gs://, abfs://.")
]
FormatOption = Annotated[
    FormatName | None,
    typer.Option(
        "--format", help="What the files are. Default: by their suffixes; others are text files."
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="ATTRIBUTE=COLUMN",
        help="Where text, id, url, license, jurisdiction, sensitivity, language or split is. "
        "Default: the column of that name. Without COLUMN it is not read.",
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option("--only-split", metavar="SPLIT", help="Leave out records of other splits."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--max-record-bytes",
        min=1,
        metavar="N",
        help="Default: 16 MiB for a row's text, 2 GiB for a file.",
    ),
]
NewlinesOption = Annotated[
    bool,
    typer.Option(
        "--normalise-newlines", help="Make line ends LF before hashing; the credential says so."
    ),
]
NfcOption = Annotated[
    bool,
    typer.Option(
        "--normalise-nfc",
        help="Make text NFC (Unicode) before hashing; the credential says so.",
    ),
]
FlawOption = Annotated[
    OnFlaw, typer.Option("--on-flaw", help="What becomes of rows that cannot be records.")
]


def normalisation(newlines: bool, nfc: bool) -> tuple[Normalisation, ...]:
    """The steps that were asked for, as a credential states them."""
    steps: list[Normalisation] = []
    if newlines:
        steps.append("newlines")
    if nfc:
        steps.append("nfc")
    return tuple(steps)
