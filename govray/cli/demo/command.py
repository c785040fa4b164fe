"""``govray demo``: the main job, end to end, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from govray import __version__
from govray.cli.demo import WORKERS
from govray.cli.output import line, report
from govray.cli.verified_block import print_verdict, to_json
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.cli.demo.findings import PlantedList, Story, TokenGrid


STEPS, QUICK_STEPS = 120, 30


def demo(
    output: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")
    ] = Path("govray-demo"),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"{QUICK_STEPS} steps and no replay: shows neither what removing a supplier "
            "leaves nor what is learnt by heart.",
        ),
    ] = False,
) -> None:
    """Train a small governed model of Python source here, and verify it.

    Takes two minutes on 2 quiet CPUs and needs no network. The output folder then holds a model, a
    report and everything they rest on.
    """
    from importlib.metadata import version

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(
            "the output folder is not empty",
            where=str(output),
            do="Name another with --out, or remove it",
        )
    line(
        f"govray {__version__} · Ray {version('ray')} · {WORKERS} CPU workers · "
        f"output {output} · throw-away keys"
    )
    line("Trains one model so that each licence reaches only the layers its policy allows.")
    line()
    from govray.train.driver.ray_cluster import start_ray  # takes seconds, so lines come before

    start_ray(num_cpus=WORKERS, dashboard=False, meanwhile="govray.cli.demo.run")
    from govray.cli.demo.run import Terminal, run_demo

    steps = QUICK_STEPS if quick else STEPS
    story = run_demo(output, Terminal(), steps=steps, replayed=not quick)
    report(_summary(story, output))
    _tell(story, output)


def _tell(story: Story, output: Path) -> None:
    line()
    line(
        f"Which data trained which layers (tokens, from the ledger; "
        f"{story.share_read:.1%} of admitted data was read)"
    )
    for row in _aligned(story.table):
        line(row)
    line(
        "number: its gradient updated them   ~: only indirectly, through other layers   -: neither"
    )
    line()
    line(f"Remove {story.adapter}: delete one {story.adapter_bytes / 1000:.0f} kB adapter")
    line(f"  base weights  {_brief(story.base_digest)} trained with it")
    if story.replay_digest is None:
        line("                not replayed without it, so whether they are the same is not shown")
    else:
        verdict = f"replayed without it: {story.verdict.upper()}"
        line(f"                {_brief(story.replay_digest)} {verdict}")
    line(
        f"  a planted account number ranks {story.rank_with:,} of {story.candidates:,} "
        f"with the adapter, {story.rank_without:,} without"
    )
    line()
    for told in _listed(story.listed, story.steps):
        line(told)
    line()
    print_verdict(story.verified)
    line()
    line(f"Next  open {output / 'report.html'} in a browser: all of this on one page")
    for command in story.commands:
        line(f"      {command}")


def _listed(found: PlantedList, steps: int) -> list[str]:
    if found.odds is None:
        return [f"{found.corpus}: {steps} steps are too few to measure what was learnt by heart"]
    known = (
        f"  its pages have at least {found.odds:.1f} times the odds of pages held back to be among "
        f"the best known, the policy allows {found.allowed:g}"
    )
    if found.noticed:
        return [f"{found.corpus} was learnt by heart: noticed at the end, nothing followed", known]
    if found.step is None and found.odds <= found.allowed:
        return [f"{found.corpus} was not learnt by heart in {steps} steps", known]
    if found.step is None:
        return [f"{found.corpus} was not found to be learnt by heart: too little evidence", known]
    where = f"only {', '.join(found.groups)}" if found.fallback else "nothing"
    told = [
        f"{found.corpus} was learnt by heart: from step {found.step} on its rows train {where}",
        known,
    ]
    if found.after is not None:
        told.append(
            f"  by the end the model without adapters gives them at least {found.after:.1f} times "
            "those odds"
        )
    return told


def _aligned(grid: TokenGrid) -> list[str]:
    """The table as lines: labels to the left, cells to the right, two spaces between."""
    rows = [["class (corpora)", *grid.columns]]
    for i, (category, corpora) in enumerate(grid.rows):
        cells = [grid.mark(i, j) for j in range(len(grid.columns))]
        rows.append([f"{category} ({corpora})", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def _brief(digest: str) -> str:
    kind, _, value = digest.partition(":")
    return f"{kind}:{value[:8]}…{value[-4:]}"


def _summary(story: Story, output: Path) -> dict[str, object]:
    return {
        "model": str(output / "model"),
        "report": str(output / "report.html"),
        "corpora": story.corpora,
        "admitted": story.admitted,
        "quarantined": story.quarantined,
        "loss": {"first": story.losses[0], "last": story.losses[-1]},
        "seconds": {
            "train": story.train_seconds,
            "replay": story.replay_seconds,
            "verify": story.verify_seconds,
        },
        "base": {"trained": story.base_digest, "replayed": story.replay_digest},
        "learntByHeart": {"corpus": story.listed.corpus, "step": story.listed.step},
        "rank": {"with": story.rank_with, "without": story.rank_without},
        "verdict": to_json(story.verified),
        "next": list(story.commands),
    }
