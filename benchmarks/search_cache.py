"""The search benchmark's curves as data: trained once, by a command that the file names.

One line of JSON for the whole: the command, the space, versions, the commit that was checked out,
and a digest of the training data. Then one line for each curve, by number: loss, M and exposure at
each rung, to six digits. A null stands for a loss that is not finite, and for what was not
measured. The file that comes with the benchmark has exposures at earlier rungs where a search's
result ended.

The data come from this Python's own library, so another Python may have others. `same_data` says
whether it has.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.search_trials import Measured, Space, train
from benchmarks.upsampling_trials import Data, build
from govray.errors import UsageError
from govray.train.run_folder.source_code import git_state
from govray.tune.points import Point, draw

FILE = Path(__file__).with_name("search_curves.jsonl")
"""The curves that come with the benchmark."""
TAU = math.log(1.5)
"""The limit of M: the log of the odds that the shipped policy tolerates."""
_DIGITS = 6
_NAMES = ("loss", "memorization", "exposure")


@dataclass(frozen=True)
class Cached:
    """Curves of one space and seed.

    Attributes:
        seed: Of data, points and training.
        rungs: The steps at which the curves were measured.
        data: Digest of the training data.
        tau: The limit of M, in the unit that M had when they were trained.
        numbers: Of the curves, rising. A number gives a curve's point.
        curves: As numbered, each measured at all rungs.
    """

    seed: int
    rungs: tuple[int, ...]
    data: str
    tau: float
    numbers: tuple[int, ...]
    curves: tuple[tuple[Measured, ...], ...]


def point(space: Space, seed: int, number: int) -> Point:
    """The point of one curve."""
    return draw(space.dimensions, seed, number)


def digest(data: Data) -> str:
    """SHA-256 of all rows, in hexadecimal."""
    return hashlib.sha256(json.dumps(asdict(data)).encode()).hexdigest()


def same_data(cached: Cached, space: Space, docstrings: Sequence[str]) -> bool:
    """Whether these docstrings give the data that the curves were trained on."""
    return digest(build(space.sizes, cached.seed, docstrings)) == cached.data


def make(
    path: Path,
    space: Space,
    docstrings: Sequence[str],
    *,
    seed: int,
    count: int,
    say: Callable[[str], None],
) -> None:
    """Train curves 0 … ``count`` - 1 into a file. Those that it has already are kept.

    Raises:
        UsageError: The file is of another space, seed, count or version.
    """
    data = build(space.sizes, seed, docstrings)
    head = {
        "command": f"python -m benchmarks.search --train {count}",
        "seed": seed,
        "space": asdict(space),
        "rungs": space.rungs,
        "data_sha256": digest(data),
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
    with path.open("a", encoding="utf-8") as file:
        if not lines:
            print(text, file=file)
        for number in sorted(
            set(range(count)) - {json.loads(line)["number"] for line in lines[1:]}
        ):
            found = train(space, data, point(space, seed, number), seed)
            print(json.dumps({"number": number, **_columns(found)}), file=file, flush=True)
            say(f"curve {number} of {count}")


def read(path: Path = FILE) -> Cached:
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
        return Cached(
            head["seed"],
            tuple(head["rungs"]),
            head["data_sha256"],
            head["tau"],
            tuple(sorted(curves)),
            tuple(curves[number] for number in sorted(curves)),
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
