"""Dropout whose masks belong to rows, not to a process.

A row's mask is a function of (seed, stream, step, position, layer FQN) and of each element's place
in the row. The position is the row's in its stream's quota. So the mask depends neither on the rank
that reads the row, nor on other rows of its micro-batch, nor on other streams. Non-interference and
a change of world size need that.

A row's key is SHA-256 of (seed, stream, step, position), a layer's that of its FQN. Both together
are the key of a counter-based generator (`kept`). Masks are computed where the inputs
are, for all rows at once. They are integer arithmetic, hence equal on every device.

Invariants:

* An exact ``nn.Dropout`` is replaced by the keyed module; the other dropout
  modules of torch, whose masks are not elementwise, are refused by name.
* In training mode with p > 0, a forward outside ``Keyed.rows`` is an error.
* A module that is called twice for one row uses one mask twice. (A call counter
  would break activation checkpointing, which calls the module again.)
* Dropout that a model calls as a function draws from torch's global generator, and other code from
  Python's or numpy's. Inside ``Keyed.rows`` these three are seeded from (seed, stream, step, first
  position) and restored afterwards. So streams share no generator there either. But such draws
  depend on how rows are split into passes.

Keys have 64 bits, so two of very many masks may coincide. That is harmless for training, and no
secret hangs on it.

Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural
Networks from Overfitting" (inverted scaling, as in ``nn.Dropout``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from govray.engine.steps.keyed_seed import mask_seed
from govray.errors import UsageError

# Masks as a function of a key and an element's place: equal on every device, whatever is beside.
#
# The generator is SplitMix64. Its i-th output, counted from 1, is ``mix(key + i·γ)`` modulo 2^64.
# So it needs no state, and a whole tensor is computed at once. Each output gives two words of 32
# bits, the lower one first. Element e of a row takes word e. It is dropped if the word, read as a
# signed number, is below p·2^32 − 2^31.
#
# It is integer arithmetic alone, so a CPU and a GPU give the same bits. Chunks bound the memory
# that it needs, and change nothing.
#
# Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators" (OOPSLA).
# The constants are those of Vigna's ``splitmix64.c``, which passes BigCrush.


_WORDS_AT_ONCE = {"cpu": 1 << 16}
"""Outputs of 64 bits in one chunk: what a CPU's cache holds."""

_WORDS_ON_DEVICE = 1 << 22


def signed(number: int) -> int:
    """64 unsigned bits as the int64 with the same bits, which is what torch computes with."""
    return number - (1 << 64) if number >= 1 << 63 else number


_GAMMA = signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, signed(0xBF58476D1CE4E5B9)), (27, signed(0x94D049BB133111EB)))


def mix(words: Tensor) -> Tensor:
    """SplitMix64's finalizer, in place: a bijection of 64 bits that spreads each over all.
    ``words``: int64 of any shape, on any device; returned."""
    for shift, factor in _ROUNDS:
        words ^= _shifted(words, shift)
        words *= factor
    words ^= _shifted(words, 31)
    return words


def outputs(keys: Tensor, first: int, last: int) -> Tensor:
    """Outputs ``first`` … ``last - 1`` of each key, counted from 0.

    Args:
        keys: int64 of shape (rows,).

    Returns:
        int64 of shape (rows, last − first), on the same device.
    """
    steps = torch.arange(first + 1, last + 1, device=keys.device)
    return mix(keys.unsqueeze(1) + steps * _GAMMA)


def kept(keys: Tensor, elements: int, p: float) -> Tensor:
    """Which elements of each row are kept: each one with probability 1 − p.

    Args:
        keys: int64 of shape (rows,), on any device: one for each row.
        elements: Of a row.
        p: Of being dropped, from 0 to 1; rounded to a multiple of 2^-32.

    Returns:
        bool of shape (rows, elements), on the same device.
    """
    if p == 1.0:
        return torch.zeros(len(keys), elements, dtype=torch.bool, device=keys.device)
    least = min(round(p * 2**32), 2**32 - 1) - 2**31
    found = torch.empty(len(keys), elements, dtype=torch.bool, device=keys.device)
    at_once = _WORDS_AT_ONCE.get(keys.device.type, _WORDS_ON_DEVICE)
    words = (elements + 1) // 2
    rows = max(1, at_once // max(1, words))
    for row in range(0, len(keys), rows):
        for first in range(0, words, at_once):
            last = min(first + at_once, words)
            drawn = outputs(keys[row : row + rows], first, last).view(torch.int32)
            end = min(2 * last, elements)
            found[row : row + rows, 2 * first : end] = drawn[:, : end - 2 * first] >= least
    return found


def _shifted(words: Tensor, shift: int) -> Tensor:
    """Shift right, filling with zeros: torch's own shift of int64 fills with the sign."""
    moved = words >> shift
    moved &= (1 << (64 - shift)) - 1
    return moved


Rows = Sequence[tuple[str, int]]
"""Of each row of a pass: its stream, and its position in the stream's quota of the step."""

_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def key_dropout(model: nn.Module, seed: int) -> Keyed:
    """Replace every ``nn.Dropout`` of the model, in place.

    Parameters, buffers and FQNs stay as they are.

    Returns:
        The handle whose ``rows`` names the rows of each forward.
    """
    for fqn, module in model.named_modules():
        if isinstance(module, _DROPOUTS) and type(module) is not nn.Dropout:
            raise UsageError(
                f"{type(module).__name__} cannot be keyed by row",
                where=fqn,
                do="Use nn.Dropout, whose mask is drawn for each element",
            )
    keyed = Keyed(seed)
    replacements: dict[nn.Module, KeyedDropout] = {}
    for fqn, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is nn.Dropout and fqn:
            if module not in replacements:
                replacements[module] = KeyedDropout(keyed, fqn, module.p).train(module.training)
            parent, _, name = fqn.rpartition(".")
            setattr(model.get_submodule(parent), name, replacements[module])
        elif isinstance(module, KeyedDropout):  # of an earlier run over the same model
            module.key(keyed)
    return keyed


class Keyed:
    """Says which rows a forward holds, to the dropout modules of one model."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = 0
        self._rows: Rows | None = None
        self._keys: dict[torch.device, Tensor] = {}  # of the rows, where they were needed

    @contextmanager
    def rows(self, step: int, rows: Rows, keys: Tensor | None = None) -> Iterator[None]:
        """Run forward (and a recomputing backward) of one pass in here.

        Args:
            rows: For each row, its stream and its position in the stream's quota of this step.
            keys: What masks are drawn from in place of the rows' own keys: int64 of shape
                (rows,), on the device of the masks.
        """
        # Keeping and restoring the global state also covers what the user's own
        # code draws between micro-batches: it sees no trace of the streams.
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        before = self._step, self._rows, self._keys
        given = {} if keys is None else {keys.device: keys}
        self._step, self._rows, self._keys = step, rows, given
        stream, position = rows[0]
        seed = mask_seed(self._seed, stream, step, position)
        python, legacy = random.getstate(), np.random.get_state(legacy=False)
        try:
            with torch.random.fork_rng(devices=devices):
                _seed_torch(seed)
                random.seed(seed)
                np.random.seed(seed % 2**32)
                yield
        finally:
            self._step, self._rows, self._keys = before
            random.setstate(python)
            np.random.set_state(legacy)

    def row_keys(self, step: int, rows: Rows) -> Tensor:
        """What the masks of these rows are drawn from: int64 of shape (rows,), on the CPU."""
        keys = [signed(mask_seed(self._seed, stream, step, position)) for stream, position in rows]
        return torch.tensor(keys, device="cpu")

    def kept(self, fqn: str, p: float, inputs: Tensor) -> Tensor:
        """Which of the inputs are kept, each with probability 1 − p.
        ``inputs``: (rows, …), of any dtype; the result is bool, of its shape and on its device."""
        if self._rows is None:
            raise UsageError(
                "dropout in training mode outside a governed step",
                where=fqn,
                do="Call model.eval() before using the model by hand",
            )
        if inputs.dim() == 0 or inputs.shape[0] != len(self._rows):
            raise UsageError(
                f"dropout over a tensor of shape {tuple(inputs.shape)} "
                f"in a pass of {len(self._rows)} rows",
                where=fqn,
                do="Keep rows in the first dimension, so that each row has its own mask",
            )
        layer = signed(mask_seed("layer", fqn))
        keys = mix(self._row_keys(inputs.device) ^ layer)
        elements = math.prod(inputs.shape[1:])
        return kept(keys, elements, p).view(inputs.shape)

    def _row_keys(self, device: torch.device) -> Tensor:
        """Copied to a device once in a pass, not for each layer."""
        if device not in self._keys:
            assert self._rows is not None
            keys = self.row_keys(self._step, self._rows)
            self._keys[device] = keys.to(device, non_blocking=True)
        return self._keys[device]


def _seed_torch(seed: int) -> None:
    """``torch.manual_seed``, which on a machine without a device notes a traceback for each kind:
    a quarter of a millisecond in every pass."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class KeyedDropout(nn.Module):
    """``nn.Dropout`` with a mask per row; the identity in evaluation, or at p = 0."""

    def __init__(self, keyed: Keyed, fqn: str, p: float) -> None:
        super().__init__()
        self.p = p
        self._keyed = keyed
        self._fqn = fqn

    def key(self, keyed: Keyed) -> None:
        """From now on, take the rows from here."""
        self._keyed = keyed

    def forward(self, inputs: Tensor) -> Tensor:
        """(rows, …) of a floating dtype → the same shape, dtype and device."""
        if not self.training or self.p == 0.0:
            return inputs
        kept = self._keyed.kept(self._fqn, self.p, inputs)
        # The factor is no tensor: it would be rounded to the inputs' dtype first.
        return inputs.where(kept, 0) * (1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0)

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f"p={self.p}"
