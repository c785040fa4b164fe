"""``govray tune``: search an experiment's hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli.output import Overrides, field, line, print_table, report, table

if TYPE_CHECKING:
    from govray.tune.dry_run import Preview
    from govray.tune.search_config import SearchFile
    from govray.tune.space import Dimension


def tune(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="An experiment file with a search section.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run nothing: show trials, rungs and the budget.")
    ] = False,
    new: Annotated[
        bool,
        typer.Option("--new", help="Start a new search even if an unfinished one could continue."),
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Search hyperparameters over governed runs.

    All have one policy and one data set. With --dry-run, show what the search will cost, in
    steps, before it runs.
    """
    from govray.tune.recipe import load_searcher
    from govray.tune.search_config import read_search

    file = read_search(config, overrides or ())
    preview = load_searcher(file.search.searcher).preview(file)
    if not dry_run:
        preview.require_method()
        from govray.cli.search_view import search

        search(file, new=new)
        return
    report({"search": file.experiment.name, **preview.to_json()})
    _print_preview(file, preview)


def _print_preview(file: SearchFile, preview: Preview) -> None:
    search, full = file.search, f"{file.max_time:,} steps"
    line(f"{file.experiment.name}: {search.searcher}, {preview.trials:,} trials, at most {full}")
    limit = search.memorization
    field(
        "order",
        f"the {search.lead} alone"
        if limit is None
        else f"{limit.statistic} up to {limit.tau:g} {limit.unit}, then the {search.lead}",
    )
    for row in _tree(search.space):
        field("varies", row)
    line()
    brackets = table("bracket", "trials", "compared at step", right=("trials",))
    for number, bracket in enumerate(preview.brackets):
        steps = ", ".join(f"{step:,}" for step in bracket.rungs)
        brackets.row(str(number), f"{bracket.trials:,}", steps)
    print_table(brackets)
    line()
    ends = table("end at step", "as planned", "steps", right=("end at step", "as planned", "steps"))
    for step, trials in preview.ends.items():
        ends.row(f"{step:,}", f"{trials:,}", f"{step * trials:,}")
    print_table(ends)
    line()
    line(f"Budget {preview.expected:,} steps as expected, {preview.most:,} at most if none fails")
    if preview.void is not None:
        line(f"Refused as {search.searcher}: {preview.void}")
    for number, point in enumerate(preview.points):
        field(f"trial {number}", "  ".join(f"{name}={_short(v)}" for name, v in point.items()))


def _tree(space: Mapping[str, Dimension], depth: int = 0) -> Iterator[str]:
    """A line for each range, those that an option brings below it."""
    from govray.tune.space import OneOf

    indent = "  " * depth
    for name, dimension in space.items():
        if not isinstance(dimension, OneOf):
            yield f"{indent}{name}  {dimension.model_dump(exclude_none=True)}"
            continue
        yield f"{indent}{name}  one of"
        for option in dimension.one_of:
            yield f"{indent}  {option.value}"
            yield from _tree(option.space, depth + 2)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
