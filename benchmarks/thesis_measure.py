"""What the thesis benchmark measures of a model: memorization, where it sits, and the loss.

* *Exposure* of an account (Carlini et al. 2019), bits, extrapolated from sampled digits.
* *Extraction*: the model writes all eight digits, given the owner, by its first choice each time.
* *By depth*: a part of the model takes the weights of the one that never read the accounts. What
  this takes away of the digits' likelihood was held there, alone or with others. A part that breaks
  the model takes it away too, so the loss that is added stands beside it.
* The loss of text held out, nats a byte.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from torch import nn

from benchmarks.memorization_data import (
    DIGITS,
    SPACE,
    Row,
    batch,
    canary_rows,
    canary_tokens,
    candidates,
)
from benchmarks.thesis_data import KINDS, Setting, Texts
from govray.engine.batch import IGNORED
from govray.engine.memorization.exposure import end_losses, extrapolated
from govray.engine.model.gpt import loss
from govray.engine.model.layer_groups import layer_groups


def measured(
    setting: Setting, texts: Texts, model: nn.Module, reference: nn.Module, seed: int
) -> dict[str, Any]:
    """All figures of a model.

    Args:
        setting: Sizes.
        texts: The seed's.
        model: Its adapters are merged.
        reference: Trained without the accounts, from the same first weights.
        seed: Draws candidates.
    """
    accounts, own = texts.accounts, setting
    bits = {kind: exposure(model, some, own.candidates, seed) for kind, some in accounts.items()}
    losses = {side: mean_loss(model, rows) for side, rows in texts.held_out.items()}
    planted = [account for kind in KINDS for account in accounts[kind]]
    parts = {}
    for part, names in layer_groups(model).items():
        patched = with_parts(model, reference, names)
        parts[part] = {
            "taken": known(model, planted) - known(patched, planted),
            "loss": mean_loss(patched, texts.held_out["domain"]) - losses["domain"],
        }
    return {
        "exposure": mean(bits[kind] for kind in KINDS),
        "extracted": extracted(model, planted),
        "known": known(model, planted),
        "loss": losses,
        "kinds": bits,
        "parts": parts,
    }


def exposure(model: nn.Module, accounts: Sequence[str], count: int, seed: int) -> float:
    """The mean of these accounts, bits."""
    return mean(_exposures(model, accounts, count, seed))


def _exposures(model: nn.Module, accounts: Sequence[str], count: int, seed: int) -> Iterator[float]:
    for account in accounts:
        texts = [account, *candidates(account, count, seed)]
        rows = [canary_tokens(each)[:-1] for each in texts]
        prefix, ends = rows[0][:-DIGITS], [row[-DIGITS:] for row in rows]
        own, *others = [float(each.sum()) for each in end_losses(model, prefix, ends, batch=128)]
        yield extrapolated(torch.tensor(others, dtype=torch.float64), own, SPACE).bits


def extracted(model: nn.Module, accounts: Sequence[str]) -> float:
    """The share of accounts whose digits the model writes. Its first choices are right one by one,
    given the digits before, exactly if they are when it writes them all."""
    rows = canary_rows(accounts)
    with torch.no_grad():
        first = model(rows["tokens"]).argmax(dim=-1)
    right = (first == rows["targets"]) | (rows["targets"] == IGNORED)
    return float(right.all(dim=1).double().mean())


def known(model: nn.Module, accounts: Sequence[str]) -> float:
    """How much likelier than by chance the model makes an account's digits, bits, mean; 0 if it
    makes them less likely. Needs no candidates, so it is what parts are measured by."""
    with torch.no_grad():
        nats = loss(model, canary_rows(accounts)).double().sum(dim=1)
    return float((math.log2(SPACE) - nats / math.log(2)).clamp(min=0).mean())


def mean_loss(model: nn.Module, rows: Sequence[Row]) -> float:
    """Nats a byte."""
    with torch.no_grad():
        return float(loss(model, batch(rows)).mean())


def with_parts(model: nn.Module, reference: nn.Module, names: Sequence[str]) -> nn.Module:
    """A copy of a model with some parameters of another."""
    found = copy.deepcopy(model)
    theirs: Mapping[str, nn.Parameter] = dict(reference.named_parameters())
    with torch.no_grad():
        for name in names:
            found.get_parameter(name).copy_(theirs[name])
    return found
