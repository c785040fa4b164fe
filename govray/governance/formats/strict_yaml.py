"""Strict YAML for the files that people write: policies and experiments.

YAML has surprises that a governance source cannot afford. This reads a subset in which a file means
what it looks like. There are no duplicate keys, anchors, aliases or tags, and no scalar gets a type
by accident. ``NO`` is Norway, not false, and ``2026-11-01`` stays text. Only ``true``/``false``,
``null`` and decimal numbers are more than text: the YAML 1.2 core schema without octal and
hexadecimal.

The result is a JSON value that remembers on which line each part began, so that an
error about a part can name it.

Not done here: any schema.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import pydantic
import yaml

from govray.errors import Malformed, UsageError
from govray.governance.formats.canonical_json import JSON
from govray.governance.formats.field_errors import field_errors

Path: TypeAlias = tuple[str | int, ...]

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_PLAIN: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("null", re.compile(r"~|null|Null|NULL|"), "~nN"),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9]{0,15})"), "-+0123456789"),
    (
        "float",
        re.compile(r"[-+]?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,16})?(?:[eE][-+]?[0-9]{1,3})?"),
        "-+0123456789",
    ),
)


@dataclass(frozen=True)
class Source:
    """A parsed file."""

    value: JSON
    name: str
    _lines: dict[Path, int] = field(repr=False)

    def where(self, *path: str | int) -> str:
        """``name:line`` of the part at ``path``, or of the nearest part around it.
        Of the whole file it is the name alone: its first line would mislead."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self.name}:{self._lines[path]}" if path else self.name

    def wrong(self, error: pydantic.ValidationError, *, do: str) -> UsageError:
        """The first field that a model refuses, with its line."""
        first = field_errors(error)[0]
        # Which of two types was tried is no part of the file.
        path = tuple(step for step in first.path if step not in ("int", "constrained-int"))
        what, name = first.what[:1].lower() + first.what[1:], ".".join(map(str, path))
        return UsageError(
            f"field '{name}': {what}" if name else what, where=self.where(*path), do=do
        )


def read_yaml(text: str | bytes, *, name: str) -> Source:
    """Parse one YAML document."""
    if len(text) > MAX_BYTES:
        raise Malformed(f"larger than {MAX_BYTES} bytes", where=name)
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        root = _Composer(text).get_single_node()
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 at byte {error.start}", where=name) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise Malformed(error.problem or "not YAML", where=where) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise Malformed(f"not YAML: {' '.join(str(error).split())}", where=name) from None
    if root is None:
        raise Malformed("the file is empty", where=name)
    lines: dict[Path, int] = {}
    return Source(_value(root, (), lines, name), name, lines)


def read_yaml_file(path: pathlib.Path, *, do: str) -> Source:
    """Parse a file of settings that somebody named, and no more of it than counts."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the file cannot be read ({error.strerror})", where=str(path), do=do
        ) from None
    return read_yaml(data, name=str(path))


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without anchors, aliases and tags: a short text has a small value."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not accepted; write the value out",
                problem_mark=event.start_mark,
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise yaml.MarkedYAMLError(
                problem=f"the tag {tag} is not accepted", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)


class _Composer(PlainLoader):
    """The composer only: nodes with marks, no construction of objects."""

    # Our own table, so that the YAML 1.1 resolvers of the base class do not apply.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]


for _kind, _pattern, _first in _PLAIN:
    # An empty scalar has no first character; the resolver files it under "".
    _Composer.add_implicit_resolver(
        _TAG + _kind,
        re.compile(rf"(?:{_pattern.pattern})\Z"),
        [*_first, ""] if _kind == "null" else [*_first],
    )


def _value(node: yaml.Node, path: Path, lines: dict[Path, int], name: str) -> JSON:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(path) > MAX_DEPTH:
        raise Malformed(f"nested deeper than {MAX_DEPTH}", where=f"{name}:{line}")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, f"{name}:{line}")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), lines, name) for i, item in enumerate(node.value)]
    members: dict[str, JSON] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _key(key_node, f"{name}:{line}")
        if key in members:
            raise Malformed(f"the key {key!r} stands twice", where=f"{name}:{line}")
        lines[*path, key] = line
        members[key] = _value(value_node, (*path, key), lines, name)
    return members


def _key(node: yaml.Node, where: str) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    raise Malformed("a key is not text", where=where)


def _scalar(node: yaml.ScalarNode, where: str) -> JSON:
    text = str(node.value)
    match node.tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text)
        case "float":
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise Malformed(f"{text} is too large a number", where=where)
            return number
        case _:
            return text
