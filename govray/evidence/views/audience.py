"""Who is shown what of an attestation: a small file that the view's maker writes.

Nothing is shown that it does not ask for, apart from the disclaimer and the assurance level, which
stand in every view. A pattern that matches nothing is an error, since it is likely a slip.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import Field

from govray.errors import UsageError, suggestion
from govray.evidence.views.attestation_facts import ASSURANCE, DISCLAIMER, Fact
from govray.evidence.views.disclosure import NAMES, PADDING, DisclosedFacts
from govray.evidence.views.withheld_names import below, shown, shows
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import ShortText
from govray.governance.formats.document import Document
from govray.governance.formats.strict_yaml import read_yaml
from govray.governance.policy.globs import Glob, is_literal, matches

ALWAYS = (DISCLAIMER, ASSURANCE)
"""Fields that every view shows."""

SAFE_DIGESTS = frozenset(
    {"environment.codeDigest", "policy.digest", "trustRoot.digest"}
    | {"execution", "run.initialWeights", "run.initialOptimizer"}
)
"""Fields whose digests are of content that has no name of a corpus, or that is published."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

_Globs = Annotated[tuple[Glob, ...], Field(max_length=1024)]


class Audience(Document):
    """What one audience is shown.

    Attributes:
        fields: Fields of the attestation as its JSON spells them; one stands for all below it.
        corpora: Facts about other corpora are left out.
        groups: Facts about other layer groups are left out.
        names: Names of corpora and adapters that may be read. In place of others stand pseudonyms.
    """

    schema_version: Literal["v1"] = "v1"
    fields: Annotated[tuple[ShortText, ...], Field(min_length=1, max_length=1024)]
    corpora: _Globs = ("*",)
    groups: _Globs = ("*",)
    names: _Globs = ()

    @classmethod
    def read(cls, data: bytes, *, name: str) -> Self:
        source = read_yaml(data, name=name)
        return cls.from_source(source.value, where=source.where)

    def choose(self, of: DisclosedFacts, names: Collection[str], *, where: str) -> tuple[int, ...]:
        """The indices of the leaves that this audience is shown, ascending.

        Raises:
            UsageError: A field or pattern fits nothing, a name that is withheld cannot be, or what
                would be shown has one in it.
        """
        _check_fields(self.fields, of.facts, where)
        about = {fact.corpus for fact in of.facts if fact.corpus and fact.field != NAMES}
        groups = {fact.group for fact in of.facts if fact.group and fact.field == "taint"}
        readable = _matched(self.names, names, "names", where)
        corpora = _matched(self.corpora, about, "corpora", where)
        asked = _matched(self.groups, groups, "groups", where)
        fields = {*self.fields, *ALWAYS}

        def chosen(fact: Fact) -> bool:
            if fact.field == NAMES:
                return fact.corpus in readable
            return (
                below(fact.field, fields)
                and (fact.corpus is None or fact.corpus in corpora)
                and (fact.group is None or fact.group in asked)
            )

        found = tuple(index for index, fact in enumerate(of.facts) if chosen(fact))
        _check_withheld(of, found, frozenset(names) - readable, where)
        return found


def _check_fields(fields: Collection[str], facts: Collection[Fact], where: str) -> None:
    known = {fact.field for fact in facts if fact.field != NAMES and fact.field != PADDING}
    known |= {field.rpartition(".")[0] for field in known} - {""}
    known |= {field.partition(".")[0] for field in known}
    for field in fields:
        if field not in known:
            raise UsageError(
                f"the attestation has no field {field!r}{suggestion(field, known)}",
                where=f"{where}, fields",
                do=f"It has {', '.join(sorted(known))}",
            )


def _guessable(fact: Fact) -> bool:
    text = canonical_json.encode(fact.value).decode()
    return not below(fact.field, SAFE_DIGESTS) and _DIGEST.search(text) is not None


def _matched(
    patterns: Collection[str], among: Collection[str | None], what: str, where: str
) -> frozenset[str]:
    """Those ``among`` which a pattern matches; each pattern but ``*`` has to match one."""
    found: set[str] = set()
    for pattern in patterns:
        hits = {name for name in among if name and matches(pattern, name)}
        if not hits and pattern != "*":
            kind = "of this name" if is_literal(pattern) else "that it matches"
            raise UsageError(
                f"{pattern!r}: the attestation has none {kind}",
                where=f"{where}, {what}",
                do=f"It has {', '.join(sorted(filter(None, among))) or 'none'}",
            )
        found |= hits
    return frozenset(found)


def _check_withheld(
    of: DisclosedFacts, chosen: Collection[int], withheld: frozenset[str], where: str
) -> None:
    if words := sorted(withheld - of.pseudonyms.keys()):
        raise UsageError(
            f"the name {words[0]!r} cannot be withheld: it is a word of the format or a layer "
            "group, which stands everywhere",
            where=f"{where}, names",
            do="Add it to names",
        )
    names = {of.pseudonyms[name]: name for name in of.pseudonyms.keys() - withheld}
    for index in chosen:
        fact = shown(of.leaves[index].fact, names)
        own = of.facts[index].corpus
        if withheld and (own is None or own in withheld) and _guessable(fact):
            raise UsageError(
                f"{fact.field} has a digest against which a guess of a withheld name can be tested",
                where=f"{where}, fields",
                do="Leave that field out, or add all names to names",
            )
        if name := shows(fact, withheld):
            about = "".join(f" of {each}" for each in (fact.corpus, fact.group) if each)
            raise UsageError(
                f"{fact.field}{about} would show the withheld name {name!r}",
                where=f"{where}, fields",
                do="Leave that field out, or that corpus, or add the name to names",
            )
