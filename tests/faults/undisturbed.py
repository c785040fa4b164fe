"""Whether a run that met faults ended as if nothing had happened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import govray
from govray.errors import GovrayError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import Ledger, read_leaves
from govray.train.checkpoint import commit_folder
from govray.train.inputs.run_record import RECORD, SUMMARY, read_record
from govray.train.state.carried_governance import CARRIED
from tests.faults.fault_schedule import MAX_STEPS, WORLD

STATE = "state.json"
_COMMIT = re.compile(r"checkpoint_(\d{9})")


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run left."""

    commits: dict[int, dict[str, bytes]]
    ledger: bytes
    root: bytes

    @classmethod
    def of(cls, run: Path) -> Reference:
        """Read it from the run's folder; every commit must be there and whole."""
        commits = {step: _comparable(folder) for step, folder in _commits(run).items()}
        ledger = commits[MAX_STEPS]["ledger.jsonl"]
        return cls(commits, ledger, Ledger("", read_leaves(ledger)).root)


def check_recovered(run: Path, reference: Reference, trust_root: Path) -> None:
    """The run ended, and nothing tells it from the undisturbed one."""
    assert read_record(run).finished, "the run has no end"
    final = _comparable(_commits(run)[MAX_STEPS])
    _same(final, reference.commits[MAX_STEPS], "the last commit")
    _nothing_loads_and_is_wrong(run, reference)
    _every_row_once(final["ledger.jsonl"], read_record(run).plan)
    assert Ledger("", read_leaves(final["ledger.jsonl"])).root == reference.root
    model = run / "model"
    assert (model / "governance" / "ledger.jsonl").read_bytes() == reference.ledger
    assert (model / model_folder.WEIGHTS).read_bytes() == final[model_folder.WEIGHTS]
    govray.verify(model, trust_root=trust_root)


def _nothing_loads_and_is_wrong(run: Path, reference: Reference) -> None:
    """Every folder that a fault may have left: refused, or the undisturbed run's bytes."""
    for folder in run.glob("checkpoint_*"):
        if not folder.is_dir():
            continue
        try:
            loaded = _comparable(folder)
        except GovrayError:
            continue
        match = _COMMIT.fullmatch(folder.name)
        assert match, f"{folder.name} loads under a name that is no commit's"
        _same(loaded, reference.commits[int(match[1])], folder.name)


def _every_row_once(ledger: bytes, plan: BatchPlan) -> None:
    """The ledger's steps are the plan's, each once, with exactly the plan's positions and rows."""
    steps = Ledger("", read_leaves(ledger)).steps
    assert [leaf.step for leaf in steps] == list(range(plan.max_steps))
    used: set[tuple[str, int]] = set()
    for leaf in steps:
        assert leaf.branch == 0
        assert leaf.world_size == WORLD
        rows: dict[str, int] = {}
        for stream, planned in plan.rows(leaf.step).items():
            for position, corpus, _ in planned:
                assert (stream, position) not in used
                used.add((stream, position))
                rows[corpus] = rows.get(corpus, 0) + 1
        assert {name: use.rows for name, use in leaf.corpora.items()} == rows
        assert leaf.streams == {
            stream: (span.start, span.stop) for stream, span in plan.positions(leaf.step).items()
        }


def _commits(run: Path) -> dict[int, Path]:
    return {
        int(match[1]): folder
        for folder in run.glob("checkpoint_*")
        if (match := _COMMIT.fullmatch(folder.name))
    }


def _comparable(folder: Path) -> dict[str, bytes]:
    """A commit's files by name, checked; its state without the run's name, start and retention."""
    files = dict(commit_folder.load(folder).files)
    state: Any = canonical_json.parse_canonical(files[STATE])
    for own in ("run", "keep"):
        del state[own]
    del state[CARRIED][f"{RECORD}/{SUMMARY}"]
    return files | {STATE: canonical_json.encode(state)}


def _same(found: dict[str, bytes], expected: dict[str, bytes], what: str) -> None:
    assert found.keys() == expected.keys(), f"{what}: other files"
    differing = [name for name in expected if found[name] != expected[name]]
    assert not differing, f"{what}: {', '.join(differing)} differ from the undisturbed run's"
