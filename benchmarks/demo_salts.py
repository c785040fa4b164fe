"""``python -m benchmarks.demo_salts``: what the demo's monitor says under other reserves.

The demo's data is built once. Each run draws a salt of its own, so other pages and records are held
back, and trains as `govray demo` does. The list that is planted to be learnt by heart has to be
gated in each, and nothing else flagged.

Prints a line a run and, as its last line, one JSON object. ``runs`` counts them, ``caught`` those
that gated the list. ``steps`` has the step of each run's gate, ``false_flags`` each run's others.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command import positive, run
from govray.demo import parts_list
from govray.demo.deployment import deploy
from govray.demo.run import WORKERS, experiment_of
from govray.train.driver.ray_cluster import ray_running
from govray.train.driver.trainer import from_experiment
from govray.train.run_folder import events


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks.demo_salts", description=__doc__)
    parser.add_argument("--salts", type=positive, default=20, help="runs, each with its own")
    parser.add_argument("--steps", type=positive, default=250, help="of each run; the demo's")
    options = parser.parse_args(argv)
    found: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="govray-salts-") as name, ray_running(WORKERS):
        scratch = Path(name)
        at = datetime.now(UTC).replace(microsecond=0)
        deployment = deploy(scratch / "demo", scratch / "keys", at=at)
        experiment = experiment_of(scratch, deployment, options.steps)
        for number in range(options.salts):
            # A storage of its own, for prepared data is used again with its salt.
            storage = {"storage_path": str(scratch / f"runs-{number}")}
            result = from_experiment(experiment.model_copy(update=storage)).fit()
            found.append(flagged(Path(result.path)))
            print(f"salt {number + 1}: {found[-1] or 'nothing flagged'}", flush=True)
    steps = [each.get(parts_list.CORPUS) for each in found]
    others = [sorted(each.keys() - {parts_list.CORPUS}) for each in found]
    told = {
        "runs": len(found),
        "caught": sum(step is not None for step in steps),
        "steps": steps,
        "false_flags": others,
    }
    print(json.dumps(told))


def flagged(folder: Path) -> dict[str, int]:
    """Corpus → the first step after which its flag holds, in a run's folder."""
    found: dict[str, int] = {}
    for event in events.read(folder):
        if isinstance(event, events.Memorized):
            found.setdefault(event.decision.corpus, event.decision.step + 1)
    return found


if __name__ == "__main__":
    sys.exit(run(main))
