"""``govray train``, ``prepare`` and ``attest``: run an experiment, and sign its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import attestor, signing_key, trust, user_files
from govray.cli.option_group import OptionalRun
from govray.cli.output import (
    Key,
    Overrides,
    PasswordFile,
    StageBar,
    TrustRoot,
    field,
    line,
    note,
    report,
)
from govray.errors import GovrayError, UsageError
from govray.storage.place import Place

if TYPE_CHECKING:
    from govray.train.driver.trainer import GovernedTrainer
    from govray.train.inputs.experiment_config import Experiment
    from govray.train.watching.model_size import ModelSize


TRAINER = "govray.train.driver.trainer"
_NOT_ARCHIVED = "not archived: storage_path is not reached from here, or an image brings the code"


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="An experiment file.")],
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="A Ray dashboard: submit as a job there."),
    ] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="Start a new run even if an unfinished one could continue."),
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Train an experiment here or as a Ray job; leave an attested model.

    An unfinished run of exactly this experiment continues.
    """
    from govray.train.inputs.experiment_config import read_experiment

    experiment = read_experiment(config, overrides or ())
    if address is not None and overrides:
        raise UsageError(
            "a job at an address gets the file as it is",
            where="--set",
            do="Write the values into the file, or submit by govray --server",
        )
    if address is not None:
        from govray.train.driver.submit import submit

        job = submit(address, config, new=new, experiment=experiment)
        archived = {"archive": job.archive} if job.archive else {}
        report({"job": job.id, "address": address} | archived)
        line(f"Submitted {job.id}")
        field("code", f"archived as {job.archive}" if job.archive else _NOT_ARCHIVED)
        line(f"Next  ray job logs --follow {job.id} --address {address}")
        return

    def make(**more: Any) -> GovernedTrainer:
        from dataclasses import replace

        from govray.train.driver.trainer import new_or_unfinished

        trainer = new_or_unfinished(experiment, new=new, **more)
        if trainer.resume is not None:
            return trainer
        return replace(trainer, archive=_kept_code(experiment))

    drive(experiment, make)


def _kept_code(experiment: Experiment) -> str | None:
    """The digest of this folder as it is archived beside the runs, if it is one of `govray init`.
    Elsewhere it may be any folder, and all that lies in it."""
    from govray.governance.submission.code_archive import archive_folder
    from govray.storage.place import place
    from govray.train.driver.submit import ENTRY

    if not ENTRY.is_file():
        return None
    try:
        return archive_folder(Path.cwd(), place(experiment.storage_path).resolve())
    except (GovrayError, OSError) as error:
        note(f"code   not kept beside the runs: {error}")
        return None


def drive(experiment: Experiment, make: Callable[..., GovernedTrainer]) -> None:
    """Fit what ``make(on_step=, on_size=, on_wait=)`` returns, and print the result.

    It is called when Ray runs. So it imports the trainer, which takes as long as Ray's start, and
    both happen at once.
    """
    from govray.train.inputs import operator_key
    from govray.train.inputs.run_listing import require_there
    from govray.train.inputs.run_record import read_record

    operator_key.take(experiment.attestation_key)
    require_there(experiment)  # before the imports of seconds that follow
    note(f"start  {experiment.name}: Ray first, then the data")

    from govray.train.driver.progress import TimeLeft, hours
    from govray.train.driver.ray_cluster import ray_running

    sizes: list[ModelSize] = []
    left = TimeLeft()
    steps = 0  # until the plan says how many
    with (
        StageBar(experiment.name, steps) as bar,
        ray_running(meanwhile=TRAINER, experiment=experiment.name),
    ):

        def on_size(size: ModelSize) -> None:
            nonlocal steps
            steps = size.steps
            bar.update(0, steps)
            sizes.append(size)
            note(f"model  {size.text}")

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            text = f"loss {metrics['loss']:.3f}" if "loss" in metrics else "no loss target"
            if (seconds := left.after(step + 1, steps)) is not None:
                text += f"  {hours(seconds)} left"
            bar.update(step + 1, steps, text)

        trainer = make(on_step=on_step, on_size=on_size, on_wait=note)
        if trainer.resume is not None:
            note(f"Resuming {trainer.resume}; --new starts another run")
        run = trainer.train(attest=True)
    following = _next(run)
    size = {"size": sizes[0].to_json()} if sizes else {}
    report({"run": str(run), "model": str(run / "model")} | size)
    line(f"Trained and attested: {run / 'model'}")
    if (ended := read_record(run).ended) is not None:
        metric = experiment.validation.metric_name if experiment.validation else "its metric"
        line(f"Ended early, after {ended} of {steps} steps: {metric} got no better")
    line(following)


def _next(run: Place) -> str:
    from govray.governance.attestation import model_folder
    from govray.governance.trust.trust_state import TrustState
    from govray.governance.verify.cosign import missing_signatures
    from govray.train.inputs.run_record import read_record

    record = read_record(run)
    trust = TrustState.load(record.root, at=record.started, delegations=record.delegations)
    missing = missing_signatures(trust, (run / "model" / model_folder.ATTESTATION).read_bytes())
    model = quote(str(run / "model"))  # a URL's options mean something to a shell
    if missing:
        return (
            f"Next  govray model cosign {model}   {missing} more of the operator's keys must sign"
        )
    root = record.experiment.governance.trust_root if record.experiment else "TRUSTED_ROOT"
    return f"Next  govray verify {model} --trust-root {quote(root)}"


def attest(
    run: OptionalRun = None,
    key: Key = "env:GOVRAY_KEY",
    password_file: PasswordFile = None,
    replay: Annotated[
        list[Path] | None,
        typer.Option(
            "--replay", metavar="FILE", help="A second party's outcome.dsse.json. Repeatable."
        ),
    ] = None,
    trust_root: TrustRoot = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            "--watch", metavar="FILE", help="Sign a queue's runs as they end. As attestor.yaml."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="With --watch: sign what has ended, and end.")
    ] = False,
) -> None:
    """Sign a finished run's model again, with the replays since then. Training signs it once.

    A replay counts if an operator or a witness signed its outcome (govray replay --key). The run's
    own trust root names their keys, or a newer root given by --trust-root.

    With --watch it is the attestor, which signs runs whose jobs have no key, until SIGTERM.
    """
    if watch is not None and run is None:
        attestor.watch(watch, once=once)
        return
    if run is None or watch is not None or once:
        raise UsageError(
            "attest takes a run, or --watch FILE",
            do="Name the run's folder, or deploy/attestor.yaml behind --watch",
        )
    from govray.train.attest.write_model import write_model
    from govray.train.replay.replay_outcome import evidence, unsigned

    signer = signing_key.load(key, password_file)
    root = user_files.read(trust.root_path(trust_root)) if trust_root else None
    found = evidence(run, at=trust.reference_time(None), trust_root=root, given=replay or [])
    ignored = unsigned(run)
    replays = [each.replay for each in found]
    outcomes = [each.envelope for each in found if each.envelope]
    model = write_model(run, signer, replays, outcomes=outcomes)
    following = _next(run)
    report(
        {
            "model": str(model),
            "replays": [each.corpus for each in replays],
            "parties": [each.party for each in replays],
            "unsigned": [str(each) for each in ignored],
        }
    )
    line(f"Attested {model}")
    field("replays", ", ".join(f"{each.corpus} by {each.party}" for each in replays) or "none")
    for each in ignored:
        field("not used", f"{each}: it is not signed; replay again with --key")
    line(following)


def prepare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="An experiment file.")],
    key: Key = "env:GOVRAY_KEY",
    password_file: PasswordFile = None,
    pulse: Annotated[
        Path | None,
        typer.Option(
            "--pulse", metavar="FILE", help="The pulse of the beacon that the trust root names."
        ),
    ] = None,
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
    given = user_files.read(pulse) if pulse else None
    operator_key.take(key)  # Ray's processes get what is left of the environment
    with StageBar(experiment.name, 0) as bar, ray_running():
        shared = prepare_experiment(experiment, signer, pulse=given, progress=bar.update)
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
