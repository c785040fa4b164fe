"""The shipped promotion gates without the one that asks for a monitor: most worlds have none."""

from __future__ import annotations

from tests.support.tree import ROOT

SHIPPED = (ROOT / "policies" / "promotion.yaml").read_text()
UNMONITORED = "".join(
    line for line in SHIPPED.splitlines(keepends=True) if "- no_open_memorization_flag" not in line
)
