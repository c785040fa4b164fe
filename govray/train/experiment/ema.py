"""The ``ema`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from govray.governance.formats.bounds import Positive
from govray.train.experiment.section import Section


class Ema(Section):
    """An exponential moving average of the base model's weights, kept beside them.

    Validation measures the weights, never the average.

    Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.999, description="share of the average that stays at each update"
    )
    every: Positive = Field(1, description="plan steps from one update to the next")
