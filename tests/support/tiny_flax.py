"""A tiny Flax model with dropout, three classes of rows, and a plan: numpy and JAX only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array

from govray.engine.jax import build_step
from govray.engine.jax.gpt import loss
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.steps.batch import IGNORED, MicroBatch, StepBatch
from govray.engine.steps.first_exchange import Terms
from govray.engine.steps.routed_step import RoutedStep
from govray.engine.steps.step_result import StepResult
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan, rank_slice
from govray.governance.record.row_order import RowOrder
from govray.train.worker.recorder import step_leaf

STEPS, CONTEXT, WIDTH, VOCABULARY, CLIP = 4, 3, 6, 7, 0.1
DIGEST = "sha256:" + "0" * 64

EVERYTHING = Route(dict.fromkeys(("embedding", "block.0", "block.1", "final_norm", "head"), 1.0))
UPPER = Route({"block.1": 0.5, "final_norm": 1.0, "head": 1.0})
NOTES = Route({}, "notes", 2)
ROUTES = {"open": EVERYTHING, "weak": UPPER, "notes": NOTES}
ROWS = {"open": 12, "weak": 8, "notes": 8}
EVERY = {"open": 1, "weak": 2, "notes": 1}
QUOTAS = {"open": 4, "weak": 2, "notes": 2}


class Layer(nnx.Module):
    """A linear layer and dropout, added to what comes in."""

    def __init__(self, rngs: nnx.Rngs, dropout: float) -> None:
        self.linear = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, hidden: Array) -> Array:
        return hidden + self.dropout(jax.numpy.tanh(self.linear(hidden)))


class Tiny(nnx.Module):
    """Each token predicts the next by itself."""

    def __init__(self, dropout: float = 0.1) -> None:
        rngs = nnx.Rngs(0)
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Layer(rngs, dropout) for _ in range(2)])
        self.final_norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)
        drawn = np.random.default_rng(3)
        for variable in named_parameters(self).values():
            shape = variable.get_value().shape
            variable.set_value(jax.numpy.asarray(drawn.normal(0, 0.4, shape), np.float32))

    def __call__(self, tokens: Array) -> Array:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.final_norm(hidden))


def plan(corpora: Mapping[str, Route]) -> BatchPlan:
    """``weak`` at every second step, so the last step reads ``notes`` alone."""
    streams = [
        StreamPlan(
            id=route.digest,
            profile=corpus,
            corpora=(StreamCorpus(corpus=corpus, rows=ROWS[corpus]),),
            phase=0,
            quota=QUOTAS[corpus],
            every=EVERY[corpus],
        )
        for corpus, route in corpora.items()
    ]
    return BatchPlan(
        seed=5,
        max_steps=STEPS,
        manifest=DIGEST,
        context=CONTEXT,
        order=RowOrder(block=1, window=1 << 20),
        streams=tuple(sorted(streams, key=lambda stream: stream.id)),
    )


def read(batch_plan: BatchPlan, step: int, rank: int, world: int) -> StepBatch:
    """One rank's slice of every stream, in numpy."""
    micro_batches = []
    corpora: dict[str, tuple[int, int]] = {}
    for stream, positions in batch_plan.positions(step).items():
        mine = rank_slice(positions, rank, world)
        rows = [(corpus, row) for _, corpus, row in batch_plan.read(stream, mine)]
        if not rows:
            continue
        tokens = np.stack([row_tokens(corpus, row) for corpus, row in rows])
        targets = tokens[:, 1:].copy()
        targets[[row % 2 == 1 for _, row in rows], -1] = IGNORED  # a row of odd number is short
        counts = tuple((targets != IGNORED).sum(1).tolist())
        micro_batches.append(
            MicroBatch(
                stream=stream,
                tensors={"tokens": tokens[:, :-1].copy(), "targets": targets},
                positions=tuple(position - positions.start for position in mine),
                row_targets=counts,
                corpora=tuple(corpus for corpus, _ in rows),
            )
        )
        corpora[rows[0][0]] = (len(rows), sum(counts))
    return StepBatch(step=step, micro_batches=tuple(micro_batches), corpora=corpora)


def row_tokens(corpus: str, row: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(f"{corpus} {row}".encode()).digest()[:4], "big")
    return np.random.default_rng(seed).integers(VOCABULARY, size=CONTEXT + 1)


def tiny_step(
    model: nnx.Module,
    corpora: Mapping[str, Route],
    optimizer: optax.GradientTransformation | None = None,
    **settings: Any,
) -> RoutedStep:
    terms = Terms(
        policy_digest=DIGEST, plan_digest=plan(corpora).digest, corpora=tuple(sorted(corpora))
    )
    return build_step(
        model,
        optimizer or ADAMW,
        routes={route.digest: route for route in corpora.values()},
        **({"terms": terms, "seed": 5, "clip_norm": CLIP} | settings),
    )


ADAMW = optax.adamw(1e-2, weight_decay=0.1)


@dataclass(frozen=True)
class Trained:
    """What a run left behind: SHA-256 of all arrays by name, and its ledger's leaves."""

    base: dict[str, str]
    adapter: dict[str, str]
    leaves: tuple[bytes, ...]
    clipped: bool


def train(corpora: Mapping[str, Route], rank: int = 0, world: int = 1) -> Trained:
    """A run from the first step to the last, on this rank."""
    step = tiny_step(Tiny(), corpora)
    own = plan(corpora)
    results: list[StepResult] = [step(read(own, at, rank, world), loss) for at in range(STEPS)]
    arrays = dict(step.framework.parameters())
    for group, state in step.framework.optimizer.states.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
            arrays[f"{group} {jax.tree_util.keystr(path)}"] = leaf
    digests = {name: digest(array) for name, array in arrays.items()}
    return Trained(
        base={name: each for name, each in digests.items() if "adapter:" not in name},
        adapter={name: each for name, each in digests.items() if "adapter:" in name},
        leaves=tuple(step_leaf(each, own, policy=DIGEST).line for each in results),
        clipped=min(norm for each in results for norm in each.grad_norms.values()) > CLIP,
    )


def digest(array: Array) -> str:
    data = np.asarray(array)
    return hashlib.sha256(f"{data.dtype} {data.shape}".encode() + data.tobytes()).hexdigest()
