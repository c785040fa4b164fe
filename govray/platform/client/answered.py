"""The base of what a service answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answered(BaseModel):
    """One answer, read-only. What a newer service says besides is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())
