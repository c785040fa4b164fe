"""Training state as one committed folder: weights, optimizer, generators, ledger, governance.

Everything a run needs to go on is committed together under one manifest of
digests (`govray.engine.checkpoint`) or not at all. Rank 0 writes; whether it
succeeded is shared, so that all ranks go on or all stop.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.engine import checkpoint
from govray.engine.adapters import Adapters
from govray.errors import GovrayError, Refused
from govray.governance import bundle, canonical
from govray.governance.ledger import AnyLeaf, Ledger, read_leaves
from govray.train.environment import environment_here
from govray.train.order import Order

_STEP = re.compile(r"checkpoint_(\d{9})")


def folder_name(step: int) -> str:
    """Name of the checkpoint folder whose next step is ``step``."""
    return f"checkpoint_{step:09d}"


def latest(run_folder: Path) -> tuple[Path, int] | None:
    """The newest commit under a run folder whose files all match their digests, and its next step.

    The one resolver of where a run resumes. A folder that a crash left behind
    does not verify and is passed over.
    """
    found = sorted(
        (
            (int(match[1]), entry)
            for entry in run_folder.glob("checkpoint_*")
            if (match := _STEP.fullmatch(entry.name))
        ),
        reverse=True,
    )
    for step, folder in found:
        try:
            checkpoint.load(folder)
        except GovrayError:
            continue
        return folder, step
    return None


class State:
    """Commits and restores the training state of one run on one worker."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, adapters: Adapters
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._adapters = adapters

    def commit(
        self, step: int, order: Order, leaves: list[AnyLeaf], *, trouble: str | None = None
    ) -> Path:
        """Commit the state after which step ``step`` is next. Every rank calls it.

        Args:
            step: The first step that the state does not hold.
            order: The run's.
            leaves: Ledger leaves of all steps before; rank 0's count.
            trouble: Why rank 0 must not commit, if it must not.

        Returns:
            The committed folder.

        Raises:
            GovrayError: Rank 0 could not write; every rank raises the same error,
                and nothing that loads is left behind.
        """
        folder = Path(order.folder) / folder_name(step)
        generators = _gather_generators()
        outcome = [trouble]
        if _rank() == 0 and not trouble:
            try:
                checkpoint.commit(folder, self._files(step, order, leaves, generators))
            except (GovrayError, OSError) as error:
                outcome = [str(error)]
        if dist.is_initialized():
            dist.broadcast_object_list(outcome, src=0)
        if outcome[0] is not None:
            raise GovrayError(
                f"the checkpoint of step {step} could not be written: {outcome[0]}",
                where=str(folder),
                do="Earlier checkpoints are whole; free the storage and run again to resume",
            )
        return folder

    def restore(self, folder: Path, order: Order) -> tuple[AnyLeaf, ...]:
        """Load a commit into the model, the optimizer, the adapters and this rank's generator.

        Returns:
            The ledger leaves of the steps that the commit holds.

        Raises:
            Refused: A file does not match its digest, or the commit belongs to
                another policy, plan or manifest.
        """
        committed = checkpoint.load(folder)
        state: Any = canonical.parse_canonical(committed.files["state.json"])
        for key, expected in _bindings(order).items():
            if state.get(key) != expected:
                raise Refused(
                    f"the checkpoint was made under another {key}",
                    where=str(folder),
                    do="Start a new run, or restore the inputs this one began with",
                )
        self._model.load_state_dict(committed.tensors(bundle.WEIGHTS), strict=False)
        for name in self._adapters.ranks:
            config, weights = bundle.adapter_files(name)
            self._adapters.load(
                name,
                canonical.parse_canonical(committed.files[config]),
                committed.tensors(weights),
            )
        checkpoint.restore_optimizer(
            self._optimizer,
            self._names(),
            committed.tensors("optimizer.safetensors"),
            canonical.parse_canonical(committed.files["optimizer.json"]),
        )
        generators = committed.tensors("generators.safetensors")
        own = generators.get(f"rank{_rank()}")
        if own is not None and state["worldSize"] == _world():
            checkpoint.restore_rng(own)
        return read_leaves(committed.files["ledger.jsonl"])

    def _files(
        self, step: int, order: Order, leaves: list[AnyLeaf], generators: dict[str, Tensor]
    ) -> dict[str, Any]:
        ledger = Ledger(order.run_id, leaves)
        tensors, hyperparameters = checkpoint.optimizer_state(self._optimizer, self._names())
        files: dict[str, Any] = {
            bundle.WEIGHTS: base_tensors(self._model),
            "optimizer.safetensors": tensors,
            "optimizer.json": canonical.encode(hyperparameters),
            "generators.safetensors": generators,
            "ledger.jsonl": ledger.data,
            "state.json": canonical.encode(
                {
                    **_bindings(order),
                    "run": order.run_id,
                    "step": step,
                    "worldSize": _world(),
                    "ledger": {"size": ledger.size, "root": "sha256:" + ledger.root.hex()},
                    "environment": environment_here(
                        seed=order.seed, threads=order.threads, source=order.source
                    ).to_json(),
                }
            ),
        }
        for name in self._adapters.ranks:
            config, weights = self._adapters.export(name)
            config_file, weights_file = bundle.adapter_files(name)
            files[config_file] = canonical.encode(config)
            files[weights_file] = weights
        return files

    def _names(self) -> dict[nn.Parameter, str]:
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        return names | {parameter: name for name, parameter in self._adapters.named_parameters()}


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The base model's parameters and persistent buffers; a tied tensor once, by its first FQN."""
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
        name for name, _ in model.named_parameters()
    }
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def _bindings(order: Order) -> dict[str, str]:
    return {
        "policy": order.policy_digest,
        "plan": order.plan.digest,
        "manifest": order.manifest_digest,
        "pretrained start": order.start.digest if order.start else "none",
    }


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _gather_generators() -> dict[str, Tensor]:
    own = checkpoint.rng_state()
    if not dist.is_initialized():
        return {"rank0": own}
    gathered: list[Any] = [None] * _world()
    dist.all_gather_object(gathered, own)
    return {f"rank{rank}": state for rank, state in enumerate(gathered)}
