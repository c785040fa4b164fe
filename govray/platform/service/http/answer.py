"""What every JSON answer has in common: lowerCamelCase, read from rows, described by examples."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

Decimal = Annotated[str, BeforeValidator(str)]
"""A whole number of the store as a decimal string, since JSON readers may round large ones."""


class Answer(BaseModel):
    """The base of response models. Fields that are ``None`` are ``null``."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, from_attributes=True, frozen=True
    )


def example(**fields: Any) -> Any:
    """The `ConfigDict` of a model that the description shows with these values. Not by its type: a
    model with a table's columns has SQLModel's, which is another to mypy."""
    return ConfigDict(json_schema_extra={"examples": [fields]})
