"""SPDX licence expression → licence category and use restriction.

A policy speaks of categories, not of seven hundred licences. Categories are
ordered by how much a licence asks of whoever uses the work:

    public_domain < permissive < copyleft_limited < copyleft < commercial < unknown

``commercial`` holds everything whose terms are known and go beyond copyleft:
commercial, proprietary, source-available and field-of-use licences. ``unknown``
holds what states no terms, ``NOASSERTION``, ``NONE``, and identifiers that are
not on the SPDX list.

Combination:

* ``OR`` offers a choice, so it takes the *most permissive* branch. A choice of which one branch is
  unknown is unknown: nobody says that it was offered. (SPDX itself has ``NOASSERTION`` and ``NONE``
  only as a whole, never within an expression.)
* ``AND`` demands all, so it takes the *most restrictive* branch.
* ``WITH`` adds a permission to one licence. What it changes is that copyleft
  becomes limited copyleft, if the exception itself is of a lesser category:
  ``GPL-2.0-only WITH Classpath-exception-2.0`` is ``copyleft_limited``. Terms after
  ``WITH`` that are not on the list make the whole ``unknown``.

``LicenseRef-*`` (and ``AdditionRef-*``) names terms that are not in any list: its category is the
statement of whoever issues the credential. Nothing is guessed; the functions
return the bounds within which such a statement can be true.

The second axis is the use that the terms allow, ordered in the same way:

    commercial < non_commercial < academic_only < unspecified

It is narrower than the category for the few licences of `_RESTRICTED_USE`. They ask no more than
copyleft for changes to the work, but restrict who may sell or use it. Theirs is ``unspecified``.

Not done here: reading licence texts or free-text names, and any legal judgement.

Source: SPDX specification 2.3 annex D (expressions); categories from the ScanCode
LicenseDB index that license-expression carries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from license_expression import get_license_index  # type: ignore[import-untyped]

from govray.errors import Malformed, nearest

LicenseCategory: TypeAlias = Literal[
    "public_domain", "permissive", "copyleft_limited", "copyleft", "commercial", "unknown"
]
Use: TypeAlias = Literal["commercial", "non_commercial", "academic_only", "unspecified"]

#: From the least to the most restrictive.
LICENSE_CATEGORIES: tuple[LicenseCategory, ...] = (
    "public_domain",
    "permissive",
    "copyleft_limited",
    "copyleft",
    "commercial",
    "unknown",
)

#: From the widest to the narrowest; ``unspecified`` may be any, so it is last.
USES: tuple[Use, ...] = ("commercial", "non_commercial", "academic_only", "unspecified")

_CATEGORY_OF_INDEX: dict[str, LicenseCategory] = {
    "Public Domain": "public_domain",
    "Permissive": "permissive",
    "Copyleft Limited": "copyleft_limited",
    "Copyleft": "copyleft",
    "Commercial": "commercial",
    "Proprietary Free": "commercial",
    "Free Restricted": "commercial",
    "Source-available": "commercial",
    "CLA": "unknown",
    "Patent License": "unknown",
    "Unstated License": "unknown",
}

# Licences on the SPDX list whose text limits use to non-commercial purposes.
_NON_COMMERCIAL = re.compile(r"CC-BY-NC-.+|PolyForm-Noncommercial-.+|NCGL-UK-.+")

# Licences up to copyleft on the SPDX list whose text restricts commercial use or distribution, or
# the field of use. Aladdin permits no distribution for a fee, PPL commercial use by co-operatives
# alone. Glide is for the owner's hardware, MS-LPL for one system, IEC-Code-Components-EULA for
# implementations of the standard.
_RESTRICTED_USE = frozenset({"Aladdin", "Glide", "IEC-Code-Components-EULA", "MS-LPL", "PPL"})

# Longer than any real expression; it bounds the depth of the recursion below.
_MAX_LENGTH = 2000
_MAX_DEPTH = 50
_MAX_SUGGESTED = 60  # characters; comparing takes their square

_TOKEN = re.compile(r"[()]|[^\s()]+")
_SYMBOL = re.compile(r"(?:DocumentRef-[A-Za-z0-9.-]+:)?[A-Za-z0-9.-]+\+?")
_REFERENCE = re.compile(
    r"(?:DocumentRef-[A-Za-z0-9.-]+:)?(?:LicenseRef|AdditionRef)-[A-Za-z0-9.-]+"
)


class CategoryBounds(NamedTuple):
    """The least and the most restrictive category that an expression can have."""

    least: LicenseCategory
    most: LicenseCategory


class UseBounds(NamedTuple):
    """The widest and the narrowest use that an expression can allow."""

    widest: Use
    narrowest: Use


def normalise(expression: str) -> str:
    """The one spelling of an expression: current identifiers, upper-case operators.

    Branches keep their order and parentheses stay only where they matter.
    Identifiers that are not on the SPDX list are kept as written.
    """
    return _render(_parse(expression))


def category_bounds(expression: str) -> CategoryBounds:
    """The range of categories that the expression's ``LicenseRef-*`` symbols leave open.
    Both ends are equal if it has no such symbols, or if they cannot make a difference."""
    least, most = _category(_parse(expression))
    return CategoryBounds(LICENSE_CATEGORIES[least], LICENSE_CATEGORIES[most])


def category(expression: str) -> LicenseCategory | None:
    """The category that follows from the expression, or ``None``. ``None`` means that it cannot be
    derived: it hangs on a ``LicenseRef-*`` symbol, and the issuer has to state it."""
    least, most = category_bounds(expression)
    return least if least == most else None


def use_bounds(expression: str) -> UseBounds:
    """The range of uses that the expression may allow.

    Licences up to copyleft allow commercial use, but for those of `_RESTRICTED_USE`. Of others
    only those known to be non-commercial are fixed; the rest may allow anything.
    """
    widest, narrowest = _use(_parse(expression))
    return UseBounds(USES[widest], USES[narrowest])


def use(expression: str) -> Use:
    """The use that follows from the expression; ``unspecified`` where none does."""
    widest, narrowest = use_bounds(expression)
    return widest if widest == narrowest else "unspecified"


def closest(name: str) -> str | None:
    """The licence on the SPDX list whose identifier is spelt most like ``name``, if one is close.
    A suggestion for people; nothing is decided by it."""
    licenses = [key for key, entry in _spdx().items() if entry.is_license]
    spelt = re.sub(r"[\s_,]+", "-", name.strip().lower())[:_MAX_SUGGESTED]
    versions = [key for key in licenses if key.startswith(f"{spelt}-")]
    if len(versions) == 1:
        return _spdx()[versions[0]].key
    # Of three letters, two that changed places leave two thirds alike.
    found = nearest(spelt, licenses, cutoff=0.75 if len(spelt) > 4 else 0.65)
    return _spdx()[found].key if found else None


# The tree of an expression.


@dataclass(frozen=True)
class _License:
    key: str


@dataclass(frozen=True)
class _With:
    license: _License
    exception: str


@dataclass(frozen=True)
class _Combined:
    operator: Literal["AND", "OR"]
    branches: tuple[_Node, ...]


_Node: TypeAlias = _License | _With | _Combined
_Range: TypeAlias = tuple[int, int]


class _Entry(NamedTuple):
    key: str
    category: LicenseCategory
    is_exception: bool
    is_license: bool


@lru_cache(maxsize=1)
def _spdx() -> dict[str, _Entry]:
    """SPDX identifiers in lower case (they match without regard to case) → entry.
    Former identifiers lead to the current one: ``gpl-2.0`` → ``GPL-2.0-only``."""
    entries: dict[str, _Entry] = {}
    for item in get_license_index():
        names = [item["spdx_license_key"], *item["other_spdx_license_keys"]]
        names = [n for n in names if n and _SYMBOL.fullmatch(n) and not _REFERENCE.fullmatch(n)]
        for name in names:
            exception = item["is_exception"]
            # Deprecated "exceptions" such as GPL-2.0-with-GCC-exception are whole licences.
            entries[name.lower()] = _Entry(
                key=names[0],
                category=_CATEGORY_OF_INDEX[item["category"]],
                is_exception=exception,
                is_license=not exception or item["is_deprecated"],
            )
    return entries


def _lookup(key: str) -> _Entry | None:
    entry = _spdx().get(key.lower())
    if entry is None and key.endswith("+"):
        base = _spdx().get(key[:-1].lower())
        return base and base._replace(key=base.key + "+")
    return entry


@lru_cache(maxsize=4096)
def _parse(expression: str) -> _Node:
    """Recursive descent over ``or := and (OR and)*``, ``and := with (AND with)*``."""
    if len(expression) > _MAX_LENGTH:
        raise _malformed(expression[:40] + "…", f"longer than {_MAX_LENGTH} characters")
    tokens = list(_TOKEN.findall(expression))
    tokens.reverse()
    node = _combined(expression, tokens, "OR", 0)
    if tokens:
        raise _malformed(expression, f"{tokens[-1]!r} where AND, OR or the end was expected")
    return node


def _combined(
    expression: str, tokens: list[str], operator: Literal["AND", "OR"], depth: int
) -> _Node:
    branches: list[_Node] = []
    while True:
        if operator == "OR":
            node = _combined(expression, tokens, "AND", depth)
        else:
            node = _operand(expression, tokens, depth)
        if isinstance(node, _Combined) and node.operator == operator:
            branches.extend(node.branches)
        else:
            branches.append(node)
        if not (tokens and _operator(tokens[-1]) == operator):
            break
        tokens.pop()
    return branches[0] if len(branches) == 1 else _Combined(operator, tuple(branches))


def _operand(expression: str, tokens: list[str], depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise _malformed(expression, f"nested deeper than {_MAX_DEPTH}")
    if tokens and tokens[-1] == "(":
        tokens.pop()
        node = _combined(expression, tokens, "OR", depth + 1)
        if not tokens or tokens.pop() != ")":
            raise _malformed(expression, "a parenthesis is not closed")
        return node
    key = _symbol(expression, tokens)
    entry = _lookup(key)
    if (entry is not None and not entry.is_license) or _names(key, "AdditionRef"):
        raise _malformed(
            expression, f"{entry.key if entry else key} is an exception; it stands after WITH"
        )
    license = _License(entry.key if entry else key)
    if not (tokens and _operator(tokens[-1]) == "WITH"):
        return license
    tokens.pop()
    key = _symbol(expression, tokens)
    entry = _lookup(key)
    if (entry is not None and not entry.is_exception) or _names(key, "LicenseRef"):
        raise _malformed(expression, f"{entry.key if entry else key} is a licence, no exception")
    return _With(license, entry.key if entry else key)


def _names(key: str, kind: Literal["LicenseRef", "AdditionRef"]) -> bool:
    """Whether a symbol refers to terms of this kind, which are in no list."""
    return bool(_REFERENCE.fullmatch(key)) and key.rpartition(":")[2].startswith(kind)


def _operator(token: str) -> str | None:
    """The keyword a token is: all upper or all lower case, as SPDX 2.3 has it."""
    return token.upper() if token in {"AND", "OR", "WITH", "and", "or", "with"} else None


def _symbol(expression: str, tokens: list[str]) -> str:
    if not tokens:
        raise _malformed(expression, "an identifier is missing at the end")
    token = tokens.pop()
    if _operator(token) or not _SYMBOL.fullmatch(token):
        raise _malformed(expression, f"{token!r} where an identifier was expected")
    return token


def _malformed(expression: str, why: str) -> Malformed:
    return Malformed(
        f"no SPDX licence expression: {why}",
        where=f"licence {expression!r}",
        do="Write identifiers of https://spdx.org/licenses joined by AND, OR and WITH, "
        "LicenseRef-<name> for other terms, or NOASSERTION",
    )


def _render(node: _Node) -> str:
    match node:
        case _License(key):
            return key
        case _With(license, exception):
            return f"{license.key} WITH {exception}"
        case _Combined(operator, branches):
            return f" {operator} ".join(
                f"({_render(b)})" if isinstance(b, _Combined) and operator == "AND" else _render(b)
                for b in branches
            )


# Every operator is monotone in every branch, so evaluating both ends of each
# symbol's range gives exactly the range of the expression.


def _combine(operator: Literal["AND", "OR"], ranges: Iterable[_Range], unknown: int) -> _Range:
    """The range of the whole; ``unknown`` is the rank that a choice does not get rid of."""

    def whole(ranks: tuple[int, ...]) -> int:
        return max(ranks) if operator == "AND" or unknown in ranks else min(ranks)

    least, most = zip(*ranges, strict=True)
    return whole(least), whole(most)


def _category(node: _Node) -> _Range:
    match node:
        case _License(key):
            return _category_of_symbol(key)
        case _With(_License(key), exception):
            least, most = _category_of_symbol(key)
            if (entry := _lookup(exception)) is not None:
                added = _RANK[entry.category]
                return _with(least, added), _with(most, added)
            # Terms outside the list might as well take permissions away.
            permits = _with(least, 0) if _REFERENCE.fullmatch(exception) else _RANK["unknown"]
            return permits, _RANK["unknown"]
        case _Combined(operator, branches):
            return _combine(operator, map(_category, branches), _RANK["unknown"])


_RANK = {name: rank for rank, name in enumerate(LICENSE_CATEGORIES)}


def _category_of_symbol(key: str) -> _Range:
    if _REFERENCE.fullmatch(key):
        return 0, len(LICENSE_CATEGORIES) - 1
    entry = _lookup(key)
    rank = _RANK[entry.category if entry else "unknown"]
    return rank, rank


def _with(base: int, exception: int) -> int:
    if base == _RANK["copyleft"] and exception < base:
        return _RANK["copyleft_limited"]
    return base


def _use(node: _Node) -> _Range:
    match node:
        case _License(key):
            return _use_of_symbol(key)
        case _With(_License(key), exception):
            widest, narrowest = _use_of_symbol(key)
            return widest, narrowest if _lookup(exception) else _UNSPECIFIED
        case _Combined(operator, branches):
            least, most = _combine(operator, map(_use, branches), unknown=-1)
            # A choice that may be unknown may be of any use.
            return least, _UNSPECIFIED if _category(node)[1] == _RANK["unknown"] else most


_UNSPECIFIED = USES.index("unspecified")


def _use_of_symbol(key: str) -> _Range:
    entry = _lookup(key)
    if entry and _NON_COMMERCIAL.fullmatch(entry.key):
        return USES.index("non_commercial"), USES.index("non_commercial")
    settled = entry is not None and entry.key.removesuffix("+") not in _RESTRICTED_USE
    if entry and settled and _RANK[entry.category] <= _RANK["copyleft"]:
        return USES.index("commercial"), USES.index("commercial")
    return USES.index("commercial"), _UNSPECIFIED
