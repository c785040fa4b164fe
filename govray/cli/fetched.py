"""What verbs that download show: a bar meanwhile, and then what lies in the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from govray.cli.output import StageBar, field, line, report

if TYPE_CHECKING:
    from govray.platform.client.downloads import Downloaded

T = TypeVar("T")

Into = Annotated[
    Path,
    typer.Option(
        "--into", metavar="DIR", help="A new folder; said again, a broken download goes on."
    ),
]


def mib(size: int) -> int:
    """``size`` bytes in MiB, rounded up."""
    return -(-size // (1 << 20))


def with_bar(fetch: Callable[[Callable[[int, int], None]], T]) -> T:
    """What ``fetch`` returns, which calls its argument with the bytes that are here, and all."""
    with StageBar("downloading", 0) as bar:
        return fetch(lambda done, whole: bar.update(mib(done), mib(whole), "MiB"))


def tell(title: str, done: Downloaded, **more: Any) -> None:
    """Print what was downloaded: as JSON with the fields ``more``."""
    files = {each.name: each.digest for each in done.files}
    report({**more, "folder": str(done.folder), "whole": done.whole, "files": files})
    line(f"Downloaded {title} to {done.folder}", style="bold")
    field("files", f"{len(files)}, each with the digest that the service stated")
    if not done.whole:
        field("left out", "adapters that you have no right to, and what holds their state")
