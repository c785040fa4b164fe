"""The ``validation`` section of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, model_validator

from govray.errors import suggestion
from govray.governance.formats.bounds import Positive
from govray.train.experiment.places import PlaceText
from govray.train.experiment.section import Section

Goal = Literal["min", "max"]

MEASURED: dict[str, Goal] = {"loss": "min", "perplexity": "min", "accuracy": "max"}
"""What validation data are measured by, and which way is better."""

GROUP = "validation"
"""What stands before the slash in the names of these metrics."""


class EarlyStopping(Section):
    """When a run ends before ``max_steps``."""

    patience: Positive = Field(
        description="validations in a row that are no better than the best before"
    )
    min_delta: NonNegativeFloat = Field(0.0, description="what a better one is better by, at least")


class Validation(Section):
    """What a run is judged by: "best" commits and early stopping go by it."""

    corpora: PlaceText | None = Field(
        None,
        description="folder of corpora, each with its signed credential, that no step trains on; "
        "without it the training loop reports the metric itself",
    )
    every_steps: Positive = Field(
        description="steps from one validation to the next; the last step is always validated"
    )
    rows: Positive = Field(
        1024, description="rows measured each time, at most; the same ones each time"
    )
    metric: str = Field(
        "loss",
        pattern=r"^[\w.-]+(/[\w.-]+)*$",
        max_length=128,
        description="loss, perplexity or accuracy of the corpora, or what the training loop "
        "reports under this name",
    )
    goal: Goal | None = Field(
        None, description="which way is better; known of loss, perplexity and accuracy"
    )
    early_stopping: EarlyStopping | None = None

    @property
    def metric_name(self) -> str:
        """The name that the metric is reported under."""
        if self.corpora is None or "/" in self.metric:
            return self.metric
        return f"{GROUP}/{self.metric}"

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics of the validation data, as they are reported."""
        return tuple(f"{GROUP}/{name}" for name in MEASURED) if self.corpora else ()

    @property
    def better(self) -> Goal:
        """Which way is better."""
        return self.goal or MEASURED[self.metric.rpartition("/")[2]]

    @model_validator(mode="after")
    def _has_a_goal(self) -> Validation:
        name = self.metric.rpartition("/")[2]
        if self.goal is None and name not in MEASURED:
            raise ValueError(
                f"goal: say min or max, for {name!r} is not one of {', '.join(MEASURED)}"
                f"{suggestion(name, list(MEASURED))}"
            )
        return self
