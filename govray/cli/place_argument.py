"""Arguments that take a path of a disk or a URL of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from govray.errors import UsageError
from govray.storage.place import Place, place


def given_place(text: str) -> Place:
    try:
        return place(text)
    except ValueError as error:
        raise UsageError(str(error), where=text.partition(":")[0] + ":…") from None


def run_of(folder: Path) -> Path:
    """The run that a user names by its own folder or by its model folder."""
    if not (folder / "record").is_dir() and (folder.resolve().parent / "record").is_dir():
        return folder.resolve().parent
    return folder


if TYPE_CHECKING:
    Given: TypeAlias = Place
else:
    Given = Path  # typer takes no union; the parser decides

_RUN = typer.Argument(
    metavar="RUN", parser=given_place, help="A run's folder or URL, below storage_path."
)
Run = Annotated[Given, _RUN]
OptionalRun = Annotated[Given | None, _RUN]
Storage = Annotated[
    Given,
    typer.Argument(
        metavar="STORAGE", parser=given_place, help="The experiments' storage_path, or its URL."
    ),
]
