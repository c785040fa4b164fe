"""What a record's licence, jurisdiction and sensitivity are: from a source's words to SPDX and ISO.

A licence's name is read as that of an installed package: an SPDX expression, or a name of
``trove_classifiers.py`` that means exactly one licence. Nothing else is guessed. What is not
understood comes with a suggestion, which a person may enter into a table of values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from govray.data.sources import trove_classifiers
from govray.data.sources.columns import TERMS
from govray.errors import Malformed, UsageError, nearest
from govray.governance.policy.corpus_description import LANGUAGE
from govray.governance.trust import license as spdx
from govray.governance.trust.authority import SENSITIVITIES
from govray.governance.trust.jurisdiction import COUNTRIES, JURISDICTIONS
from govray.governance.trust.license import LicenseCategory


@dataclass(frozen=True, order=True)
class RecordTerms:
    """What a record is under; records with equal terms belong to one corpus."""

    license: str
    jurisdiction: str
    sensitivity: str

    def __str__(self) -> str:
        return f"{self.license}, {self.jurisdiction}, {self.sensitivity}"


@dataclass(frozen=True)
class Unclear:
    """A value that is not understood: of which attribute, why, and what may be meant."""

    attribute: str
    value: str
    why: str
    suggestion: str | None = None


@dataclass
class TermsReader:
    """Reads what records state.

    Attributes:
        defaults: Attribute → value of records that state none.
        values: Attribute → the source's word → what it means, as a person decided.
        reference_category: The category of ``LicenseRef-…`` terms, if it was said.
    """

    defaults: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reference_category: LicenseCategory | None = None
    _known: dict[tuple[str, str], str | Unclear] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Check defaults and decided values."""
        said = [(a, v, f"the value of records without {a}") for a, v in self.defaults.items()]
        for attribute, table in self.values.items():
            if attribute not in TERMS:
                raise UsageError(
                    f"no attribute {attribute!r}", where="values", do=f"Use {', '.join(TERMS)}."
                )
            said += [(attribute, v, f"{attribute} {word!r}") for word, v in table.items()]
        for attribute, value, where in said:
            found = _meaning(attribute, value, self.reference_category)
            if isinstance(found, Unclear):
                do = f"Did you mean {found.suggestion}?" if found.suggestion else None
                raise UsageError(f"{value!r}: {found.why}", where=where, do=do)

    def read(self, stated: Mapping[str, tuple[str, ...]]) -> RecordTerms | Unclear:
        """The terms that a record states, or the first value that is not understood."""
        found: list[str] = []
        for attribute in TERMS:
            value = self._one(attribute, stated.get(attribute, ()))
            if isinstance(value, Unclear):
                return value
            found.append(value)
        for tag in stated.get("language", ()):
            if not re.fullmatch(LANGUAGE, tag):
                return Unclear("language", tag, "no BCP 47 tag", "leave it out: --column language=")
        return RecordTerms(*found)

    def _one(self, attribute: str, values: tuple[str, ...]) -> str | Unclear:
        if not values:
            if default := self.defaults.get(attribute):
                return self._meaning(attribute, default)
            return Unclear(attribute, "", "no value", f"--{attribute} for records without one")
        meanings = [self._meaning(attribute, value) for value in values]
        for meaning in meanings:
            if isinstance(meaning, Unclear):
                return meaning
        if len(set(meanings)) > 1:
            why = "conflicting values: nothing says whether all hold or one may be chosen"
            return Unclear(attribute, " | ".join(sorted(values)), why)
        return meanings[0]

    def _meaning(self, attribute: str, value: str) -> str | Unclear:
        key = (attribute, value)
        if (found := self._known.get(key)) is None:
            decided = self.values.get(attribute, {}).get(value, value)
            found = _meaning(attribute, decided, self.reference_category)
            if len(self._known) < _MOST_KNOWN and len(value) <= _LONGEST_KNOWN:
                self._known[key] = found
        return found


_MOST_KNOWN, _LONGEST_KNOWN = 100_000, 1_000


def check_values(value: Any, *, where: str) -> dict[str, dict[str, str]]:
    """A table of decided values: attribute → word → meaning, all of them text."""
    tables = list(value.values()) if isinstance(value, dict) else [None]
    if not all(
        isinstance(table, dict) and all(isinstance(v, str) for v in table.values())
        for table in tables
    ):
        raise UsageError(
            "not a table of values", where=where, do="Write license: {BSD License: BSD-3-Clause}."
        )
    return value


def _meaning(
    attribute: str, value: str, reference_category: LicenseCategory | None
) -> str | Unclear:
    if attribute == "license":
        return _license(value, reference_category)
    if attribute == "jurisdiction":
        if value.upper() in JURISDICTIONS:
            return value.upper()
        close = _OTHER_CODES.get(value.upper())
        close = close or nearest(value.upper(), sorted(COUNTRIES), cutoff=0.8)
        return Unclear(attribute, value, "no ISO 3166-1 alpha-2 code", close)
    if value.lower() in SENSITIVITIES:
        return value.lower()
    close = nearest(value.lower(), SENSITIVITIES)
    return Unclear(attribute, value, f"none of {', '.join(SENSITIVITIES)}", close)


# Codes that ISO 3166-1 reserves for countries that have another one.
_OTHER_CODES = {"UK": "GB", "EL": "GR"}


def _license(value: str, reference_category: LicenseCategory | None) -> str | Unclear:
    meanings = trove_classifiers.meanings(value)
    if len(meanings) == 1:
        return meanings[0]
    if meanings:
        why = "a name of several licences: " + ", ".join(meanings)
        return Unclear("license", value, why)
    try:
        expression = spdx.normalise(value)
        category = spdx.category(expression)
    except Malformed:
        return Unclear("license", value, "no SPDX expression", spdx.closest(value))
    if category is None and reference_category:
        return expression
    if category is None:
        why = "the category of these terms does not follow from their name"
        return Unclear("license", value, why, "--license-category")
    return Unclear("license", value, "no known licence", spdx.closest(value))
