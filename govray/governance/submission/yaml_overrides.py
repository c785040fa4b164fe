"""Overrides of an experiment file: ``--set path=value``, defaults below it, and its new text.

A value means what it would mean in the file, which is read as `yaml.safe_load` reads it. Only
anchors, aliases and tags are refused, so that a short text cannot have an enormous value.

``optimizer.lr=1e-3`` changes what the file has. ``+seed=17`` adds what it has not. A name with dots
in it stands in quotes: ``search.space."optimizer.lr"={log: [1e-4, 1e-2]}``. A list's items have the
numbers 0, 1, 2 …. What the file does not have and the override does not add is a mistake, and is
refused with the nearest name.

Not done here: any schema. The text's user validates it.

Source: the signs are those of Hydra's override grammar (hydra.cc, "Basic Override syntax").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from govray.errors import UsageError, suggestion
from govray.governance.formats.strict_yaml import MAX_DEPTH, PlainLoader

LONGEST_TEXT = 1 << 18
"""Characters of a file."""
LONGEST_OVERRIDE = 1 << 12
MOST_OVERRIDES = 256

Value: TypeAlias = dict[str, Any]

_STEP = r'(?:"(?P<quoted>[^"\n]{1,200})"|(?P<plain>[^.="\s]{1,200}))'
_STEPS = re.compile(rf"{_STEP}(?P<end>\.(?!\Z)|\Z)")
_PATH = re.compile(r'(?P<add>\+?)(?P<path>(?:"[^"\n]*"|[^="\n])+)=(?P<value>.*)', re.DOTALL)
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")


@dataclass(frozen=True)
class Override:
    """One value in another's place. ``adds``: where there was none, too."""

    path: tuple[str, ...]
    value: Any
    adds: bool = False

    @property
    def name(self) -> str:
        """The path as it is written."""
        return ".".join(f'"{each}"' if "." in each else each for each in self.path)


def read_mapping(text: str, *, name: str) -> Value:
    """The mapping that a file's ``text`` holds."""
    if len(text) > LONGEST_TEXT:
        raise UsageError(f"longer than {LONGEST_TEXT} characters", where=name)
    value = _load(text, name)
    if not isinstance(value, dict):
        raise UsageError("an experiment is a mapping", where=name, do="See jobs/train.yaml")
    return value


def written(value: Mapping[str, Any]) -> str:
    """The text of a file that holds ``value``, in its order."""
    text: str = yaml.dump(
        dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def parse_override(text: str) -> Override:
    """The override that ``path=value`` says.
    Raises ``UsageError``: it says nothing. The value is not repeated, since it may be a secret."""
    found = _PATH.fullmatch(text)
    if len(text) > LONGEST_OVERRIDE or found is None:
        raise UsageError(
            f"{text.partition('=')[0][:80]!r} is no override",
            where="set",
            do="Say PATH=VALUE, such as optimizer.lr=0.001",
        )
    path, position = [], 0
    named = found["path"]
    while position < len(named):
        step = _STEPS.match(named, position)
        if step is None:
            raise UsageError(
                f"{named[:80]!r} is no path",
                where="set",
                do='Write names with dots between them; a name with a dot in it stands in "…"',
            )
        path.append(step["quoted"] or step["plain"])
        position = step.end()
    if len(path) > MAX_DEPTH:
        raise UsageError(f"deeper than {MAX_DEPTH}", where=f"set {named[:80]}")
    return Override(tuple(path), _load(found["value"], f"set {named[:80]}"), bool(found["add"]))


def overridden(value: Mapping[str, Any], overrides: Iterable[Override | str]) -> Value:
    """``value`` with the overrides, each after the one before it. ``value`` stays as it is."""
    changed = deepcopy(dict(value))
    for count, each in enumerate(overrides):
        if count == MOST_OVERRIDES:
            raise UsageError(f"more than {MOST_OVERRIDES} overrides", where="set")
        _put(changed, parse_override(each) if isinstance(each, str) else each)
    return changed


def overridden_text(text: str, overrides: Iterable[str], *, name: str) -> str:
    """A file's text with the overrides: the same bytes without any."""
    given = tuple(overrides)
    value = read_mapping(text, name=name)
    return written(overridden(value, given)) if given else text


def below(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> Value:
    """``value``, and of ``defaults`` what it does not have, mapping by mapping.
    A list is one value: it is taken whole or not at all."""
    merged = deepcopy(dict(value))
    for key, default in defaults.items():
        if key not in merged:
            merged[key] = deepcopy(default)
        elif isinstance(merged[key], dict) and isinstance(default, dict):
            merged[key] = below(merged[key], default)
    return merged


def leaves(value: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[Override]:
    """What ``value`` says, one override for each thing that is no mapping, or an empty one."""
    found: list[Override] = []
    for key, each in value.items():
        path = (*above, str(key))
        if isinstance(each, dict) and each:
            found += leaves(each, path)
        else:
            found.append(Override(path, each, adds=True))
    return found


class _Loader(PlainLoader):
    """As `yaml.safe_load`, but a key that stands twice is refused: which one counts?"""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value[:80]!r} stands twice",
                        problem_mark=key.start_mark,
                    )
                seen.add(key.value)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


class _Dumper(yaml.SafeDumper):
    """Writes a value that stands twice out twice: readers take no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _load(text: str, name: str) -> Any:
    loader = None
    try:
        loader = _Loader(text)
        value = loader.get_single_data()
        _check_depth(value, 0)
    except yaml.MarkedYAMLError as error:
        # Not the error's own text: that repeats the line, which may hold a secret.
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise UsageError(f"not readable as YAML: {error.problem}", where=where) from None
    # Besides its own errors PyYAML lets through what Python says of dates and numbers.
    except yaml.reader.ReaderError as error:
        raise UsageError(
            f"not readable as YAML: {error.reason} at character {error.position + 1}", where=name
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        raise UsageError(
            "not readable as YAML: a date or a number does not exist, or it is too deep", where=name
        ) from None
    finally:
        if loader is not None:
            loader.dispose()
    return value


def _check_depth(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, depth + 1)


def _put(value: Value, override: Override) -> None:
    place: Any = value
    for depth, step in enumerate(override.path):
        last = depth == len(override.path) - 1
        key = _key(place, step, override, override.path[:depth])
        if last:
            place[key] = deepcopy(override.value)
        elif isinstance(place, dict) and key not in place:
            place[key] = {}
        place = place[key]


def _key(place: Any, step: str, override: Override, above: tuple[str, ...]) -> Any:
    """The key or index of ``place`` that ``step`` names, or may have from now on."""
    if isinstance(place, list):
        if _INDEX.fullmatch(step) and int(step) < len(place):
            return int(step)
        raise UsageError(f"{override.name}: {_named(above)} is a list of {len(place)}", where="set")
    if not isinstance(place, dict):
        raise UsageError(f"{override.name}: {_named(above)} is no mapping", where="set")
    # A key may be a number or a truth value: `1: …` is what the path calls "1".
    key = next((each for each in place if str(each) == step), None)
    if key is not None or (step == "None" and None in place):
        return key
    if override.adds:
        return step
    raise UsageError(
        f"{_named(above)} has no {step!r}{suggestion(step, map(str, place))}",
        where=f"set {override.name}",
        do=f"Mend the name, or add what is not there yet with +{override.name}=…",
    )


def _named(path: tuple[str, ...]) -> str:
    return Override(path, None).name if path else "the file"
