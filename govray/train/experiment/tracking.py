"""The ``tracking`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from govray.train.experiment.section import Section


def _check_uri(value: str) -> str:
    if "@" in urlsplit(value).netloc:
        raise ValueError("leave the password out, MLflow reads it from the environment")
    return value


class MLflowTracking(Section):
    """Where MLflow keeps runs; passwords and tokens come from MLflow's own variables."""

    tracking_uri: Annotated[str, AfterValidator(_check_uri)] | None = Field(
        None, description="a server, or sqlite:///FILE; MLFLOW_TRACKING_URI by default"
    )
    experiment: str | None = Field(None, description="its name; the experiment's own by default")


class WandbTracking(Section):
    """Where Weights & Biases keeps runs; its key comes from WANDB_API_KEY."""

    project: str = Field(min_length=1, max_length=128, description="where the run is shown")
    entity: str | None = Field(None, description="a user or team; the key's own by default")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline only writes files, which `wandb sync` sends"
    )


class Tracking(Section):
    """Trackers that the driver tells of a run."""

    mlflow: MLflowTracking | None = Field(None, description="an MLflow server or store")
    wandb: WandbTracking | None = Field(None, description="Weights & Biases")

    @model_validator(mode="after")
    def _names_one(self) -> Tracking:
        if self.mlflow is None and self.wandb is None:
            raise ValueError("name mlflow, wandb, or both")
        return self
