"""``python -m benchmarks.research.thesis``: does depth routing reach memorization at less loss?

benchmarks/thesis.md has the question, the set-up and what came out. Each point of each arm
(`benchmarks.research.arms`) is trained with every seed, and measured by its canaries.

Every result is a file in ``--results``. A point that has its file is not run again, so a run can
be stopped, and gone on with in pieces: ``--arms``, ``--seeds``. The table is of what is there. A
change of a size or a point makes results anew; after a change of code take an empty folder.

A figure is the median over seeds, with the smallest and the largest. Seconds are of the CPU, on one
thread, without measuring. DP-SGD needs Opacus (the extra ``dev``); without it that arm is
left out, and counted missing. ``pareto.svg`` in the folder is the picture. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from benchmarks.command import names, positive, run
from benchmarks.intervals import spread
from benchmarks.machine import processor
from benchmarks.research.arms import ARMS, DEPTHS, MIDDLE, Task
from benchmarks.research.canaries import exposures, extracted, known, mean_loss
from benchmarks.research.domain import KINDS, Setting, Texts, build
from benchmarks.research.picture import picture
from benchmarks.research.texts import library
from govray.engine.model.layer_groups import layer_groups

SEEDS = (51, 52, 53, 54, 55)
QUICK = Setting(steps=8, rows=2, secrets=1, copies=2, kept=64, candidates=100, width=16, heads=2)
SIZES: Mapping[str, Setting] = {
    "default": Setting(),
    "quick": QUICK,
    "long": Setting(steps=1600),
    "large": Setting(steps=4000, rows=4, secrets=24, kept=512, candidates=512, blocks=8, width=128),
}
ONE_POINT = ("quick", "long")
"""Sizes at which an arm has its middle point alone."""
IDEAL = "retrained"
STARTS = (IDEAL, "plain")
"""Arms whose middle model others need."""
GOVERNED = ("upper", "adapter_kept", "adapter_removed", "gated", "early_shut")
BLUNT = ("plain", "deduplicated", "goldfish", "dp_sgd", "unlearnt", "scaled")
CONTRASTS: Mapping[str, tuple[str, str]] = {
    **{f"lower_layers {depth}": (f"lower {depth}", f"upper {depth}") for depth in DEPTHS},
    **{
        f"early_training {share}": (f"late_shut {share}", f"early_shut {share}") for share in DEPTHS
    },
    **{f"depth {depth}": (f"upper {depth}", "scaled 0.1") for depth in DEPTHS},
    **{f"copies {depth}": (f"upper {depth}", "deduplicated 0.4") for depth in DEPTHS},
}
"""Question → two points: what has the first more than the second?"""


@dataclass(frozen=True)
class Piece:
    """One training: an arm's point and a seed, and where its result is."""

    folder: Path
    setting: Setting
    arm: str
    point: Any
    seed: int

    @property
    def file(self) -> Path:
        """Its name has a digest of all that was written down about the piece."""
        said = json.dumps([asdict(self.setting), self.arm, self.point, self.seed])
        digest = hashlib.sha256(said.encode()).hexdigest()[:8]
        return self.folder / f"{self.arm}-{self.point}-{self.seed}-{digest}.json"

    @property
    def weights(self) -> Path:
        """Where a model lies that other arms need."""
        return self.file.with_suffix(".safetensors")

    def start(self, arm: str) -> Piece:
        """The piece of the same seed whose model this one needs."""
        return Piece(self.folder, self.setting, arm, ARMS[arm].points[MIDDLE], self.seed)

    def model(self, texts: Texts) -> nn.Module:
        """The model that lies there."""
        found = Task(self.setting, texts, self.seed).model()
        load_model(found, self.weights)
        return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.research.thesis", description=__doc__
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="default",
        help="quick: a tiny model; long: four times the steps; both with one point an arm; "
        "large: eight blocks of width 128, days of a core",
    )
    parser.add_argument("--seeds", type=positive, nargs="+", default=list(SEEDS))
    parser.add_argument("--arms", type=names(ARMS), default=[*ARMS], help="separated by commas")
    parser.add_argument("--results", type=Path, default=Path("build/thesis"), help="folder")
    parser.add_argument("--table", action="store_true", help="run nothing, show what is there")
    options = parser.parse_args(argv)
    setting, folder = SIZES[options.size], options.results / options.size
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print(
        f"{processor()}, torch {torch.__version__}, one thread; seeds {options.seeds}", flush=True
    )
    pieces = [
        Piece(folder, setting, arm, point, seed)
        for seed in options.seeds
        for arm, each in ARMS.items()
        for point in ([each.points[MIDDLE]] if options.size in ONE_POINT else each.points)
    ]
    texts = cache(lambda seed: build(setting, seed, *_library()))
    for piece in pieces:
        if piece.arm in options.arms and not options.table:
            fill(piece, texts)
    report = summary(pieces) | {"size": options.size, "seeds": options.seeds}
    (folder / "pareto.svg").write_text(picture(report["points"], (BLUNT, GOVERNED)))
    print(table(report))
    print(json.dumps(report))


@cache
def _library() -> tuple[list[str], dict[str, list[str]]]:
    return library()


def fill(piece: Piece, texts: Any) -> None:
    """Train and measure a piece, unless it has its file or can't be run here."""
    if piece.file.exists() or (piece.arm == "dp_sgd" and find_spec("opacus") is None):
        return
    own, begins = texts(piece.seed), piece.arm == "unlearnt"
    for needed in map(piece.start, STARTS if begins else (IDEAL,)):
        if needed != piece:
            fill(needed, texts)
    start = piece.start("plain").model(own) if begins else None
    trained = ARMS[piece.arm].train(Task(piece.setting, own, piece.seed, start), piece.point)
    if piece == piece.start(piece.arm) and piece.arm in STARTS:
        (model,) = trained.models.values()
        save_model(model, str(piece.weights))
    cost = asdict(trained.cost)
    if begins:
        before = json.loads(piece.start("plain").file.read_text())["cost"]
        cost = {name: value + before[name] for name, value in cost.items()}
    reference = piece.start(IDEAL).model(own)
    found = {
        "point": piece.point,
        "cost": cost,
        "notes": dict(trained.notes),
        "torch": torch.__version__,
        "processor": processor(),
        "measured": {
            name: measured(piece.setting, own, model, reference, piece.seed)
            for name, model in trained.models.items()
        },
    }
    written = piece.file.with_suffix(".part")
    written.write_text(json.dumps(found))
    os.replace(written, piece.file)
    print(f"{piece.file.stem}: {cost['seconds']:.1f} s of CPU", file=sys.stderr, flush=True)


def measured(
    setting: Setting, texts: Texts, model: nn.Module, reference: nn.Module, seed: int
) -> dict[str, Any]:
    """All figures of a model, its adapters merged.

    ``parts`` says where memorization sits. A part of the model takes the weights of ``reference``,
    which began with the same ones and never read the accounts. What this takes away of the digits'
    likelihood was held there, alone or with others. A part that breaks the model takes it away
    too, so the loss that is added stands beside it.
    """
    bits = {
        kind: mean(exposures(model, some, setting.candidates, seed))
        for kind, some in texts.accounts.items()
    }
    losses = {side: mean_loss(model, rows) for side, rows in texts.held_out.items()}
    planted = [account for kind in KINDS for account in texts.accounts[kind]]
    parts = {}
    for part, parameters in layer_groups(model).items():
        patched = copy.deepcopy(model)
        with torch.no_grad():
            for name in parameters:
                patched.get_parameter(name).copy_(reference.get_parameter(name))
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


def summary(pieces: Sequence[Piece]) -> dict[str, Any]:
    """All figures over the seeds that are there."""
    found: dict[str, list[dict[str, Any]]] = {}
    for piece in pieces:
        if piece.file.exists():
            result = json.loads(piece.file.read_text())
            for name, figures in result["measured"].items():
                line = found.setdefault(f"{name} {piece.point}", [])
                line.append({**figures, **result, "arm": name, "seed": piece.seed})
    points = {name: _point(results) for name, results in found.items()}
    governed, blunt = (
        [name for name, each in points.items() if each["arm"] in arms] for arms in (GOVERNED, BLUNT)
    )
    return {
        "points": points,
        "front": [
            name
            for name, each in points.items()
            if each["arm"] != IDEAL
            and not any(_beats(points[other], each) for other in governed + blunt)
        ],
        "beaten": {
            side: {name: [o for o in others if _beats(points[o], points[name])] for name in own}
            for side, own, others in (("blunt", blunt, governed), ("governed", governed, blunt))
        },
        "contrasts": {
            question: contrast(found.get(one, []), found.get(other, []))
            for question, (one, other) in CONTRASTS.items()
        },
        "missing": sum(not piece.file.exists() for piece in pieces),
    }


def _point(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figure → median and interval over seeds, nested as each result is."""
    figures = ("exposure", "extracted", "known", "loss", "kinds", "parts", "cost")
    over = {name: _over([each[name] for each in results]) for name in figures}
    notes = [each["notes"] for each in results if each["notes"]]
    return over | {"arm": results[0]["arm"], "seeds": len(results), "notes": notes}


def _over(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {key: _over([each[key] for each in values]) for key in values[0]}
    return spread(values)


def contrast(ones: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> Any:
    """What one point has more than another, seed by seed; None where no seed has both."""
    theirs = {each["seed"]: each for each in others}
    pairs = [(each, theirs[each["seed"]]) for each in ones if each["seed"] in theirs]
    if not pairs:
        return None
    return {
        "exposure": spread(one["exposure"] - other["exposure"] for one, other in pairs),
        "loss": spread(one["loss"]["domain"] - other["loss"]["domain"] for one, other in pairs),
    }


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    ours, theirs = ([each["exposure"][0], each["loss"]["domain"][0]] for each in (one, other))
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def table(report: Mapping[str, Any]) -> str:
    """Every point, where memorization sits, and the questions."""
    lines = [
        f"{'arm and point':<26}{'exposure, bits':>22}{'extracted':>11}{'domain loss':>24}"
        f"{'other loss':>12}{'TFLOP':>9}{'CPU s':>8}   known bits, and gone with each block"
    ]
    for name, each in report["points"].items():
        cost = each["cost"]
        held = [
            f"{found['taken'][0]:.1f}"
            for part, found in each["parts"].items()
            if part.startswith("block.")
        ]
        label = name + (" *" if name in report["front"] else "")
        lines.append(
            f"{label:<26}{_shown(each['exposure'], 1):>22}{each['extracted'][0]:>11.0%}"
            f"{_shown(each['loss']['domain'], 3):>24}{each['loss']['other'][0]:>12.3f}"
            f"{cost['flops'][0] / 1e12:>9.2f}{cost['seconds'][0]:>8.1f}"
            f"   {each['known'][0]:.1f}: {', '.join(held)}"
        )
    lines += ["* on the front: no other point has less exposure at no more loss of the domain", ""]
    for question, found in report["contrasts"].items():
        one, other = CONTRASTS[question]
        if found:
            lines.append(
                f"{question}: {one} less {other}: {_shown(found['exposure'], 1)} bits, "
                f"{_shown(found['loss'], 3)} nats"
            )
    for side, beaten in report["beaten"].items():
        count = sum(bool(by) for by in beaten.values())
        lines.append(f"{count} of {len(beaten)} {side} points are beaten by the other side")
    if report["missing"]:
        lines.append(f"{report['missing']} results are missing: run it again")
    return "\n".join(lines)


def _shown(found: Sequence[float], digits: int) -> str:
    middle, low, high = (f"{value:.{digits}f}" for value in found)
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(run(main))
