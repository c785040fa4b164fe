"""The ``checkpoint`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from govray.governance.formats.bounds import Natural, Positive
from govray.storage.storage_url import check_url
from govray.train.experiment.section import Section


class CheckpointEvery(Section):
    """How often weights and governance state are committed together."""

    every_steps: Positive = 100
    save_trial_best: Natural = Field(
        1, description="commits that stay for their loss, the lowest first"
    )
    save_trial_latest: Positive = Field(1, description="newest commits that stay")
    storage: Annotated[str, AfterValidator(check_url)] | None = Field(
        None,
        description="an object store's URL for the commits, such as s3://bucket/prefix; the run's "
        "folder by default",
    )
