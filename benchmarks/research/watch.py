"""The product's monitor over a run of a study, at the operating point that is shipped.

The section is that of `policies/licences.yaml`. Its cadence, rows, odds and level are taken as they
stand; only its actions are not. So a flag is an event, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from benchmarks.research.canaries import Row, batch
from govray.engine.collective.agreement import Agreement, Terms
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.memorization.probe_sharing import Probe, pick
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import loss
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.incidents import LEAST_ROWS

POLICY = Path(__file__).parents[2] / "policies" / "licences.yaml"
_DIGEST = "sha256:" + "0" * 64

Numbered = tuple[int, tuple[Row, ...]]
"""A record and its rows."""


def shipped() -> Monitoring:
    """The section of the shipped policy.

    Raises:
        UsageError: The policy has none.
    """
    section = read_policy(POLICY.read_bytes(), name=POLICY.name).memorization
    if section is None:
        raise UsageError("the shipped policy has no memorization section", where=str(POLICY))
    return section


def every_step() -> Monitoring:
    """The same with a profile at every step, of every corpus."""
    return shipped().model_copy(update={"every": 1, "turns": 1, "rules": None})


def monitor_of(model: nn.Module, seed: int) -> Monitor:
    """The monitor of a model without adapters, in this process alone."""
    agreement = Agreement(Terms(policy_digest=_DIGEST, plan_digest=_DIGEST, corpora=()))
    adapters = Adapters(model, {}, seed=seed)
    return Monitor(model, adapters, agreement, logits=logits_in(loss), seed=seed)


def newest(rows: Sequence[Numbered], count: int) -> list[Numbered]:
    """The first records of these, each once: of rows read so far, give the newest first."""
    found: dict[int, tuple[Row, ...]] = {}
    for number, own in rows:
        if len(found) == count:
            break
        found.setdefault(number, own)
    return [*found.items()]


def probe(
    name: str, step: int, rows: int, ours: Sequence[Numbered], held: Sequence[Numbered]
) -> Probe | None:
    """Records that were read beside records of the reserve; None with too few to decide.

    Args:
        name: Of the corpus.
        step: After which the profile is made; it draws the reserve's records.
        rows: Of each side.
        ours: Records that were read.
        held: The reserve.
    """
    if len(ours) < LEAST_ROWS:
        return None
    theirs = [held[place] for place in pick(len(held), rows, name, step, "reserve")]
    each = 2 * rows // (len(ours) + len(theirs))
    own = [(f"read {number}", row) for number, record in ours for row in record[:each]]
    other = [(f"reserve {number}", row) for number, record in theirs for row in record[:each]]
    return Probe(
        corpus=name,
        adapter=None,
        probe_units=tuple(unit for unit, _ in own),
        reserve_units=tuple(unit for unit, _ in other),
        tensors=batch([row for _, row in (*own, *other)]),
    )
