"""The random generators of one process, held as values: torch, Python, numpy, the accelerator.

A user's loss may draw from any of them, so a checkpoint holds them all. Python's
and numpy's are JSON, torch's are the byte tensors that torch gives. Nothing is
pickled.

Generators that a user made (``torch.Generator()``, ``numpy.random.default_rng()``) are not saved:
they cannot be listed. The package's own dropout and initialisation are keyed by seed and step and
use none of this.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from govray.errors import Malformed


@dataclass(frozen=True)
class Generators:
    """The states of one process's generators.

    Attributes:
        tensors: ``torch`` and, where there is a device, ``cuda``: uint8, one dimension.
        values: ``python`` and ``numpy``, as JSON.
    """

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def drawn_until(self, later: Generators) -> list[str]:
        """Whose generators were drawn from between these states and later ones of the process."""
        values = [name for name, state in self.values.items() if state != later.values[name]]
        return values + [
            name
            for name, state in self.tensors.items()
            if not torch.equal(state, later.tensors[name])
        ]


def generators() -> Generators:
    """The states here and now; drawing goes on as if it had not been called."""
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # a run on the CPU begins nothing on a device
        tensors["cuda"] = torch.cuda.get_rng_state()
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    return Generators(
        tensors,
        {
            "python": {"version": version, "words": list(words), "gauss": gauss},
            "numpy": {
                "kind": legacy["bit_generator"],
                "words": legacy["state"]["key"].tolist(),
                "position": int(legacy["state"]["pos"]),
                "gauss": float(legacy["gauss"]) if legacy["has_gauss"] else None,
            },
        },
    )


def restore_generators(state: Generators) -> None:
    """Put back what `generators` returned. A state for a device that is not here is left out: a run
    that changes its device is not byte-exact in any case."""
    try:
        torch.set_rng_state(state.tensors["torch"])
        if "cuda" in state.tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(state.tensors["cuda"])
        python, legacy = state.values["python"], state.values["numpy"]
        random.setstate((python["version"], tuple(python["words"]), _float(python["gauss"])))
        np.random.set_state(
            {
                "bit_generator": legacy["kind"],
                "state": {
                    "key": np.asarray(legacy["words"], dtype=np.uint32),
                    "pos": legacy["position"],
                },
                "has_gauss": int(legacy["gauss"] is not None),
                "gauss": _float(legacy["gauss"]) or 0.0,
            }
        )
    except (RuntimeError, TypeError, ValueError, LookupError, OverflowError) as error:
        raise Malformed("not the state of this process's generators", where="generators") from error


def seed_generators(seed: int) -> None:
    """Begin all of them anew from one number, 0 … 2^32 - 1."""
    torch.manual_seed(seed)  # the device's too
    random.seed(seed)
    np.random.seed(seed)


def _float(value: float | None) -> float | None:
    """Canonical JSON writes 1.0 as 1."""
    return None if value is None else float(value)
