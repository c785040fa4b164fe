"""Names of corpora and adapters in facts: put under a commitment, put back, and looked for.

Every fact is committed to with pseudonyms in place of names. A name is a fact of its own. So it is
withheld everywhere or shown everywhere, and no other fact has to be signed twice.

A name counts where no letter or digit stands beside it: ``acme`` stands in ``adapter:acme`` and in
``acme-2``, not in ``acmes``. Fields that have words of everybody's, such as licences, are left as
they are: a pseudonym there would tell what it stands for. `shows` finds a name in them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import Any

from govray.evidence.views.attestation_facts import ASSURANCE, ATTESTATION, COUNTS, DISCLAIMER, Fact
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats import canonical_json

LEFT = frozenset(
    {ASSURANCE, ATTESTATION, COUNTS, DISCLAIMER, "buffers", "groups", "manifest"}
    | {"environment", "ledger", "policy", "run", "trustRoot", "validation"}
    | {"corpora.credential", "corpora.credentialClass"}
)
"""Fields, and all below them, in which no name is replaced."""


def below(field: str, fields: Collection[str]) -> bool:
    """Whether ``field`` is one of ``fields`` or a member of one."""
    parts = field.split(".")
    return any(".".join(parts[:end]) in fields for end in range(1, len(parts) + 1))


def hidden(fact: Fact, pseudonyms: Mapping[str, str]) -> Fact:
    """The fact with each name of ``pseudonyms`` replaced, in keys too. ``pseudonyms``: name →
    pseudonym."""
    return _renamed(fact, pseudonyms, values=not below(fact.field, LEFT))


def shown(fact: Fact, names: Mapping[str, str]) -> Fact:
    """The fact with each pseudonym of ``names`` replaced by its name: `hidden` undone."""
    return _renamed(fact, names, values=True)


def _renamed(fact: Fact, names: Mapping[str, str], *, values: bool) -> Fact:
    if not names:
        return fact
    known = _found(tuple(sorted(names, key=len, reverse=True)), 0)

    def renamed(text: str) -> str:
        return known.sub(lambda match: names[match[0]], text)

    return Fact(
        fact.field,
        _mapped(fact.value, renamed) if values else fact.value,
        fact.corpus and renamed(fact.corpus),
        fact.group and renamed(fact.group),
    )


def shows(fact: Fact, names: Collection[str]) -> str | None:
    """The first of ``names`` that stands in the fact, in either case of letters; or None."""
    if not names or fact.field == DISCLAIMER:
        return None
    text = canonical_json.encode([fact.corpus or "", fact.group or "", fact.value]).decode()
    match = _found(tuple(sorted(names, key=len, reverse=True)), re.IGNORECASE).search(text)
    return match and match[0]


@cache
def format_words() -> frozenset[str]:
    """Words of the format: fields, and values of closed lists. None of them can be withheld."""
    found: set[str] = set()
    pending: list[Any] = [Attestation.model_json_schema()]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            found |= set(node.get("properties", ()))
            found |= {each for each in node.get("enum", ()) if isinstance(each, str)}
            found |= {node["const"]} if isinstance(node.get("const"), str) else set()
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return frozenset(found)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict):
        return {change(key): _mapped(each, change) for key, each in value.items()}
    return value


@lru_cache(maxsize=8)
def _found(names: tuple[str, ...], flags: int) -> re.Pattern[str]:
    inner = "|".join(re.escape(name) for name in names)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{inner})(?![A-Za-z0-9])", flags)
