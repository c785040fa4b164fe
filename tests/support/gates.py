"""The shipped promotion gates without the one that asks for a monitor: most worlds have none."""

from __future__ import annotations

from pathlib import Path

from govray.platform.store.promotion_gates import read_promotion_policy
from tests.support.tree import ROOT
from tests.support.world import World

SHIPPED = (ROOT / "policies" / "promotion.yaml").read_text()
UNMONITORED = "".join(
    line for line in SHIPPED.splitlines(keepends=True) if "- no_open_memorization_flag" not in line
)


def signed(world: World, text: str = UNMONITORED) -> bytes:
    """The envelope of gates, by the authority for policies."""
    return read_promotion_policy(text).seal(world.keys.compliance)


def gated(world: World, folder: Path, text: str = UNMONITORED) -> dict[str, Path]:
    """A service's settings, with gates and the root that carries them in ``folder``."""
    gates, root = folder / "gates.dsse.json", folder / "gates-root.json"
    gates.write_bytes(signed(world, text))
    root.write_bytes(world.root)
    return {"promotion": gates, "trust_root": root}
