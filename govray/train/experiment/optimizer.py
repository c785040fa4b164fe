"""The ``optimizer`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from govray.engine.collective.step_settings import StepSettings
from govray.governance.formats.bounds import Natural
from govray.train.experiment.import_path import check_import_path, check_numbers
from govray.train.experiment.section import Section

ADAMW = "adamw"
"""The default optimizer's name: `torch.optim.AdamW`, with fields of its own."""

FLOOR = 0.1
"""Share of the learning rate that the default schedule's cosine ends at."""

_ADAMW_ONLY = ("weight_decay", "betas")


class Optimizer(Section):
    """What moves the weights.

    AdamW cancels a factor common to all gradients, so under it a policy's weights are relative.
    """

    name: Annotated[str, AfterValidator(lambda name: check_import_path(name, ADAMW))] = Field(
        ADAMW,
        description="adamw, or the import path of a torch optimizer, such as torch.optim.SGD",
    )
    lr: PositiveFloat = Field(3.0e-4, description="the learning rate that the schedule starts from")
    weight_decay: NonNegativeFloat = Field(0.1, description="adamw's; others take it in arguments")
    betas: tuple[float, float] = Field((0.9, 0.95), description="adamw's, as weight_decay")
    arguments: Annotated[dict[str, Any], AfterValidator(check_numbers)] = Field(
        default_factory=dict,
        description="what the optimizer's class takes besides the learning rate",
    )
    clip_norm: PositiveFloat | None = Field(
        StepSettings.clip_norm, description="largest gradient norm of a domain; null for no limit"
    )
    warmup_steps: Natural = Field(0, description="linear warm-up before the default cosine")

    @model_validator(mode="after")
    def _each_where_it_belongs(self) -> Optimizer:
        if self.name == ADAMW and self.arguments:
            raise ValueError(
                "arguments: adamw has fields of its own; write name: torch.optim.AdamW to give "
                "it arguments"
            )
        if "lr" in self.arguments:
            raise ValueError("arguments.lr: give it as lr, for the schedule moves it")
        given = [name for name in _ADAMW_ONLY if name in self.model_fields_set]
        if self.name != ADAMW and given:
            raise ValueError(f"{given[0]}: adamw's field, write it into arguments")
        return self

    @model_serializer(mode="wrap")
    def _without_others_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for name in ("arguments",) if self.name == ADAMW else _ADAMW_ONLY:
            written.pop(name, None)
        return written
