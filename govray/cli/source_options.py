"""The options that say what a source is and how to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.governance.formats.row_schema import RowSchema
    from govray.governance.policy.credential import Normalisation

FormatName = Literal["files", "jsonl", "csv", "parquet", "arrow", "webdataset"]
Rows = Literal["text", "chat", "images"]
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
ParallelOption = Annotated[
    bool,
    typer.Option(
        "--parallel",
        help="Read several files at once with Ray Data: here, or on the cluster of RAY_ADDRESS.",
    ),
]
FlawOption = Annotated[
    OnFlaw, typer.Option("--on-flaw", help="What becomes of rows that cannot be records.")
]


RowsOption = Annotated[
    Rows,
    typer.Option(
        "--rows",
        help="What the records are: text; chat, from a column of messages; images, from columns "
        "image and label. The credential says so.",
    ),
]
ImageShapeOption = Annotated[
    str | None,
    typer.Option("--image-shape", metavar="C,H,W", help="Of images: channels, height, width."),
]
ClassesOption = Annotated[
    int | None,
    typer.Option("--classes", min=1, metavar="N", help="Of images: labels are from 0 to N-1."),
]


def row_schema(rows: Rows, image_shape: str | None, classes: int | None) -> RowSchema | None:
    from govray.governance.formats.row_schema import CHAT, image_schema

    if rows != "images":
        if image_shape is not None or classes is not None:
            raise UsageError(
                "--image-shape and --classes are of images", where="--rows", do="Use --rows images."
            )
        return CHAT if rows == "chat" else None
    try:
        sizes = [int(each) for each in (image_shape or "").split(",")]
        channels, height, width = sizes
        return image_schema((channels, height, width), classes or 0)
    except ValueError:
        raise UsageError(
            "images need a shape of three numbers from 1 on, and classes, within 64 MiB",
            where=f"--image-shape {image_shape}, --classes {classes}",
            do="Write --image-shape 1,8,8 --classes 10.",
        ) from None


def normalisation(newlines: bool, nfc: bool) -> tuple[Normalisation, ...]:
    steps: list[Normalisation] = []
    if newlines:
        steps.append("newlines")
    if nfc:
        steps.append("nfc")
    return tuple(steps)
