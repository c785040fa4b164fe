"""What ``govray tune`` shows while a search runs, and how it says what the search found."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.live import Live

from govray.cli.output import TextGrid, err, field, line, note, print_table, report, table

if TYPE_CHECKING:
    from govray.tune.search import SearchOutcome, Standings, TrialStanding
    from govray.tune.search_config import SearchFile

_ROWS = 30
"""Rows of the live table: the newest trials, as many as fit a terminal."""


def search(file: SearchFile, *, new: bool) -> None:
    """Run a search under a live table on standard error, and print its outcome."""
    from govray.train.inputs import operator_key
    from govray.train.inputs.run_listing import require_there

    operator_key.take(file.experiment.attestation_key)
    require_there(file.experiment)  # before the imports of seconds that follow

    from govray.train.driver.ray_cluster import ray_running
    from govray.tune.search import run

    live = Live(console=err, transient=True, auto_refresh=False)
    # Ray comments on the number of processes on standard output, which is for the result.
    with contextlib.redirect_stdout(sys.stderr), ray_running(), live:

        def show(standings: Standings) -> None:
            if err.is_terminal:
                newest = dict(list(standings.items())[-_ROWS:])
                live.update(_table(file, newest).folded(), refresh=True)

        def resumed(folder: Path) -> None:
            note(f"Going on with {folder}; --new starts another search")

        outcome = run(file, new=new, on_change=show, on_resume=resumed, on_wait=note)
    report(to_json(file, outcome))
    _print(file, outcome)


def to_json(file: SearchFile, outcome: SearchOutcome) -> dict[str, Any]:
    conclusion = outcome.conclusion
    return {
        "search": str(outcome.folder),
        "tau": file.search.memorization and str(file.search.tau),
        "best": conclusion.best,
        "front": list(conclusion.front),
        "metric": {"name": file.search.metric, "goal": file.search.goal},
        "leader": {"trial": conclusion.leader, "whyNotBest": conclusion.why},
        "trials": [
            {
                "trial": name,
                "values": dict(each.trial.values),
                "ended": each.trial.how,
                "reason": each.trial.reason,
                "step": each.last and each.last.step,
                "value": each.last and _finite(each.last.value),
                "memorization": each.last and each.last.memorization,
                "v": each.last and _finite(each.last.v),
                "objective": each.last and _finite(each.last.objective),
                "model": str(outcome.models[name]) if name in outcome.models else None,
            }
            for name, each in outcome.standings.items()
        ],
    }


def _print(file: SearchFile, outcome: SearchOutcome) -> None:
    standings, conclusion = outcome.standings, outcome.conclusion
    ends = [each.trial.how or "unfinished" for each in standings.values()]
    counts = ", ".join(f"{ends.count(how)} {how}" for how in dict.fromkeys(ends))
    line(f"{file.experiment.name}: {len(ends)} trials, {counts}")
    print_table(_table(file, standings))
    line()
    if conclusion.best is None:
        line("No trial stayed within the memorization limit")
    else:
        _summary(file, "best", conclusion.best, standings)
    for name in conclusion.front:
        _summary(file, "front", name, standings)
    if conclusion.why and conclusion.leader:
        lead = file.search.lead
        _summary(file, lead.partition(" ")[0], conclusion.leader, standings)
        line(f"  {conclusion.leader} has the {lead} and is not the best: {conclusion.why}")
    line()
    line(f"Search {outcome.folder}")
    if conclusion.best is not None and conclusion.best in outcome.models:
        model = quote(str(outcome.models[conclusion.best]))
        root = quote(file.experiment.governance.trust_root)
        line(f"Next  govray verify {model} --trust-root {root}")


def _summary(file: SearchFile, what: str, name: str, standings: Standings) -> None:
    each = standings[name]
    values = "  ".join(f"{key}={_short(value)}" for key, value in each.trial.values.items())
    value, m = (each.last.value, each.last.memorization) if each.last else (None, None)
    measured = f"  M {_short(m)}" if m is not None else ""
    field(what, f"{name}  {file.search.metric} {_short(value)}{measured}  {values}")


def _table(file: SearchFile, standings: Standings) -> TextGrid:
    from govray.tune import space

    names = space.names(file.search.space)
    short = [name.rpartition(".")[2] for name in names]
    if len(set(short)) < len(short):
        short = names
    metric = file.search.metric
    grid = table("trial", "step", metric, "M", *short, "", right=("step", metric, "M", *short))
    for name, each in standings.items():
        grid.row(
            name.rpartition("-")[0],
            *_cells(each),
            *(_short(each.trial.values.get(n)) for n in names),
            _end(each),
        )
    return grid


def _cells(each: TrialStanding) -> tuple[str, str, str]:
    if each.last is None:
        return "", "", ""
    return f"{each.last.step:,}", _short(each.last.value), _short(each.last.memorization)


def _end(each: TrialStanding) -> str:
    if each.trial.how is None:
        return "running" if each.last else "starting"
    return f"{each.trial.how}: {each.trial.reason}".splitlines()[0]


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") and value == value else None
