"""``govray train`` and ``attest``: run an experiment, sign what it left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from govray.cli.output import Json, Key, field, line, print_json
from govray.cli.progress import StageBar

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, below storage_path.")]


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="An experiment file.")],
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="A Ray dashboard: submit as a job there."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train here, or as a Ray job at an address, and leave an attested model."""
    from govray.train.config import read_experiment

    experiment = read_experiment(config)
    if address is not None:
        from govray.train.submit import submit

        job = submit(address, config)
        if as_json:
            print_json({"job": job, "address": address})
        else:
            line(f"Submitted {job}")
            line(f"Next  ray job logs --follow {job} --address {address}")
        return
    from govray.train.trainer import from_experiment, start_ray

    start_ray()
    with StageBar(experiment.name, experiment.max_steps) as bar:

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            bar.update(step + 1, experiment.max_steps, f"loss {metrics['loss']:.3f}")

        result = from_experiment(experiment, on_step=on_step).fit()
    if as_json:
        print_json({"run": result.path, "model": f"{result.path}/model"})
    else:
        line(f"Trained and attested: {result.path}/model")
        line(f"Next  govray verify {result.path}/model --trust-root TRUSTED_ROOT")


def attest(
    run: Run,
    key: Key = "env:GOVRAY_KEY",
    party: Annotated[
        str, typer.Option("--party", help="Who ran the replays, for the attestation.")
    ] = "operator",
    as_json: Json = False,
) -> None:
    """Sign a finished run's model again, with the replays since. Training does it once itself."""
    from govray.governance.keys import load_signer
    from govray.train.artifact import write_model
    from govray.train.outcome import evidence

    found = evidence(run, party)
    model = write_model(run, load_signer(key), found)
    if as_json:
        print_json({"model": str(model), "replays": [replay.corpus for replay in found]})
    else:
        line(f"Attested {model}")
        field("replays", ", ".join(replay.corpus for replay in found) or "none")
