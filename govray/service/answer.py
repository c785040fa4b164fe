"""What every JSON answer has in common: lowerCamelCase, read from rows, described by examples."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Answer(BaseModel):
    """The base of response models. Fields that are ``None`` are ``null``."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, from_attributes=True, frozen=True
    )
