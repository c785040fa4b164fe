"""The ``schedule`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from govray.governance.formats.bounds import Positive
from govray.train.experiment.import_path import check_import_path, check_numbers
from govray.train.experiment.section import Section

COSINE = "cosine"
"""The default schedule's name: linear warm-up, then a cosine to a tenth at the last step."""


class Schedule(Section):
    """How the learning rate moves: a function of the plan step alone.

    So a corpus that is left out changes no other update.
    """

    name: Annotated[str, AfterValidator(lambda name: check_import_path(name, COSINE))] = Field(
        COSINE,
        description="cosine, or the import path of a torch scheduler, such as "
        "torch.optim.lr_scheduler.LinearLR; one that follows a metric is refused",
    )
    arguments: Annotated[dict[str, Any], AfterValidator(check_numbers)] = Field(
        default_factory=dict, description="what the scheduler's class takes besides the optimizer"
    )
    steps: Positive | None = Field(None, description="how long it lasts, before the one in then")
    then: Schedule | None = Field(None, description="the schedule that follows after steps")

    @model_validator(mode="after")
    def _follow_each_other(self) -> Schedule:
        if self.name == COSINE and (self.arguments or self.steps or self.then):
            raise ValueError(
                "cosine stands alone: its warm-up is optimizer.warmup_steps, its length max_steps"
            )
        if self.then and self.then.name == COSINE:
            raise ValueError(
                "then: cosine stands alone; write torch.optim.lr_scheduler.CosineAnnealingLR"
            )
        if (self.steps is None) != (self.then is None):
            raise ValueError("give steps and then together, or neither")
        return self

    @property
    def parts(self) -> tuple[Schedule, ...]:
        """This schedule and those that follow it, in order."""
        return (self, *(self.then.parts if self.then else ()))
