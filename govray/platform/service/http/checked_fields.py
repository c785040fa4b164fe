"""Fields that somebody typed into a form, checked as the body of a request is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from govray.platform.service.http.problems import not_valid

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """The request that ``fields`` make."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        what = str(first["msg"]).removeprefix("Value error, ")
        raise not_valid(where or "form", what, "Go back and mend it") from None
