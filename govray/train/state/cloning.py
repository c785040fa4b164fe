"""A run that continues from another run's commit with other settings.

Population-based training calls this exploit. The clone's folder begins as if the clone had run the
donor's steps. It has the donor's commit, the donor's ledger up to that step, and a record of its
own. That record states the ancestry (`govray.governance.record.ancestry`). The next attempt resumes
there by the usual resolver.

Invariants:

* Weights, optimizer state, generators and governance state come together, from one whole commit.
* Policy, plan, data and start are the donor's: the commit is bound to them, and no other run loads
  it.
* The folder is whole or absent.

The caller chooses the donor, and pins its commit before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from govray.errors import GovrayError
from govray.governance.formats import canonical_json
from govray.governance.record.ancestry import inherit
from govray.governance.record.ledger import read_leaves
from govray.storage.staged_folder import staged_folder
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import folder_name, storage_of
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.run_record import read_record
from govray.train.run_folder.ledger_wal import FILE as AHEAD
from govray.train.run_folder.register_posts import register_of
from govray.train.state.carried_governance import STATE, read_ledger, rebound
from govray.train.state.snapshot import committed_folders

_OPTIMIZER = "optimizer.json"


def clone(
    donor: Path,
    step: int,
    run: Path,
    experiment: Experiment,
    config: dict[str, Any],
    beside: Mapping[str, bytes],
    changes: Collection[str] = (),
) -> None:
    """Make the folder of a run that continues from a donor's commit.

    Args:
        step: The commit's: the first step that the clone runs itself.
        run: The clone's folder, which must not exist; its name is the clone's id.
        experiment: The clone's; it differs from the donor's in ``optimizer``, ``schedule``, and the
            hyperparameters that ``changes`` names.
        beside: Further files of the folder: it appears with them or not at all.
        changes: Hyperparameters that shape nothing: whoever calls vouches for that.

    Raises:
        UsageError: The experiments differ in more, or the folder cannot be written.
    """
    record = read_record(donor)
    if record.experiment is None or _fixed(record.experiment, changes) != _fixed(
        experiment, changes
    ):
        raise GovrayError(
            f"it differs from {donor.name} in more than the optimizer and schedule"
            f"{' and '.join(['', *sorted(changes)])}",
            where=f"run {run.name}",
            do="Vary nothing else where runs go on from one another",
        )
    committed = _commit(donor, step)
    ledger = read_ledger(committed)
    leaves = read_leaves(ledger)
    with staged_folder(run) as staged:
        replace(
            record,
            run_id=run.name,
            finished=None,
            ended=None,
            experiment=experiment,
            config=config,
            ancestry=inherit(record.run_id, record.ancestry, step, leaves),
        ).write(staged)
        files = rebound(committed, staged, storage_of(staged), leaves, run=run.name)
        files[_OPTIMIZER] = _retuned(files[_OPTIMIZER], experiment)
        digest = commit_folder.commit(staged / folder_name(step), files)
        for name, content in {AHEAD: ledger, **beside}.items():
            (staged / name).write_bytes(content)
        if register := register_of(run.name):
            # Before the folder appears: a clone that nothing registered would count as planted.
            state: Any = canonical_json.parse_canonical(files[STATE])
            register.started(planted=False)
            register.committed(
                branch=leaves[-1].branch,
                step=step,
                commit=digest,
                size=state["ledger"]["size"],
                root=state["ledger"]["root"],
            )


def _commit(donor: Path, step: int) -> commit_folder.CommitFolder:
    for found, folder in committed_folders(donor):
        if found == step:
            return commit_folder.open_commit(folder)
    raise GovrayError(f"it has no commit of step {step}", where=f"run {donor.name}")


def _fixed(experiment: Experiment, changes: Collection[str]) -> dict[str, Any]:
    found = experiment.model_dump(exclude={"optimizer", "schedule"})
    for name in changes:
        found["hyperparameters"].pop(name, None)
    return found


def _retuned(stored: bytes, experiment: Experiment) -> bytes:
    """The optimizer's state with the clone's settings, which loading would otherwise overwrite."""
    value: Any = canonical_json.parse_canonical(stored)
    settings = experiment.optimizer.model_dump(mode="json")
    settings |= experiment.optimizer.arguments
    for group in value["groups"]:
        own = group["hyperparameters"]
        if "initial_lr" in own:  # a scheduler made them, and makes them anew from the clone's
            del own["lr"], own["initial_lr"]
        own.update({name: settings[name] for name in own.keys() & settings.keys()})
    return canonical_json.encode(value)
