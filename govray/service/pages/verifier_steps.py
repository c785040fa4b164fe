"""The numbered steps of `govray verify`, in its own words: what a page lists beside its ticks.

They are read from the docstring that the verifier's code repeats by number, so a page cannot list
other steps than there are.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from govray.governance.verify.verifier import verify

_STEP = re.compile(r"^(\d+)\.\s+([^:]+): (.+?)(?=^\d+\.\s|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """``text`` is what has to hold."""

    number: int
    name: str
    text: str


def steps() -> tuple[Step, ...]:
    """All of them, in order."""
    text = (inspect.getdoc(verify) or "").partition("\nArgs:")[0]
    return tuple(
        Step(int(number), name, " ".join(body.split()))
        for number, name, body in _STEP.findall(text)
    )
