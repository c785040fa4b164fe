"""A finished run's model, with its adapters and the rows that it was trained on.

The weights are those of the run's last commit, each byte compared with the commit's manifest.
They are loaded on the CPU, whole or shared by ranks (``audit_ranks.py``). Nothing here needs Ray, a
key or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from govray.data.rows.row_words import load_words
from govray.data.tokenizer import Tokenizer
from govray.engine.gradients.forward import LossFn
from govray.engine.model.adapters import Adapters
from govray.engine.model.stored_weights import fill
from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.policy.depth_policy import Policy
from govray.governance.record.ledger import AnyLeaf, Leaf, read_leaves
from govray.governance.record.prepare_manifest import Manifest
from govray.train.attest import audit_ranks
from govray.train.attest.write_model import final_checkpoint
from govray.train.checkpoint import commit_folder, whole_file
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.checkpoint.tensor_shards import fail_together
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.recorded_inputs import RecordedInputs
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.loop.entrypoint import load_entrypoint, loss_beside, own_loop
from govray.train.loop.until_govern import until_govern
from govray.train.state.carried_governance import read_ledger


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """One run's final model.

    Attributes:
        model: In evaluation mode.
        adapters: The model's, filled.
        loss: The one in the entrypoint's module.
        steps: Corpus → the recorded steps that read it and that no rollback undid.
    """

    record: RunRecord
    model: nn.Module
    adapters: Adapters
    adapted: frozenset[str]
    loss: LossFn
    files: dict[str, str]
    steps: Mapping[str, frozenset[int]]

    def reading(self, adapter: str | None) -> AbstractContextManager[Any]:
        """The model as rows of a corpus with this adapter, or with none, read it."""
        return self.adapters.active(adapter if adapter in self.adapted else None)


def load_model(run: Path) -> AuditedModel:
    """The model that a run ended with. Where ranks audit together, each holds its rows of it.

    Raises:
        UsageError: No run's folder, or one that a script started, or of another framework than
            torch. Or the entrypoint is a loop that
            no longer comes to `govern`, or that has no loss beside it.
        CouldNotCheck: The run has no whole checkpoint of its last step.
        Damaged: Stored bytes are not those that were committed.
    """
    record, experiment, committed = fail_together(lambda: _recorded(run))
    if experiment.framework != "torch":
        raise UsageError(
            f"{experiment.framework} trained the run, and its model is read over torch alone here",
            where=str(run),
            do="Audit and explain runs of torch",
        )
    # As resolved when the run began: with the tokenizer's vocabulary, say.
    resolved = experiment.model_copy(update={"hyperparameters": record.config["hyperparameters"]})
    if audit_ranks.shared():
        losses: list[LossFn] = []

        def build() -> nn.Module:
            built, its_loss = _built(resolved, record)
            losses.append(its_loss)
            return built

        model = audit_ranks.share_model(build, committed, str(run))
        [loss] = losses
    else:
        model, loss = _built(resolved, record)
        _fill(model, committed, run)
    configs: dict[str, Any] = {
        name.split("/")[1]: canonical_json.parse_canonical(committed.files[name])
        for name in committed.entries
        if name.endswith(f"/{model_folder.ADAPTER_CONFIG}")
    }
    ranks = {name: config["r"] for name, config in configs.items()}
    adapters = Adapters(model, ranks, seed=experiment.seed)
    for name, config in configs.items():
        _, weights = model_folder.adapter_files(name)
        adapters.load(name, config, tensors_of(committed, weights))
    return AuditedModel(
        record=record,
        model=model.eval(),
        adapters=adapters,
        adapted=frozenset(configs),
        loss=loss,
        files={
            name: whole_file.entry(committed, name).digest
            for name in committed.names
            if name == model_folder.WEIGHTS or name.endswith(model_folder.ADAPTER_WEIGHTS)
        },
        steps=_steps(read_leaves(read_ledger(committed))),
    )


def _recorded(run: Path) -> tuple[RunRecord, Experiment, commit_folder.CommitFolder]:
    record = read_record(run)
    if record.experiment is None:
        raise UsageError(
            "the run was started from a script, so its model cannot be built here",
            where=str(run),
            do="Audit a run of an experiment file",
        )
    return record, record.experiment, final_checkpoint(run, record)


def _built(experiment: Experiment, record: RunRecord) -> tuple[nn.Module, LossFn]:
    """The entrypoint's model on the CPU, with weights that say nothing yet, and its loss."""
    loop = own_loop(experiment)
    if loop is None:
        return load_entrypoint(experiment)
    loss = loss_beside(experiment)
    policy = read(Policy, Envelope.parse(record.policy)).document
    found = until_govern(
        loop,
        dict(record.config),
        policy.groups or {},
        torch.device("cpu"),
        where=f"entrypoint {experiment.entrypoint}",
    )
    return found.model, loss


def tokenizer_of(recorded: RecordedInputs, manifest: Manifest) -> Tokenizer:
    name = recorded.experiment.data.tokenizer
    try:
        path = None if name == "bytes" else Path(name)
        found = load_words(path, recorded.experiment.data.rows)
    except (UsageError, Refused) as error:
        raise CouldNotCheck(error.what, where=error.where, do=error.do) from error
    if found.digest != manifest.tokenizer.digest:
        raise CouldNotCheck(
            "the tokenizer is not the one that the data was prepared with",
            where=name,
            do="Restore its file",
        )
    return found


def standing_leaves(leaves: Iterable[AnyLeaf]) -> dict[int, Leaf]:
    """Step → its leaf in the last branch that has it: a rollback undid the earlier ones."""
    last: dict[int, Leaf] = {}
    for leaf in sorted((e for e in leaves if isinstance(e, Leaf)), key=lambda e: e.branch):
        last[leaf.step] = leaf
    return last


def _steps(leaves: Iterable[AnyLeaf]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for leaf in standing_leaves(leaves).values():
        for corpus in leaf.corpora:
            found.setdefault(corpus, set()).add(leaf.step)
    return {corpus: frozenset(steps) for corpus, steps in found.items()}


def _fill(model: nn.Module, committed: commit_folder.CommitFolder, run: Path) -> None:
    fill(
        model,
        tensors_of(committed, model_folder.WEIGHTS),
        where=str(run),
        error=Refused,
        do="Audit with the code that the run was trained with",
    )
