"""What the influence benchmark trains: a small GPT on corpora of one machine, by governed steps.

Corpora are packages of Python's standard library, cut into rows of bytes. Five may train
everything, two the upper half, one an adapter alone. Every step reads equally many rows of each. A
corpus that is left out leaves its positions empty, as a tombstone of a plan does. So a run without
it is what ``govray replay --without`` makes.
"""

from __future__ import annotations

import math
import random
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.agreement import Terms
from govray.engine.collective.step_settings import StepSettings
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.errors import UsageError
from govray.governance.formats.canonical_json import sha256
from govray.governance.policy.route import Route
from govray.governance.policy.selector import parse_selector
from govray.train.checkpoint.optimizer_state import optimizer_state

EVERYTHING = ("asyncio", "email", "encodings", "unittest", "xml")
UPPER_HALF = ("importlib", "multiprocessing")
REMOVABLE = ("http",)
CORPORA = tuple(sorted((*EVERYTHING, *UPPER_HALF, *REMOVABLE)))

_VOCABULARY = 257
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Recipe:
    """Sizes of the benchmark.

    Attributes:
        blocks, width, context: Of the model.
        steps: Of a training.
        rows: Of each corpus in a step.
        commits: Kept, evenly.
        outputs: Held-out texts of each corpus.
        prompt: Bytes of a held-out text that are given.
        rate: The largest learning rate.
    """

    blocks: int = 2
    width: int = 64
    context: int = 64
    steps: int = 200
    rows: int = 2
    commits: int = 8
    outputs: int = 4
    prompt: int = 16
    rate: float = 3e-3


QUICK = Recipe(blocks=2, width=16, steps=12, commits=2, outputs=1)


@dataclass(frozen=True)
class State:
    """What a kept commit has: weights, adapters' weights, and the optimizer's state."""

    step: int
    weights: Mapping[str, Tensor]
    adapters: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    values: Mapping[str, Any]


class Bench:
    """Rows, routes and trainings of one seed.

    Args:
        recipe: Sizes.
        seed: Of the weights, and of which rows train.
    """

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe = recipe
        self.seed = seed
        self.trained: dict[str, Tensor] = {}
        self.held_out: dict[str, Tensor] = {}
        for corpus in CORPORA:
            rows = _rows(corpus, recipe.context + 1)
            random.Random(f"{seed} {corpus}").shuffle(rows)  # noqa: S311 - a sample
            needed = recipe.steps * recipe.rows + recipe.outputs
            if len(rows) < needed:
                raise UsageError(
                    f"{corpus} has {len(rows)} rows here, and {needed} are read",
                    do="Run it with a Python whose standard library has its sources",
                )
            self.held_out[corpus] = torch.tensor(rows[: recipe.outputs])
            self.trained[corpus] = torch.tensor(rows[recipe.outputs : needed])

    @cached_property
    def routes(self) -> dict[str, Route]:
        """Corpus → route."""
        groups = layer_groups(self.model())
        upper = parse_selector("blocks[0.5:]").select(groups) | {"final_norm", "head"}
        return {
            **{corpus: Route(dict.fromkeys(groups, 1.0)) for corpus in EVERYTHING},
            **{corpus: Route({g: 1.0 for g in groups if g in upper}) for corpus in UPPER_HALF},
            **{corpus: Route({}, corpus, 4) for corpus in REMOVABLE},
        }

    def model(self) -> GPT:
        """The model as it begins."""
        recipe = self.recipe
        torch.manual_seed(self.seed)
        return GPT(recipe.blocks, recipe.width, recipe.context, _VOCABULARY)

    def adapters(self, model: GPT) -> Adapters:
        """Its adapters as they begin."""
        return Adapters(model, dict.fromkeys(REMOVABLE, 4), seed=self.seed)

    def rows(self, corpus: str, steps: range) -> Tensor:
        """The rows of a corpus that some steps read, (rows, context + 1)."""
        each = self.recipe.rows
        return self.trained[corpus][steps.start * each : steps.stop * each]

    def rate(self, step: int) -> float:
        """The learning rate: a warm-up, then a cosine down to a tenth."""
        warm_up = min(1.0, (step + 1) / 20)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.recipe.steps))
        return self.recipe.rate * warm_up * (0.1 + 0.9 * cosine)

    def train(self, without: str | None = None) -> list[State]:
        """Train, and return the kept commits, the oldest first."""
        model = self.model()
        adapters = self.adapters(model)
        optimizer = torch.optim.AdamW(model.parameters(), betas=_BETAS, weight_decay=0.01)
        beside = dict(adapters.named_parameters())
        optimizer.add_param_group({"params": [*beside.values()]})
        step = build_step(
            model,
            optimizer,
            groups=layer_groups(model),
            routes={route.digest: route for route in self.routes.values()},
            adapters=adapters,
            terms=Terms(policy_digest=sha256(b"p"), plan_digest=sha256(b"q"), corpora=CORPORA),
            settings=StepSettings(seed=self.seed),
        )
        every = self.recipe.steps // self.recipe.commits
        names = {p: n for n, p in [*model.named_parameters(), *beside.items()]}
        states = []
        for number in range(self.recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = self.rate(number)
            step(self._batch(number, without), loss)
            if (number + 1) % every == 0:
                moments, values = optimizer_state(optimizer, names)
                states.append(
                    State(
                        number + 1,
                        _copied(model.state_dict()),
                        _copied(beside),
                        _copied(moments),
                        values,
                    )
                )
        return states

    def _batch(self, step: int, without: str | None) -> StepBatch:
        streams: dict[str, list[str]] = {}
        for corpus in CORPORA:
            streams.setdefault(self.routes[corpus].digest, []).append(corpus)
        batches, counts = [], {}
        for stream, members in sorted(streams.items()):
            read = [corpus for corpus in members if corpus != without]
            if not read:
                continue
            rows = torch.cat([self.rows(corpus, range(step, step + 1)) for corpus in read])
            targets = (self.recipe.context,) * self.recipe.rows
            places = [
                place
                for number, corpus in enumerate(members)
                if corpus != without
                for place in range(number * self.recipe.rows, (number + 1) * self.recipe.rows)
            ]
            batches.append(
                MicroBatch(
                    stream=stream,
                    tensors={"tokens": rows[:, :-1], "targets": rows[:, 1:]},
                    positions=tuple(places),
                    row_targets=targets * len(read),
                    corpora=tuple(corpus for corpus in read for _ in targets),
                )
            )
            counts |= {corpus: (self.recipe.rows, sum(targets)) for corpus in read}
        return StepBatch(step, tuple(batches), counts)


def _rows(corpus: str, width: int) -> list[list[int]]:
    """The bytes of a package's sources, cut into rows."""
    folder = Path(sysconfig.get_path("stdlib")) / corpus
    data = b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
    return [list(data[at : at + width]) for at in range(0, len(data) - width, width)]


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def output_losses(model: GPT, rows: Tensor, prompt: int) -> Tensor:
    """Mean loss of each row behind its prompt, nats a token: (rows,)."""
    with torch.no_grad():
        losses = loss(model, {"tokens": rows[:, :-1], "targets": rows[:, 1:]})
    return losses[:, prompt - 1 :].mean(1)


def shared_sequences(output: Sequence[int], rows: Tensor, length: int = 4) -> float:
    """Share of an output's byte sequences that stand in a corpus's rows."""
    own = {tuple(output[at : at + length]) for at in range(len(output) - length + 1)}
    held = {
        tuple(row[at : at + length]) for row in rows.tolist() for at in range(len(row) - length + 1)
    }
    return len(own & held) / len(own)
