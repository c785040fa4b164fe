"""``govray prepare``: the signed data of an experiment, for jobs that hold no key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from govray.cli import signing_key
from govray.cli.output import Key, Overrides, PasswordFile, field, line, report
from govray.cli.progress import StageBar


def prepare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="An experiment file.")],
    key: Key = "env:GOVRAY_KEY",
    password_file: PasswordFile = None,
    overrides: Overrides = None,
) -> None:
    """Admit, pack and sign an experiment's data. Jobs then train on them without the key.

    Nothing that the file names is imported, and its attestation_key is not used. Data that are
    prepared already stay as they are.
    """
    from govray.train.driver.preparation import prepare_experiment, read_data_of
    from govray.train.driver.ray_cluster import ray_running
    from govray.train.inputs import operator_key

    experiment = read_data_of(config, overrides or ())
    signer = signing_key.load(key, password_file)
    operator_key.take(key)  # Ray's processes get what is left of the environment
    with StageBar(experiment.name, 0) as bar, ray_running():
        shared = prepare_experiment(experiment, signer, progress=bar.update)
    made = {"training": shared.prepared}
    if shared.validation:
        made["validation"] = shared.validation.prepared
    report(
        {name: {"folder": str(each.folder), "manifest": each.digest} for name, each in made.items()}
    )
    for name, each in made.items():
        manifest = each.manifest
        admitted = sum(manifest.records(corpus.corpus) for corpus in manifest.corpora)
        refused = sum(corpus.records for corpus in manifest.quarantine)
        line(f"Prepared {each.folder}")
        field("for", name)
        field("manifest", each.digest)
        field("records", f"{admitted:,} admitted, {refused:,} quarantined")
