"""``python -m benchmarks.sharded_llama``: the memory of a Llama that no rank ever has whole.

Two processes share a Llama of 130 million random weights by FSDP2, computing in bfloat16. Each
makes its own rows only. Then they take 20 governed steps. One forward has rows that may train
everything and rows that may train the upper half, another has rows for an adapter alone.

A profile has every allocation of tensor storage from before the model is built to the end of the
second step. The peak of the rank with the most is compared with the sum of:

* what the rank owns for good: its rows of weights and gradients, both moments of AdamW, adapters;
* the largest unit while it is whole: gathered in bfloat16, its gradient in bfloat16, and the
  float32 buffer in which that is sent;
* activations: what autograd keeps of one forward of the plain model over as many rows.

Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.cases import SEED
from benchmarks.command import run
from benchmarks.memory import peak_bytes
from benchmarks.ranks import run_ranks
from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.step_settings import StepSettings
from govray.engine.huggingface import CausalLM, loss
from govray.engine.model.adapters import Adapters
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.governance.policy.route import Route
from govray.train.checkpoint.sharded_init import rows_of
from govray.train.checkpoint.tensor_shards import shard, take_rows, units

_PROCESSES = 2
_PROFILED = 2
"""Steps: from the second on the optimizer's moments are there, and each does the same."""
_DIGEST = "sha256:" + "0" * 64
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Size:
    """A Llama, and what it reads.

    Attributes:
        width, inner, blocks, heads, vocabulary: Of the model.
        tokens: Of a row.
        rows: Of each stream in a step, on every rank.
        steps: That are taken.
    """

    width: int = 1280
    inner: int = 3456
    blocks: int = 6
    heads: int = 20
    vocabulary: int = 8_192
    tokens: int = 16
    rows: int = 1
    steps: int = 20


QUICK = Size(width=64, inner=128, blocks=4, heads=4, vocabulary=512, tokens=16, steps=3)


@dataclass(frozen=True)
class Figures:
    """Bytes of tensors, on the rank with the most.

    Attributes:
        parameters: Numbers of the model.
        peak: Measured.
        state: Weights, gradients and moments of its rows, and of the adapters.
        unit: The largest unit, whole.
        activations: Of one forward.
        whole: What weights, gradients and moments of the whole model would take.
        losses: Mean loss of the first and the last step.
    """

    parameters: int
    peak: int
    state: int
    unit: int
    activations: int
    whole: int
    losses: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Of the peak to what must be there."""
        return self.peak / (self.state + self.unit + self.activations)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark.

    Raises:
        GovrayError: A rank failed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_llama", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model and 3 steps")
    options = parser.parse_args(argv)
    found = measure(QUICK if options.quick else Size())
    print(f"torch {torch.__version__}; {_PROCESSES} processes on gloo; fsdp2, bf16-mixed")
    print(_table(found))
    print(json.dumps(asdict(found) | {"ratio": round(found.ratio, 3)}))


def measure(size: Size) -> Figures:
    """Train on all ranks, and compare."""
    ranks = run_ranks(_train, _PROCESSES, "cpu", size)
    activations = run_ranks(_activations, 1, "cpu", size)[0]
    most = max(ranks, key=lambda each: each["peak"])
    return Figures(activations=activations, **most)


def model_of(size: Size) -> nn.Module:
    """The model, with weights from torch's global generator."""
    return CausalLM(
        size.tokens,
        size.vocabulary,
        config={
            "model_type": "llama",
            "hidden_size": size.width,
            "intermediate_size": size.inner,
            "num_hidden_layers": size.blocks,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.heads // 2,
        },
    )


def _train(rank: int, size: Size) -> dict[str, Any]:
    run = _Run(rank, size)
    peak = peak_bytes(lambda: run.begin, _CPU)
    run.go_on()
    sizes = torch.tensor([peak, run.state])
    dist.barrier()
    return {
        "peak": int(sizes[0]),
        "state": int(sizes[1]),
        "parameters": run.parameters,
        "unit": 8 * run.largest,
        "whole": 16 * run.parameters,
        "losses": (run.losses[0], run.losses[-1]),
    }


class _Run:
    """A model with its optimizer, and its steps."""

    def __init__(self, rank: int, size: Size) -> None:
        self._rank, self._size = rank, size
        self.parameters = self.largest = self.state = 0
        self.losses: list[float] = []

    def begin(self) -> None:
        """Build all, and take the first steps."""
        size = self._size
        torch.manual_seed(SEED)
        built = rows_of(partial(model_of, size), self._rank, _PROCESSES)
        model = built.model
        groups = layer_groups(model)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.largest = max(sum(each.numel() for each in unit) for unit in units(model))
        shard(model, mixed=True, device=_CPU)
        take_rows(model, built.rows, _CPU)
        del built
        routes = _routes(groups)
        adapters = Adapters(model, {"notes": 4}, seed=SEED)
        own = dict(adapters.named_parameters()).values()
        optimizer = torch.optim.AdamW([*model.parameters(), *own], lr=1e-3)
        self._routes = routes
        self._governed = build_step(
            model,
            optimizer,
            groups=groups,
            routes={route.digest: route for route in routes},
            adapters=adapters,
            terms=Terms(policy_digest=_DIGEST, plan_digest=_DIGEST, corpora=("web",)),
            settings=StepSettings(
                seed=SEED, aggregator="fsdp2", precision="bf16-mixed", max_rows=2 * size.rows
            ),
        )
        for number in range(_PROFILED):
            self._step(number)
        held = [p.to_local() for p in model.parameters()]  # type: ignore[attr-defined]
        self.state = 16 * sum(each.numel() for each in (*held, *own))

    def go_on(self) -> None:
        """Take the other steps."""
        for number in range(_PROFILED, self._size.steps):
            self._step(number)

    def _step(self, number: int) -> None:
        batch = _batch(self._routes, number, self._rank, self._size)
        self.losses.append(self._governed(batch, loss).loss)


def _routes(groups: Any) -> list[Route]:
    upper = [*list(groups)[len(groups) // 2 :]]
    return [
        Route(dict.fromkeys(groups, 1.0)),
        Route(dict.fromkeys(upper, 1.0)),
        Route({}, "notes", 4),
    ]


def _batch(routes: Sequence[Route], step: int, rank: int, size: Size) -> StepBatch:
    rows = size.rows
    generator = torch.Generator().manual_seed(SEED + 2 * step + rank)
    micro_batches = []
    for route in routes:
        tokens = torch.randint(64, (rows, size.tokens + 1), generator=generator)
        micro_batches.append(
            MicroBatch(
                stream=route.digest,
                tensors={"tokens": tokens[:, :-1], "targets": tokens[:, 1:].contiguous()},
                positions=tuple(range(rank * rows, (rank + 1) * rows)),
                row_targets=(size.tokens,) * rows,
            )
        )
    counts = (rows * len(routes), rows * len(routes) * size.tokens)
    return StepBatch(step=step, micro_batches=tuple(micro_batches), corpora={"web": counts})


def _activations(rank: int, size: Size) -> int:
    """Bytes that autograd keeps of a forward of the plain model in bfloat16."""
    model = model_of(size).bfloat16()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(64, (2 * size.rows, size.tokens))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = loss(_Wide(model), {"tokens": tokens, "targets": tokens})
    assert math.isfinite(float(losses.sum().detach()))
    return sum(kept.values())


class _Wide(nn.Module):
    """Logits in float32, as FSDP2 gives them."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, tokens) → float32 logits (rows, tokens, vocabulary)."""
        return self._model(tokens).float()


def _table(found: Figures) -> str:
    lines = [("parameters", f"{found.parameters / 1e6:.1f} M")]
    for name in ("state", "unit", "activations", "peak", "whole"):
        lines.append((name, f"{getattr(found, name) / 1e6:.1f} MB"))
    lines.append(("peak / (state + unit + activations)", f"{found.ratio:.3f}"))
    lines.append(("loss, first and last step", f"{found.losses[0]:.3f} {found.losses[1]:.3f}"))
    return "\n".join(f"{name:36} {value:>14}" for name, value in lines)


if __name__ == "__main__":
    run(main)
