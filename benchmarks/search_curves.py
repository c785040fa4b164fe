"""The search benchmark's curves as data: trained once, by a command that the file names.

One line of JSON for the whole: the command, the space, versions, the commit that was checked out,
and a digest of the training data. Then one line for each curve, by number: loss, M and exposure at
each rung, to six digits. A null stands for a loss that is not finite, and for what was not
measured. The file that comes with the benchmark has exposures at earlier rungs where a search's
result ended.

The data come from this Python's own library, so another Python may have others, and another digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.search_trials import Measured, Space, build, train
from govray.errors import UsageError
from govray.train.run_folder.source_code import git_state
from govray.tune.points import draw

FILE = Path(__file__).with_name("search_curves.jsonl")
"""The curves that come with the benchmark."""
TAU = math.log(1.5)
"""The limit of M: the log of the odds that the shipped policy tolerates."""
_DIGITS = 6
_NAMES = ("loss", "memorization", "exposure")


@dataclass(frozen=True)
class Curves:
    """Those of one space and seed.

    Attributes:
        seed: Of data, points and training.
        rungs: The steps at which the curves were measured.
        tau: The limit of M, in the unit that M had when they were trained.
        numbers: Of the curves, rising.
        curves: As numbered, each measured at all rungs.
    """

    seed: int
    rungs: tuple[int, ...]
    tau: float
    numbers: tuple[int, ...]
    curves: tuple[tuple[Measured, ...], ...]


def make(path: Path, docstrings: Sequence[str], *, seed: int, count: int) -> None:
    """Train curves 0 … ``count`` - 1 into a file. Those that it has already are kept.

    Raises:
        UsageError: The file is of another space, seed, count or version.
    """
    space = Space()
    data = build(space, seed, docstrings)
    head = {
        "command": f"python -m benchmarks.search --train {count}",
        "seed": seed,
        "space": asdict(space),
        "rungs": space.rungs,
        "data_sha256": hashlib.sha256(json.dumps(asdict(data)).encode()).hexdigest(),
        "tau": TAU,
        "commit": git_state(Path(__file__))[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    text = json.dumps(head)
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    commit = {"commit": head["commit"]}  # of where one goes on: it may be a later one
    if lines and json.loads(lines[0]) | commit != json.loads(text):
        raise UsageError(
            "the curves there were made otherwise",
            where=str(path),
            do="Move the file away to train all of them anew",
        )
    done = {json.loads(line)["number"] for line in lines[1:]}
    with path.open("a", encoding="utf-8") as file:
        if not lines:
            print(text, file=file)
        for number in sorted(set(range(count)) - done):
            found = train(space, data, draw(space.dimensions, seed, number), seed)
            print(json.dumps({"number": number, **_columns(found)}), file=file, flush=True)
            print(f"curve {number} of {count}", file=sys.stderr, flush=True)


def read(path: Path = FILE) -> Curves:
    """Read a file of curves.

    Raises:
        UsageError: It is no such file.
    """
    try:
        head, *lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        curves = {}
        for line in lines:
            columns = [[_number(value, name) for value in line[name]] for name in _NAMES]
            curve = tuple(Measured(*each) for each in zip(*columns, strict=True))
            if line["number"] in curves or len(curve) != len(head["rungs"]):
                raise ValueError(f"curve {line['number']}")
            curves[int(line["number"])] = curve
        numbers = tuple(sorted(curves))
        return Curves(
            head["seed"],
            tuple(head["rungs"]),
            head["tau"],
            numbers,
            tuple(curves[number] for number in numbers),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"not a file of curves: {error}",
            where=str(path),
            do="Make one with: python -m benchmarks.search --train 256",
        ) from None


def _columns(found: Sequence[Measured]) -> dict[str, list[float | None]]:
    return {
        name: [
            float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
            for value in (getattr(each, name) for each in found)
        ]
        for name in _NAMES
    }


def _number(value: Any, name: str) -> float:
    if value is None:
        return math.inf if name == "loss" else math.nan
    return float(value)
