"""What all answers in JSON have in common, and all requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

Decimal = Annotated[str, BeforeValidator(str)]
"""A whole number of the store as a decimal string, since JSON readers may round large ones."""


class Answer(BaseModel):
    """The base of response models. Fields that are ``None`` are ``null``."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, from_attributes=True, frozen=True
    )


class Body(BaseModel):
    """The base of what a request says. A field that there is not is refused."""

    model_config = ConfigDict(extra="forbid")
