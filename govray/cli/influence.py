"""``govray influence``: an estimate of which corpora and records moved a model to one output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.output import field, line, note, print_table, report, table
from govray.cli.place_argument import run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from govray.train.influence.influence_report import InfluenceReport, RecordInfluence


def influence(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A finished run's folder, or its model folder.")
    ],
    output: Annotated[str, typer.Option("--output", metavar="TEXT", help="The output to explain.")],
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="What stands before the output.")
    ] = "",
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter", metavar="NAME", help="Read the output with this adapter. Default: none."
        ),
    ] = None,
    records: Annotated[
        int,
        typer.Option("--records", min=2, max=10_000, help="Records to sample of each corpus."),
    ] = 32,
    top: Annotated[
        int, typer.Option("--top", min=0, max=1000, help="Show so many records of either sign.")
    ] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The seed of the sample.")] = 0,
) -> None:
    """Estimate which corpora and records a run's model owes one output to.

    Positive: training on it made the output likelier, to first order. Negative: less likely. A
    corpus that trained no layer that the output is read with gets exactly 0. It needs the run's
    kept checkpoints and its data, but no cluster. It writes nothing, and no attestation has it.

    Exit code 0: the estimate was made. 3: the checkpoints or the data are missing.
    """
    from govray.train.influence.output_influence import OutputQuestion, output_influence

    found = output_influence(
        run_of(run),
        OutputQuestion(output=output, prompt=prompt, adapter=adapter, records=records, seed=seed),
        progress=lambda done, total: note(f"{done + 1}/{total}  checkpoint"),
    )
    report(found.to_json(top))
    _tell(found, top)


def _tell(found: InfluenceReport, top: int) -> None:
    from govray.train.influence.influence_report import LABEL

    line(f"ESTIMATED {found.run}  {LABEL}", style="bold")
    read = f"adapter {found.adapter}" if found.adapter else "the base model"
    field("output", f"{found.tokens} tokens, {found.loss:.3f} nats a token, read with {read}")
    scaled = ", scaled as the optimizer scales gradients" if found.scaled else ""
    steps = ", ".join(map(str, found.checkpoints))
    field("method", f"TracInCP over the checkpoints of steps {steps}{scaled}; seed {found.seed}")
    if found.check:
        first, last = found.checkpoints[0], found.checkpoints[-1]
        field(
            "sum",
            f"from step {first} to {last} the output's loss fell by {found.check.fell:.3f}; the "
            f"estimates for these steps add up to {found.check.estimated:.3f}",
        )
    line()
    grid = table("corpus", "licence class", "estimate", "95 % interval", "records", right=_NUMBERS)
    for each in found.corpora:
        if not each.layers:
            shown = "0", "exact: no shared layer"
        else:
            low, high = each.total.interval
            shown = f"{each.total.value:+.4g}", f"{low:+.4g} to {high:+.4g}"
        grid.row(each.corpus, each.category, *shown, f"{each.sampled} of {each.read}")
    print_table(grid)
    line()
    grid = table("licence class", "estimate", "95 % interval", right=_NUMBERS)
    for category, total in found.categories.items():
        low, high = total.interval
        grid.row(category, f"{total.value:+.4g}", f"{low:+.4g} to {high:+.4g}")
    print_table(grid)
    _tell_records("made it likelier", found.likelier(top))
    _tell_records("made it less likely", found.unlikelier(top))
    line()
    line("Estimates: nats a token by which training on it lowered the output's loss.")
    for limit in found.limits:
        line(limit)


def _tell_records(title: str, records: Sequence[RecordInfluence]) -> None:
    if not records:
        return
    line()
    grid = table(f"sampled records that {title}", "record", "estimate", "entry", right=_NUMBERS)
    for each in records:
        grid.row(each.corpus, str(each.record), f"{each.value:+.4g}", f"sha256:{each.entry}")
    print_table(grid)


_NUMBERS = ("estimate", "record")
