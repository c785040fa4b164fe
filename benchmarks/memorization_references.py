"""Reference models: trained as the model in question, without the rows that are ranked.

They read the same clean rows, and other texts of the pool in the place of those that are read
again. No canary is planted.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from benchmarks.memorization_data import Corpus, Data, Recipe
from benchmarks.memorization_families import Family
from benchmarks.memorization_training import Reading, train


def reference_models(recipe: Recipe, data: Data, seed: int, family: Family) -> list[nn.Module]:
    """Train ``recipe.references`` models; weights and order differ, data do not.

    Args:
        recipe: Sizes.
        data: The seed's; only ``apart`` and ``clean`` are read.
        seed: That of the model in question.
        family: Its family.
    """
    shorter = replace(recipe, steps=recipe.reference_steps, reads=())
    without = replace(data, docstrings=Corpus(data.apart, ()), canary_rows=())
    found = []
    for number in range(recipe.references):
        own = -1 - seed * recipe.references - number
        torch.manual_seed(own)
        model = family(recipe)
        train(model, shorter, Reading(shorter, without, own))
        found.append(model)
    return found
