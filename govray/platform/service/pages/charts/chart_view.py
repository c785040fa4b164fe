"""How charts are looked at: the range of steps, smoothing and scale that an address asks for.

The fields of the form beside the charts. The server reads the range, so that a part is drawn from
all of its own numbers. The browser smooths, and draws a range at once from what the page has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

_STEP = "^[0-9]{0,9}$"
_WEIGHT = r"^(0(\.[0-9]{1,4})?)?$"


@dataclass(frozen=True)
class ChartView:
    """Both steps are included; None: from the first, or up to the last. ``smooth`` is in [0, 1)."""

    first: int | None = None
    last: int | None = None
    smooth: float = 0.0
    log: bool = False

    @property
    def part(self) -> bool:
        """Whether the page has the numbers of a range only."""
        return self.first is not None or self.last is not None


def _view(
    first: Annotated[
        str, Query(alias="from", pattern=_STEP, description="The first step that is drawn.")
    ] = "",
    last: Annotated[
        str, Query(alias="to", pattern=_STEP, description="The last step that is drawn.")
    ] = "",
    smooth: Annotated[
        str, Query(pattern=_WEIGHT, description="Weight of the moving average, below 1.")
    ] = "",
    log: Annotated[
        str, Query(pattern="^1?$", description="`1` for a logarithmic vertical axis.")
    ] = "",
) -> ChartView:
    ends = [int(each) if each else None for each in (first, last)]
    if None not in ends:
        ends.sort(key=lambda each: each or 0)
    return ChartView(ends[0], ends[1], float(smooth or 0), bool(log))


ViewDep = Annotated[ChartView, Depends(_view)]
