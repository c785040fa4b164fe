"""A model whose run left a corpus out when its credential expired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.governance.policy.credential import Period
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.gates import Gate
from tests.support.world import POLICY, World

DURING = "2026-11-10T08:30:00Z"


GATING = POLICY.replace("on_expiry: stop", "on_expiry: gate")


EXPIRED = Gate(step=3, corpus="acme", reason="expired", since=DURING, time="2026-11-10T08:30:02Z")


def deploy(world: World, folder: Path, *gates: Gate, text: str = GATING, **hooks: Any) -> Path:
    """A run under a policy that gates, whose credential of acme expires while it goes on."""
    short = Period(from_="2026-01-01T00:00:00Z", until=DURING)
    return world.deploy(
        folder,
        policy=read_policy(text).seal(world.keys.compliance),
        credentials={"acme": world.issue("acme", valid=short)},
        gates=gates,
        **hooks,
    )
