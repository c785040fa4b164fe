"""Worlds in which a corpus's rows take several routes: a phase begins, or a gate falls."""

from __future__ import annotations

from pathlib import Path

from govray.governance.policy.policy_yaml import read_policy
from tests.support.monitored_world import SECTION, Monitored, from_step
from tests.support.world import POLICY, World

UPPER = '{layers: {"blocks[0.5:]": 1, final_norm: 0.3, head: 1}}'
PHASED = POLICY.replace(UPPER, f"{UPPER[:-1]}, phases: [{{from_step: 4, layers: {{all: 0.5}}}}]}}")
NARROW = """  narrow: {layers: {"blocks[0.5:]": 0.5, head: 1}, adapter: "{corpus}", rank: 2}
rules:
"""


def phased(folder: Path) -> tuple[World, Path]:
    """A model whose corpus gamma reaches all layers from step 4 on."""
    world = World(corpora={"acme": (30,), "alpha": (30,), "gamma": (30,)}, steps=12)
    world.policy_text = PHASED
    world.policy = read_policy(PHASED).seal(world.keys.compliance)
    return world, world.deploy(folder)


def rerouted(folder: Path) -> tuple[World, Path]:
    """A model whose corpus alpha was sent to a narrower profile with an adapter."""
    text = POLICY.replace("rules:\n", NARROW) + SECTION.replace("nothing}", "narrow}")
    world = Monitored(deviations=from_step("alpha", 6)).under(text)
    return world, world.run(folder)
