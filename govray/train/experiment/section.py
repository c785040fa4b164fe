"""What every section of a file that people write has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A closed, frozen part of a file that people write."""

    model_config = ConfigDict(frozen=True, extra="forbid")
