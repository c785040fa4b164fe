"""What a training loop reports besides numbers: confusion matrices, histograms, tables, images.

Each is a file ``<run>/figures/<name's digest>-<step>.json``, written whole. The service reads the
newest of each name where the run's folder is in reach, and draws it; the store holds none of it.

Invariants:

* Every kind has bounds, and a file at most `MOST_BYTES`. A run keeps `KEPT` steps of a name, and
  `MOST_NAMES` names.
* A file that does not parse, or is too large, is passed over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from govray.errors import UsageError
from govray.governance.formats.field_errors import field_errors
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place, place

FOLDER = "figures"
KEPT = 8
MOST_NAMES = 32
MOST_CLASSES = 64
MOST_BARS = 512
MOST_IMAGE_BYTES = 1 << 20
MOST_SIDE = 4096
"""Pixels of an image's side."""
MOST_BYTES = MOST_IMAGE_BYTES * 3 // 2
"""Of a file: an image in base64, or any of the others."""

_PNG = b"\x89PNG\r\n\x1a\n"

Text = Annotated[str, Field(max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Figure(BaseModel):
    """Something to be drawn; ``run.report({"name": figure})``.

    Raises:
        UsageError: It is out of bounds. Names the field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise UsageError(str(field_errors(error)[0]), where=type(self).__name__) from None


class ConfusionMatrix(Figure):
    """How often each class was taken for each.

    Attributes:
        labels: The classes' names.
        counts: ``counts[i][j]``: how often class i was taken for class j.
    """

    kind: Literal["confusionMatrix"] = "confusionMatrix"
    labels: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MOST_CLASSES)]
    counts: tuple[tuple[NonNegativeInt, ...], ...]

    @model_validator(mode="after")
    def _is_square(self) -> ConfusionMatrix:
        if {len(self.counts), *map(len, self.counts)} != {len(self.labels)}:
            raise ValueError("counts: a row for each label, with a count for each label")
        return self


class Histogram(Figure):
    """How many values lie between edges.

    Attributes:
        edges: Ascending, one more than there are counts.
        counts: Of the values from an edge to the next.
    """

    kind: Literal["histogram"] = "histogram"
    edges: tuple[Number, ...]
    counts: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MOST_BARS)]

    @model_validator(mode="after")
    def _has_edges(self) -> Histogram:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError("edges: one more than there are counts")
        if any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges: they do not ascend")
        return self


class ResultTable(Figure):
    """Rows of texts and numbers under columns."""

    kind: Literal["table"] = "table"
    columns: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32)]
    rows: Annotated[tuple[tuple[Text | int | Number, ...], ...], Field(max_length=200)]

    @model_validator(mode="after")
    def _has_cells(self) -> ResultTable:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("rows: a cell for each column")
        return self


class PngImage(Figure):
    """A picture: ``PngImage.of(data)``.

    Attributes:
        png: The file in base64; at most `MOST_IMAGE_BYTES` and `MOST_SIDE` pixels a side.
    """

    kind: Literal["image"] = "image"
    png: Annotated[str, Field(max_length=MOST_BYTES)]

    @classmethod
    def of(cls, data: bytes) -> PngImage:
        """The picture in a PNG file's bytes; raises as the class."""
        return cls(png=base64.b64encode(data).decode())

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.png, validate=True)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels, as the file's header has them."""
        head = self.data[16:24]
        return int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")

    @model_validator(mode="after")
    def _is_png(self) -> PngImage:
        try:
            data = self.data
        except (binascii.Error, ValueError):
            raise ValueError("png: not in base64") from None
        if not data.startswith(_PNG) or data[12:16] != b"IHDR" or len(data) < 33:
            raise ValueError("png: not a PNG file")
        if len(data) > MOST_IMAGE_BYTES:
            raise ValueError(f"png: larger than {MOST_IMAGE_BYTES:,} bytes")
        if not all(1 <= side <= MOST_SIDE for side in self.size):
            raise ValueError(f"png: a side is not between 1 and {MOST_SIDE} pixels")
        return self


AnyFigure: TypeAlias = Annotated[
    ConfusionMatrix | Histogram | ResultTable | PngImage, Field(discriminator="kind")
]


class ReportedFigure(BaseModel):
    """One figure as a run keeps it: its name, and the step after which it was reported."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=128)]
    step: NonNegativeInt
    figure: AnyFigure

    @property
    def file(self) -> str:
        """The name of its file, which tells nothing of the figure's own name."""
        return f"{_digest(self.name)}-{self.step:09d}.json"


def keep(run_folder: Place, reported: ReportedFigure) -> None:
    """Write a figure, and delete the oldest of its name; with too many names it is not kept."""
    data = reported.model_dump_json().encode()
    folder = run_folder / FOLDER
    held = _files(folder)
    names = {name.partition("-")[0] for name in held}
    own = _digest(reported.name)
    if len(data) > MOST_BYTES or (own not in names and len(names) >= MOST_NAMES):
        return
    make_folder(folder)
    write_whole(folder / reported.file, data)
    older = sorted({name for name in held if name.startswith(own)} | {reported.file})
    for name in older[:-KEPT]:
        (folder / name).unlink()


def newest(run_folder: str) -> list[ReportedFigure]:
    """The newest figure of each name, by name; none where the folder is out of reach."""
    try:
        folder = place(run_folder) / FOLDER
        last = {name.partition("-")[0]: name for name in sorted(_files(folder))}
        found = [one(run_folder, name) for name in sorted(last.values())[:MOST_NAMES]]
    except (OSError, ValueError):
        return []
    return sorted(filter(None, found), key=lambda each: each.name)


def one(run_folder: str, file: str) -> ReportedFigure | None:
    """The figure in a file of this name, if one parses.
    ``file``: as `ReportedFigure.file`; the caller has checked its form."""
    with suppress(OSError, ValueError, UsageError):
        path = place(run_folder) / FOLDER / file
        if path.stat().st_size <= MOST_BYTES:
            return ReportedFigure.model_validate_json(path.read_bytes())
    return None


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _files(folder: Place) -> list[str]:
    return [path.name for path in folder.glob("*.json")]
