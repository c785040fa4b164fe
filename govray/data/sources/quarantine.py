"""Records that are not taken: counted by what is wrong with them, with examples and a suggestion.

Held in bounded memory: behind a number of different values, further ones are counted together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from govray.data.sources.columns import TERMS, ColumnsSeen
from govray.data.sources.record import Flaw, SourceRecord
from govray.errors import UsageError
from govray.governance.policy.corpus_description import LANGUAGE

MOST_VALUES = 10_000
_EXAMPLES = 5
_FURTHER = ("record", "", "further reasons, not told apart")
_VALUE = 200  # characters of a value that are repeated
_WHY = 500  # and of a reason, which may repeat what a record has in it


@dataclass
class QuarantinedValue:
    """Records that are in quarantine for one reason.

    Attributes:
        attribute: What is unclear of them; ``record`` if they cannot be read.
        value: What the source says, shortened.
        why: The reason.
        suggestion: What would mend it, if that can be said.
        examples: Where the first ones are.
    """

    attribute: str
    value: str
    why: str
    suggestion: str | None
    records: int = 0
    examples: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


class Quarantine:
    """All of a source's. ``records`` is their number."""

    def __init__(self) -> None:
        self.records = 0
        self._values: dict[tuple[str, str, str], QuarantinedValue] = {}

    def put(
        self, where: str, attribute: str, value: str, why: str, suggestion: str | None = None
    ) -> None:
        key = (attribute, value[:_VALUE], why[:_WHY])
        if key not in self._values and len(self._values) >= MOST_VALUES:
            key, suggestion = _FURTHER, None
        found = self._values.setdefault(key, QuarantinedValue(*key, suggestion))
        found.records += 1
        if len(found.examples) < _EXAMPLES:
            found.examples.append(where)
        self.records += 1

    def merge(self, other: Quarantine) -> None:
        """Count what another process counted behind this one."""
        for each in other.values:
            key = (each.attribute, each.value, each.why)
            if key not in self._values and len(self._values) >= MOST_VALUES:
                key, each.suggestion = _FURTHER, None
            found = self._values.setdefault(key, QuarantinedValue(*key, each.suggestion))
            found.records += each.records
            found.examples += each.examples[: _EXAMPLES - len(found.examples)]
        self.records += other.records

    @property
    def values(self) -> list[QuarantinedValue]:
        """The reasons, the most frequent first."""
        return sorted(self._values.values(), key=lambda v: (-v.records, v.attribute, v.value))


def encode(told: Mapping[str, Any]) -> bytes:
    """The file that stays beside the corpora, for people to read."""
    return json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n"


class RecordFilter:
    """Which of a source's records are taken.

    Attributes:
        quarantine: What was wrong with others.
        other_splits: How many are of splits that were not asked for.
        columns: Which objects have which columns.
        refuse_flaws: Whether a flawed record ends the reading.
    """

    def __init__(self, *, refuse_flaws: bool = False, only_split: str | None = None) -> None:
        self.quarantine = Quarantine()
        self.other_splits = 0
        self.columns = ColumnsSeen()
        self.refuse_flaws, self._only_split = refuse_flaws, only_split

    def merge(self, other: RecordFilter) -> None:
        """Count what another process left out behind this one."""
        self.quarantine.merge(other.quarantine)
        self.other_splits += other.other_splits
        self.columns.merge(other.columns)

    def of(self, found: Iterable[SourceRecord | Flaw]) -> Iterator[SourceRecord]:
        for each in found:
            if isinstance(each, Flaw):
                if self.refuse_flaws:
                    raise UsageError(each.what, where=each.where, do=each.do)
                self.quarantine.put(each.where, "record", "", each.what)
            elif self._only_split and each.stated.get("split") != (self._only_split,):
                self.other_splits += 1
            else:
                yield each


def one_corpus(records: Iterable[SourceRecord], languages: set[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of records that are to be one corpus; collects their ``languages``."""
    for record in records:
        for attribute in TERMS:
            if attribute in record.stated:
                value = " | ".join(record.stated[attribute])
                raise UsageError(
                    f"states a {attribute} of its own: {value}",
                    where=record.where,
                    do="Make a corpus per value with govray corpus split, "
                    f"or leave the column out with --column {attribute}=.",
                )
        for tag in record.stated.get("language", ()):
            if not re.fullmatch(LANGUAGE, tag):
                raise UsageError(
                    f"the language {tag!r} is no BCP 47 tag",
                    where=record.where,
                    do="Leave the column out with --column language=.",
                )
            languages.add(tag)
        yield record.name, record.content
