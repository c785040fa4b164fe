"""Training state as one committed folder: weights, optimizer, generators, ledger, governance.

All state that a run needs is committed together under one manifest of digests
(`govray.train.checkpoint.commit_folder`) or not at all. A capture is a copy in host memory:
training goes on while it is written (`govray.train.state.committer`). If the model is sharded, each
rank captures its own rows of weights and optimizer state (`govray.train.checkpoint.sharded_file`).
Where ranks hold several copies of the model, those of the first do. Rank 0 captures all else. A
commit of any number of ranks can be restored: each rank reads whole files, or the parts with its
rows.

It has no learning-rate schedule, which is a function of the step alone.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from govray.engine.model.rng_state import (
    Generators,
    generators,
    restore_generators,
    seed_generators,
)
from govray.errors import (
    Damaged,
    GovrayError,
    InfrastructureFailed,
    RankFailed,
    Refused,
    UsageError,
)
from govray.governance.attestation import model_folder
from govray.governance.attestation.coverage import updated_adapters
from govray.governance.formats import canonical_json
from govray.governance.record.gates import Gate, encode_gates
from govray.governance.record.ledger import AnyLeaf, read_leaves
from govray.train.checkpoint import commit_folder, stored_tensors
from govray.train.checkpoint.sharded_file import INDEX, ShardIndex, part_name
from govray.train.checkpoint.storage import CORRUPT as CORRUPT
from govray.train.checkpoint.storage import SUPERSEDED as SUPERSEDED
from govray.train.checkpoint.storage import committed_folders as committed_folders
from govray.train.checkpoint.storage import folder_name as folder_name
from govray.train.checkpoint.storage import latest as latest
from govray.train.checkpoint.stored_tensors import Stored, tensors_of
from govray.train.checkpoint.tensor_shards import held_here
from govray.train.inputs.gating import GATES
from govray.train.inputs.order import Order
from govray.train.run_folder.environment_probe import environment_here
from govray.train.run_folder.ledger_tree import LedgerFile, LedgerTile
from govray.train.state.carried_governance import CARRIED, ledger_head, read_ledger
from govray.train.state.carried_governance import LEDGER as LEDGER
from govray.train.state.carried_governance import STATE as STATE
from govray.train.state.trained_model import OPTIMIZER_VALUES, TrainedModel

_GENERATORS = "generators.safetensors"
_GENERATOR_VALUES = "generators.json"


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What one rank commits of a run's state, in host memory: no later step changes it.

    Attributes:
        step: The first step that it does not hold.
        contents: Name → content of all files but the two below.
        summary: Content of ``state.json``; None on a rank that only commits its parts.
        generators: Of every rank.
        tiles: The whole tiles of the ledger, which lie beside the commit.
    """

    step: int
    contents: Mapping[str, Stored]
    summary: Mapping[str, Any] | None = None
    generators: Sequence[Generators] = field(default_factory=tuple)
    tiles: Sequence[LedgerTile] = ()

    @property
    def size(self) -> int:
        """Bytes of the contents, without headers and what is small."""
        return sum(
            len(each) if isinstance(each, bytes) else sum(tensor.nbytes for tensor in each.values())
            for each in self.contents.values()
        )

    def files(self, carried: Mapping[str, Any] | None = None) -> dict[str, commit_folder.Content]:
        """Name → content of all files that the rank commits. A function of its inputs alone."""
        if self.summary is None:
            return stored_tensors.contents(self.contents)
        summary = dict(self.summary) | {CARRIED: dict(carried or {})}
        files: dict[str, Stored] = {
            **self.contents,
            _GENERATORS: {
                _generator_name(rank, name): tensor
                for rank, state in enumerate(self.generators)
                for name, tensor in state.tensors.items()
            },
            _GENERATOR_VALUES: canonical_json.encode(
                {f"rank{rank}": state.values for rank, state in enumerate(self.generators)}
            ),
            STATE: canonical_json.encode(summary),
        }
        return stored_tensors.contents(files)


class TrainingState:
    """Captures and restores the training state of one run on one worker."""

    def __init__(self, trained: TrainedModel) -> None:
        self._trained = trained
        self._environment: dict[str, Any] | None = None
        self._ledger = LedgerFile()
        self._updated: set[str] = set()
        self.sharded = trained.sharded

    def capture(
        self,
        step: int,
        order: Order,
        leaves: Sequence[AnyLeaf],
        *,
        loss: float | None = None,
        gates: Sequence[Gate] = (),
        validation: Mapping[str, Any] | None = None,
    ) -> Capture | None:
        """Copy the state after which step ``step`` is next. Every rank calls it.

        The ranks gather their generators; nothing after that is collective.

        Args:
            step: The first step that the state does not hold.
            leaves: Ledger leaves of all steps before, in their order; only rank 0's are used.
            loss: Mean loss of the steps since the commit before, if it is a number.
            gates: Of all steps before; only rank 0's are used.

        Returns:
            What this rank commits. Unless the model is sharded, None on all ranks but 0.
        """
        everyones = _gather(generators())
        if _rank() != 0 and not self.sharded:
            return None
        part = self._trained.part()
        if part and part.copy:  # the first copy is the same
            return Capture(step=step, contents={})
        held, hyperparameters = self._trained.tensors()
        contents: dict[str, Stored] = {}
        rows: dict[str, Mapping[str, int]] = {}
        for file, live in held.items():
            own, rows[file] = held_here(live)
            if rows[file] and not self.sharded:
                raise UsageError(f"{min(rows[file])} is sharded, and the model is not", where=file)
            contents[part_name(file, part.number, part.of) if part else file] = own
        if _rank() != 0:
            return Capture(step=step, contents=contents)
        if part:
            contents[INDEX] = ShardIndex(part.of, rows).encode()
        if self._environment is None:  # looking it up takes longer than a small copy
            device, settings = self._trained.computes_on()
            self._environment = environment_here(
                seed=order.settings.seed,
                threads=order.experiment.threads,
                source=order.source,
                chosen={**order.experiment.chosen_kernels, **settings},
                device=device,
            ).to_json()
        self._updated |= updated_adapters(leaves[self._ledger.size :], order.plan, order.routes)
        self._ledger.extend(leaves)
        contents[OPTIMIZER_VALUES] = canonical_json.encode(hyperparameters)
        contents[LEDGER] = self._ledger.tail
        for name, config, tensors in self._trained.adapters():
            if name not in self._updated:
                continue  # as it began: the seed and its name give it again
            config_file, weights_file = model_folder.adapter_files(name)
            contents[config_file] = canonical_json.encode(config)
            contents[weights_file] = tensors
        if gates:
            contents[GATES] = encode_gates(gates)
        keep = order.experiment.keep
        summary: dict[str, Any] = {
            **_bindings(order),
            "run": order.run_id,
            "step": step,
            "worldSize": _world(),
            "keep": keep.to_json(),
            "ledger": ledger_head(self._ledger),
            "environment": self._environment,
        }
        if loss is not None:
            summary["loss"] = loss
        if validation:
            summary["validation"] = dict(validation)
        return Capture(
            step=step,
            summary=summary,
            generators=everyones,
            contents=contents,
            tiles=self._ledger.tiles,
        )

    def restore(self, folder: commit_folder.Folder, order: Order) -> tuple[AnyLeaf, ...]:
        """Load a commit into the model, the optimizer, the adapters and this rank's generators.

        Collective: every rank calls it, reads what it needs, and learns of the others' errors.

        Returns:
            The ledger leaves of the steps that the commit holds.

        Raises:
            Refused: On all ranks: the commit belongs to another policy, plan or
                manifest, or to another model or optimizer.
            RankFailed: On all ranks: one of them could not load it.
            InfrastructureFailed: Remote storage refused a rank, or the commit's bytes were changed.
                A changed commit was put aside: the next attempt resumes from an older one.
        """
        leaves: tuple[AnyLeaf, ...] = ()
        failure: Exception | None = None
        try:
            leaves = self._load(folder, order)
        except Exception as error:  # the other ranks must learn of any error
            failure = error
        _settle(folder, failure)
        return leaves

    def _load(self, folder: commit_folder.Folder, order: Order) -> tuple[AnyLeaf, ...]:
        committed = commit_folder.open_commit(folder)
        state: Any = canonical_json.parse_canonical(committed.files[STATE])
        for key, expected in _bindings(order).items():
            if state.get(key) != expected:
                raise Refused(
                    f"the checkpoint was made under another {key}",
                    where=str(folder),
                    do="Start a new run, or restore the inputs this one began with",
                )
        self._trained.load(committed)
        tensors = tensors_of(committed, _GENERATORS)
        values: Any = canonical_json.parse_canonical(committed.files[_GENERATOR_VALUES])
        if f"rank{_rank()}" in values:
            restore_generators(_of_rank(_rank(), tensors, values))
        else:  # a rank that did not exist when the state was committed
            seed_generators(generator_seed(order.settings.seed, state["step"], _rank()))
        return read_leaves(read_ledger(committed))


def generator_seed(seed: int, step: int, rank: int) -> int:
    """The 32-bit seed for the generators of a rank that is new at a step."""
    digest = hashlib.sha256(canonical_json.encode(["generators", seed, step, rank])).digest()
    return int.from_bytes(digest[:4], "big")


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


def _settle(folder: commit_folder.Folder, failure: Exception | None) -> None:
    """Raise the same error on all ranks if any has one: the most severe, of the lowest rank."""
    found = [each for each in _gather(_graveness(failure)) if each]
    if not found:
        return
    refused = next((text for grave, text in found if grave == "refused"), None)
    if refused is not None:
        raise Refused(refused)
    damaged = next((text for grave, text in found if grave == "damaged"), None)
    if damaged is None:
        kind = RankFailed if any(g == "failed" for g, _ in found) else InfrastructureFailed
        raise kind(
            f"a rank could not load the checkpoint: {found[0][1]}", where=str(folder)
        ) from failure
    if _rank() == 0:
        # If storage forbids it, the next attempt stops here again and says so.
        with contextlib.suppress(GovrayError):
            commit_folder.put_aside(folder, CORRUPT)
    raise InfrastructureFailed(
        f"the checkpoint is damaged and was put aside: {damaged}",
        where=str(folder),
        do="The next attempt resumes from an older one, or from the beginning",
    ) from failure


def _graveness(failure: Exception | None) -> tuple[str, str] | None:
    if failure is None:
        return None
    text = (
        str(failure) if isinstance(failure, GovrayError) else f"{type(failure).__name__}: {failure}"
    )
    if isinstance(failure, Damaged):
        return "damaged", text
    if isinstance(failure, Refused):
        grave = "refused"
    else:
        grave = "unreachable" if isinstance(failure, InfrastructureFailed) else "failed"
    return grave, f"rank {_rank()}: {text}"


def _generator_name(rank: int, name: str) -> str:
    return f"rank{rank}/{name}"


def _of_rank(rank: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Generators:
    prefix = _generator_name(rank, "")
    return Generators(
        {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)},
        values[f"rank{rank}"],
    )


def _gather(own: Any) -> list[Any]:
    """Every rank's value, by rank."""
    if not dist.is_initialized():
        return [own]
    gathered: list[Any] = [None] * _world()
    dist.all_gather_object(gathered, own)
    return gathered
