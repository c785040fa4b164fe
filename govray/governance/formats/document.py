"""The base of everything that is signed: closed, strict, frozen pydantic models.

snake_case in Python, lowerCamelCase in JSON. A field that is ``None`` is
absent from the JSON, and ``null`` is refused, so a value has one spelling. An
unknown field is an error, because a reader that skips a field it doesn't know
may skip a restriction.

A document has no signature and no digest of its own; `statement.py` gives it
both. Structure is checked here; meaning is checked by the modules that define
the documents.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from govray.errors import Malformed, suggestion

MAX_COUNT = 2**63 - 1
MAX_PROBLEMS = 10_000
"""Above this many problems of one document, none is explained: that would take a kilobyte each."""

_COUNT = re.compile(r"0|[1-9][0-9]{0,18}")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def parse_time(text: str) -> datetime:
    """Return the instant of a ``YYYY-MM-DDTHH:MM:SSZ`` text, aware and in UTC."""
    try:
        if not _TIMESTAMP.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text)
    except ValueError:
        raise Malformed(
            f"{text!r} is not a time", do="Write YYYY-MM-DDTHH:MM:SSZ, in UTC"
        ) from None


def format_time(instant: datetime) -> str:
    """Return ``instant`` as ``YYYY-MM-DDTHH:MM:SSZ``; fractions of a second are cut off.
    Raises ``Malformed``: ``instant`` has no time zone."""
    if instant.tzinfo is None:
        raise Malformed("a time without a time zone names no instant", do="Use an aware datetime")
    utc = instant.astimezone(UTC).replace(microsecond=0, tzinfo=None)
    return f"{utc.isoformat()}Z"


def _count_from_json(value: object, info: ValidationInfo) -> object:
    if info.mode != "json":
        return value
    if isinstance(value, str) and _COUNT.fullmatch(value):
        return int(value)
    raise ValueError("should be a count: a decimal string without sign or leading zeros")


def _check_timestamp(text: str) -> str:
    try:
        parse_time(text)
    except Malformed as error:
        raise ValueError(f"{error.what}; write YYYY-MM-DDTHH:MM:SSZ, in UTC") from None
    return text


Count = Annotated[
    int,
    Field(ge=0, le=MAX_COUNT),
    BeforeValidator(_count_from_json),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}),
]
"""An int in ``[0, 2^63)``; in JSON a decimal string, which no reader rounds."""

Timestamp = Annotated[
    str,
    AfterValidator(_check_timestamp),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": f"^{_TIMESTAMP.pattern}$"}),
]
"""``YYYY-MM-DDTHH:MM:SSZ``. The width is fixed, so text order is time order."""

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""``sha256:<64 lowercase hex>``."""

NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
"""A corpus, policy, authority, model or task: safe as a file name on every system."""


Where: TypeAlias = str | Callable[..., str]
"""What a document is called in errors, or a function from a field's path to its file and line."""


class Document(BaseModel):
    """A closed, frozen value. Subclasses add fields; sequences are tuples.

    A subclass that is signed sets ``PREDICATE_TYPE`` (an in-toto predicate type URI).
    """

    PREDICATE_TYPE: ClassVar[str]

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=True,  # Python code says snake_case; from_json turns this off
        validate_by_alias=True,
        hide_input_in_errors=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value: lowerCamelCase keys, absent where ``None``."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_json(cls, value: object, *, where: str | None = None) -> Self:
        """Return the document that a parsed JSON value states.

        Args:
            value: What `canonical_json.parse` returned.
            where: What the value is, for errors; the predicate's name by default.

        Raises:
            Malformed: The first problem, by field path: an unknown or missing
                field, a wrong type, ``null``, a value out of bounds.
        """
        return cls._read(value, where, by_alias=True)

    @classmethod
    def from_source(cls, value: object, *, where: Where | None = None) -> Self:
        """Return the document that a source for people (YAML) states: snake_case keys.

        Args:
            value: The parsed source, JSON types only.
            where: The file, for errors, or its `strict_yaml.Source.where`.

        Raises:
            Malformed: As `from_json`.
        """
        return cls._read(value, where, by_alias=False)

    @classmethod
    def from_text(cls, text: bytes, *, where: str | None = None) -> Self:
        """Return the document in JSON text that `canonical_json` and `check_no_null` have passed.

        The parsed value need not be there any more: beside the document it would take twice the
        room.

        Raises:
            Malformed: As `from_json`.
        """
        return cls._validate(text, where or cls.__name__, by_alias=True)

    @classmethod
    def _read(cls, value: object, where: Where | None, *, by_alias: bool) -> Self:
        where = where or cls.__name__
        check_no_null(value, where=where)
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise Malformed(f"not a JSON value: {error}", where=_place(where)) from None
        return cls._validate(text, where, by_alias=by_alias)

    @classmethod
    def _validate(cls, text: str | bytes, where: Where, *, by_alias: bool) -> Self:
        try:
            # JSON mode, where strict still reads lists as tuples and 1 as a float.
            return cls.model_validate_json(text, by_alias=by_alias, by_name=not by_alias)
        except ValidationError as error:
            raise _explain(cls, error, where, by_alias=by_alias) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise Malformed(f"not a JSON value: {error}", where=_place(where)) from None


def wrong_field(what: str, *path: str | int) -> PydanticCustomError:
    """What a check of a whole document raises of one of its parts, for the error to name it."""
    return PydanticCustomError("wrong_field", "{what}", {"what": what, "path": path})


def _place(where: Where, *path: str | int) -> str:
    return where if isinstance(where, str) else where(*path)


def check_no_null(value: object, *, where: Where) -> None:
    """Return if no ``None`` stands in a JSON value."""
    if _has_null(value):
        null = _null_path(value) or ()
        place = _place(where, *null)
        raise Malformed(
            f"field {_dotted(null)} is null", where=place, do="Give it a value, or leave it out"
        )


_SCALARS = frozenset({str, int, float, bool})


def _has_null(value: object) -> bool:
    """Whether a ``None`` stands in a JSON value: a walk without paths, which few values need."""
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if item is None:
            return True
        members: Iterable[object] = ()
        if isinstance(item, list | tuple):
            members = item
        elif isinstance(item, Mapping):
            members = item.values()
        pending.extend(member for member in members if member.__class__ not in _SCALARS)
    return False


def _null_path(value: object) -> tuple[str | int, ...] | None:
    """Where a ``None`` stands in a JSON value, if anywhere."""
    if value is None:
        return ()
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for step, item in items:
        if item is None or isinstance(item, Mapping | list | tuple):
            path = _null_path(item)
            if path is not None:
                return (step, *path)
    return None


def _explain(
    model: type[Document], error: ValidationError, where: Where, *, by_alias: bool
) -> Malformed:
    """One sentence about the first problem; a typo is reported before what it leaves missing."""
    if error.error_count() > MAX_PROBLEMS:
        return Malformed(
            f"{error.error_count()} fields or items are wrong",
            where=_place(where),
            do=f"Look whether this is a {model.__name__} at all",
        )
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda entry: entry["type"] != "extra_forbidden")
    # pydantic marks a wrong key of a mapping by a step of its own.
    steps = (*problem["loc"], *problem.get("ctx", {}).get("path", ()))
    path = tuple(step for step in steps if step != "[key]")
    place = _place(where, *path)
    if problem["type"] == "extra_forbidden":
        *parents, name = path
        near = suggestion(str(name), _field_names(model, parents, by_alias=by_alias))
        what = f"unknown field {_dotted(path)}{near}"
        return Malformed(what, where=place, do="Unknown fields are refused, not ignored")
    if problem["type"] == "missing":
        return Malformed(f"missing field {_dotted(path)}", where=place, do="Add the field")
    subject = f"field {_dotted(path)}" if path else "the document"
    what = f"{subject}: {_message(problem)}{value_suggestion(problem)}"
    return Malformed(what, where=place)


def value_suggestion(problem: ErrorDetails) -> str:
    """The `suggestion` for a value that is not among the words that a field takes, or nothing."""
    if problem["type"] != "literal_error":
        return ""
    return suggestion(str(problem["input"]), re.findall(r"'([^']*)'", problem["ctx"]["expected"]))


def _message(problem: ErrorDetails) -> str:
    if problem["type"] == "too_long":  # pydantic speaks of tuples, and of validation
        return "it has {actual_length} items, at most {max_length} are allowed".format_map(
            problem["ctx"]
        )
    # pydantic prefixes the text of our own validators.
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return f"'{text}'"


def _field_names(
    model: type[Document], parents: list[str | int], *, by_alias: bool
) -> tuple[str, ...]:
    """Names of the fields that the object at ``parents`` may have, or none if unclear."""
    annotation: Any = model
    for step in parents:
        annotation = _strip(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Document):
            fields = annotation.model_fields
            match = next((f for n, f in fields.items() if step in (n, f.alias)), None)
            annotation = match.annotation if match else None
        else:  # tuple[item, ...] or dict[str, item]
            items = [arg for arg in get_args(annotation) if arg is not Ellipsis]
            annotation = items[-1] if items else None
    annotation = _strip(annotation)
    if not (isinstance(annotation, type) and issubclass(annotation, Document)):
        return ()
    return tuple(
        (field.alias or name) if by_alias else name
        for name, field in annotation.model_fields.items()
    )


def _strip(annotation: Any) -> Any:
    """``X`` of ``Annotated[X, …]`` and of ``X | None``."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            members = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(members) != 1:
                return annotation
            annotation = members[0]
        else:
            return annotation
