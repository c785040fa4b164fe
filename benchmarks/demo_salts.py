"""``python -m benchmarks.demo_salts``: what the demo's monitor says under other reserves.

The demo's data is built once. Each run draws a salt of its own, so other pages and records are held
back, and trains as `govray demo` does. The demo measures the planted list alone; here every corpus
is measured, at the same steps, by the same odds.

Two rules are asked of the same profiles. The demo's own tests the list alone, so ``alone`` tests
each corpus so, and the list has to be gated. The other tests all of them together, as a run under
this policy does: more evidence is asked of each then.

Prints a line a run and, as its last line, one JSON object. ``runs`` counts them, ``caught`` those
that the demo's rule gates the list in. ``steps`` has the step of each of these gates, and
``steps_together`` that of the rule over all. ``flagged_alone`` and ``flagged_together`` name the
other corpora. ``measurable`` is how many corpora each run measured and could have flagged.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command import positive, run
from govray.cli.demo import WORKERS
from govray.cli.demo.command import STEPS
from govray.cli.demo.deployment import PARTS_LIST, deploy, own_policy
from govray.cli.demo.run import experiment_of
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record import e_process
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
from govray.governance.record.incidents import Incidents, flaggable
from govray.storage.place import place
from govray.train.driver.ray_cluster import ray_running
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.recorded_inputs import recorded_inputs
from govray.train.inputs.run_record import read_record
from govray.train.run_folder import events
from govray.train.run_folder.ledger_wal import recorded_leaves

_RULES = re.compile(r"^  rules: .*\n", re.M)


@dataclass(frozen=True)
class Salted:
    """What one run said.

    Attributes:
        together: Corpus → the first step after which its flag holds, as the run decided.
        alone: The same, were each corpus tested by itself.
        measurable: Corpora that were measured and could have been flagged.
    """

    together: dict[str, int]
    alone: dict[str, int]
    measurable: frozenset[str]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks.demo_salts", description=__doc__)
    parser.add_argument("--salts", type=positive, default=20, help="runs, each with its own")
    parser.add_argument("--steps", type=positive, default=STEPS, help="of each run; the demo's")
    options = parser.parse_args(argv)
    found: list[Salted] = []
    with tempfile.TemporaryDirectory(prefix="govray-salts-") as name, ray_running(WORKERS):
        scratch = Path(name)
        at = datetime.now(UTC).replace(microsecond=0)
        source = watching_all(own_policy())
        deployment = deploy(scratch / "demo", scratch / "keys", at=at, policy_source=source)
        experiment = experiment_of(scratch, deployment, options.steps)
        for number in range(options.salts):
            # A storage of its own, for prepared data is used again with its salt.
            storage = {"storage_path": str(scratch / f"runs-{number}")}
            result = from_experiment(experiment.model_copy(update=storage)).fit()
            found.append(salted(Path(result.path)))
            print(
                f"salt {number + 1}: alone {found[-1].alone}, together {found[-1].together}, "
                f"{len(found[-1].measurable)} measurable",
                flush=True,
            )
    steps = [each.alone.get(PARTS_LIST) for each in found]
    told = {
        "runs": len(found),
        "caught": sum(step is not None for step in steps),
        "steps": steps,
        "flagged_alone": [sorted(each.alone.keys() - {PARTS_LIST}) for each in found],
        "steps_together": [each.together.get(PARTS_LIST) for each in found],
        "flagged_together": [sorted(each.together.keys() - {PARTS_LIST}) for each in found],
        "measurable": [len(each.measurable) for each in found],
    }
    print(json.dumps(told))


def watching_all(source: str) -> str:
    """The demo's policy, but that its monitor measures every corpus.

    Raises:
        UsageError: It names no rules to measure.
    """
    everywhere, found = _RULES.subn("", source)
    if found != 1:
        raise UsageError(f"the policy's monitor names rules {found} times, not once")
    return everywhere


def salted(folder: Path) -> Salted:
    """What a run's folder says."""
    inputs = recorded_inputs(place(folder), read_record(folder))
    section, manifest = inputs.policy.document.memorization, inputs.manifest.document
    profiles = [leaf for leaf in recorded_leaves(place(folder)) if isinstance(leaf, EntropyProfile)]
    assert section is not None
    measurable = frozenset(
        corpus
        for corpus in {name for profile in profiles for name in profile.corpora}
        if flaggable(section, corpus, manifest)
    )
    found = {
        c: flagged_alone(section, c, profiles, inputs.record.plan.max_steps) for c in measurable
    }
    return Salted(
        together=flagged(folder),
        alone={corpus: step for corpus, step in sorted(found.items()) if step is not None},
        measurable=measurable,
    )


def flagged_alone(
    section: Monitoring, corpus: str, profiles: Sequence[EntropyProfile], steps: int
) -> int | None:
    """The first step after which a corpus is flagged, were it alone in its domain."""
    count = e_process.profiles_of(section, corpus, steps)
    told = Incidents(section, {corpus: MonitoredCorpus("alone", "flag", profiles=count)})
    for profile in profiles:
        for decision in told.take(profile):
            return decision.step + 1
    return None


def flagged(folder: Path) -> dict[str, int]:
    """Corpus → the first step after which its flag holds, in a run's folder."""
    found: dict[str, int] = {}
    for event in events.read(folder):
        if isinstance(event, events.Memorized):
            found.setdefault(event.decision.corpus, event.decision.step + 1)
    return found


if __name__ == "__main__":
    sys.exit(run(main))
