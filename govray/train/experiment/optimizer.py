"""The ``optimizer`` section of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from govray.engine.collective.step_settings import StepSettings
from govray.governance.formats.bounds import Natural
from govray.train.experiment.section import Section


class Optimizer(Section):
    """AdamW. It cancels a common factor, so a policy's weights are relative."""

    name: Literal["adamw"] = "adamw"
    lr: PositiveFloat = 3.0e-4
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: PositiveFloat | None = StepSettings.clip_norm
    warmup_steps: Natural = 0
