"""``govray model influence``: what each adapter does to one output, and how to ask of the rest."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli.option_group import option_groups
from govray.cli.output import field, line, print_table, report
from govray.cli.output import table as new_table
from govray.cli.trust import Trusted

if TYPE_CHECKING:
    from govray.governance.verify.verifier import VerifiedModel


@option_groups
def influence(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    output: Annotated[str, typer.Option("--output", metavar="TEXT", help="The output to explain.")],
    trusted: Trusted,
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="What stands before the output.")
    ] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FILE", help="The model's tokenizer, if not bytes."),
    ] = None,
    entrypoint: Annotated[
        list[str] | None,
        typer.Option(
            "--entrypoint",
            metavar="MODULE:CLASS",
            help="A model class that is not one of govray's own, and may run here. Repeatable.",
        ),
    ] = None,
) -> None:
    """Read one output with and without each adapter, and compare its loss.

    The differences are exact: they are all that a corpus did which may train an adapter alone. For
    other corpora it names the commands that answer exactly too. It writes nothing.
    """
    from govray.platform.inference.generation import output_losses
    from govray.platform.inference.served_model import load

    checked = trusted.anchor()
    served = load(
        model,
        trust_root=checked,
        tokenizer=tokenizer,
        entrypoints=entrypoint or (),
        at=trusted.time(),
    )
    losses = output_losses(served, prompt, output)
    base, adapters = losses[None], {name: loss for name, loss in losses.items() if name}
    trained = _trained_by(served.verified)
    report(
        {
            "model": str(model),
            "attestation": served.attestation,
            "loss": base,
            "adapters": [
                {
                    "adapter": name,
                    "loss": loss,
                    "change": loss - base,
                    "corpora": trained.get(name, []),
                }
                for name, loss in adapters.items()
            ],
        }
    )
    line(f"READ {model}", style="bold")
    field("base", f"{base:.3f} nats a token, without an adapter")
    if adapters:
        line()
        grid = new_table("adapter", "loss", "change", "trained by", right=("loss", "change"))
        for name, loss in adapters.items():
            by = ", ".join(trained.get(name, []))
            grid.row(name, f"{loss:.3f}", f"{loss - base:+.3f}", by)
        print_table(grid)
    line()
    line("Ask about a corpus that trained other layers, or about one text:")
    line("  govray replay RUN --without CORPUS")
    line(f"  govray trace FILE --model {quote(str(model))}")


def _trained_by(model: VerifiedModel) -> dict[str, list[str]]:
    """Adapter → the corpora whose rows may train it."""
    found: dict[str, list[str]] = {}
    for corpus in sorted(model.credentials):
        for group in model.routes.groups(corpus):
            if group.startswith("adapter:"):
                found.setdefault(group.removeprefix("adapter:"), []).append(corpus)
    return found
