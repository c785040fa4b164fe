"""Licence expressions: the table of cases, and the algebra of OR, AND and WITH."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from license_expression import get_license_index  # type: ignore[import-untyped]

from govray.errors import Malformed
from govray.governance.trust.license import (
    LICENSE_CATEGORIES,
    category,
    category_bounds,
    normalise,
    use,
    use_bounds,
)
from tests.support.table import each_row

CATEGORY_CASES = [
    ("CC0-1.0", "public_domain"),
    ("Unlicense", "public_domain"),
    ("MIT", "permissive"),
    ("Apache-2.0+", "permissive"),
    ("PSF-2.0", "permissive"),
    ("MPL-2.0", "copyleft_limited"),
    ("LGPL-2.1-or-later", "copyleft_limited"),
    ("GPL-2.0", "copyleft"),
    ("AGPL-3.0-only", "copyleft"),
    ("BUSL-1.1", "commercial"),
    ("SSPL-1.0", "commercial"),
    ("CC-BY-NC-4.0", "commercial"),
    ("NOASSERTION", "unknown"),
    ("NONE", "unknown"),
    ("Foo-1.0", "unknown"),
    ("any-OSI", "unknown"),
    # OR: the most permissive branch.
    ("MIT OR GPL-2.0-only", "permissive"),
    # A choice of which a branch is unknown is unknown.
    ("Foo-1.0 OR MIT", "unknown"),
    ("NOASSERTION OR MIT", "unknown"),
    ("MIT OR NONE", "unknown"),
    ("any-OSI OR MIT", "unknown"),
    ("MIT OR (ISC AND (GPL-3.0-only OR NOASSERTION))", "unknown"),
    ("MIT OR MIT WITH Foo-exception", "unknown"),
    ("NOASSERTION+ OR MIT", "unknown"),
    ("noassertion or mit", "unknown"),
    ("NOASSERTION WITH Classpath-exception-2.0", "unknown"),
    ("LicenseRef-acme+", "unknown"),
    ("Aladdin", "copyleft"),
    ("Aladdin OR MIT", "permissive"),
    # AND: the most restrictive branch.
    ("MIT AND GPL-2.0-only", "copyleft"),
    ("MIT AND Foo-1.0", "unknown"),
    # AND binds more tightly than OR.
    ("GPL-2.0-only AND MIT OR Apache-2.0", "permissive"),
    ("GPL-2.0-only AND (MIT OR Apache-2.0)", "copyleft"),
    # WITH turns copyleft into limited copyleft, and nothing else into anything.
    ("GPL-2.0-only WITH Classpath-exception-2.0", "copyleft_limited"),
    ("GPL-3.0-or-later WITH GCC-exception-3.1", "copyleft_limited"),
    ("GPL-2.0-only WITH LLVM-exception", "copyleft_limited"),
    ("GPL-2.0-only WITH Asterisk-exception", "copyleft"),
    ("Apache-2.0 WITH LLVM-exception", "permissive"),
    ("BSD-3-Clause WITH PCRE2-exception", "permissive"),
    ("MIT WITH Classpath-exception-2.0", "permissive"),
    ("BUSL-1.1 WITH LLVM-exception", "commercial"),
    ("MIT WITH Foo-exception", "unknown"),
    # Deprecated identifiers that hold their exception.
    ("GPL-2.0-with-classpath-exception", "copyleft_limited"),
    # Only the issuer knows.
    ("LicenseRef-acme", None),
    ("DocumentRef-x:LicenseRef-acme", None),
    ("MIT AND LicenseRef-acme", None),
    ("MIT WITH AdditionRef-acme", None),
    # The issuer may not know either.
    ("CC0-1.0 OR LicenseRef-acme", None),
    # It cannot make a difference.
    ("Foo-1.0 OR LicenseRef-acme", "unknown"),
    ("Foo-1.0 AND LicenseRef-acme", "unknown"),
]


@each_row(("expression", "expected"), CATEGORY_CASES)
def test_category(expression: str, expected: str | None) -> None:
    assert category(expression) == expected


@each_row(
    ("expression", "expected"),
    [
        ("MIT", "commercial"),
        ("GPL-3.0-only", "commercial"),
        ("CC-BY-NC-SA-4.0", "non_commercial"),
        ("PolyForm-Noncommercial-1.0.0", "non_commercial"),
        ("CC-BY-NC-4.0 OR MIT", "commercial"),
        ("CC-BY-NC-4.0 AND MIT", "non_commercial"),
        ("BUSL-1.1", "unspecified"),
        ("LicenseRef-acme", "unspecified"),
        ("NOASSERTION", "unspecified"),
        ("MIT WITH Foo-exception", "unspecified"),
        ("Aladdin", "unspecified"),
        ("aladdin+", "unspecified"),
        ("PPL", "unspecified"),
        ("Aladdin OR MIT", "commercial"),
        ("BUSL-1.1 OR MIT", "commercial"),
        ("NOASSERTION OR MIT", "unspecified"),
        ("MIT OR (ISC AND Foo-1.0)", "unspecified"),
        ("MIT OR LicenseRef-acme", "unspecified"),
        ("CC-BY-NC-4.0 OR NOASSERTION", "unspecified"),
        ("CC-BY-NC-4.0+", "non_commercial"),
    ],
)
def test_use(expression: str, expected: str) -> None:
    assert use(expression) == expected


@each_row(
    ("expression", "normal"),
    [
        ("mit", "MIT"),
        ("gpl-2.0+ with classpath-exception-2.0", "GPL-2.0-or-later WITH Classpath-exception-2.0"),
        ("GPL-3.0", "GPL-3.0-only"),
        ("apache-2.0+", "Apache-2.0+"),
        ("((MIT)or(X11))", "MIT OR X11"),
        ("MIT OR (X11 OR ISC) AND Zlib", "MIT OR (X11 OR ISC) AND Zlib"),
        ("MIT AND (X11 AND ISC)", "MIT AND X11 AND ISC"),
        ("(MIT AND X11) OR ISC", "MIT AND X11 OR ISC"),
        ("MIT\n OR\tISC", "MIT OR ISC"),
        ("LicenseRef-Acme-EULA", "LicenseRef-Acme-EULA"),
        ("Foo-1.0", "Foo-1.0"),
    ],
)
def test_normal_form(expression: str, normal: str) -> None:
    assert normalise(expression) == normal


@each_row(
    "expression",
    [
        "",
        "  ",
        "BSD License",
        "Apache 2.0",
        "MIT/Apache-2.0",
        "MIT, BSD-3-Clause",
        "MIT & ISC",
        "MIT AND",
        "OR MIT",
        "MIT OR OR ISC",
        "MIT Or ISC",
        "(MIT",
        "MIT)",
        "()",
        "MIT ()",
        "MIT WITH",
        "MIT WITH (LLVM-exception)",
        "(MIT OR ISC) WITH LLVM-exception",
        "MIT WITH LLVM-exception WITH LLVM-exception",
        "LLVM-exception",
        "MIT WITH Apache-2.0",
        "not MIT",
        "MÏT",
        "MIT\x00",
        "(" * 60 + "MIT" + ")" * 60,
        " OR ".join(["MIT"] * 1000),
    ],
)
def test_no_expression(expression: str) -> None:
    with pytest.raises(Malformed) as caught:
        normalise(expression)
    assert caught.value.do is not None


SYMBOLS = st.sampled_from(
    (
        "CC0-1.0",
        "mit",
        "MPL-2.0",
        "GPL-2.0",
        "BUSL-1.1",
        "CC-BY-NC-4.0",
        "Foo-1.0",
        "LicenseRef-a",
        "GPL-3.0-only WITH GCC-exception-3.1",
        "Apache-2.0 WITH LLVM-exception",
    )
)
EXPRESSIONS = st.recursive(
    SYMBOLS,
    lambda inner: st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_normalise_is_idempotent_and_keeps_the_meaning(expression: str) -> None:
    normal = normalise(expression)
    assert normalise(normal) == normal
    assert category_bounds(normal) == category_bounds(expression)
    assert use_bounds(normal) == use_bounds(expression)


@given(EXPRESSIONS, EXPRESSIONS)
def test_or_takes_the_most_permissive_and_and_the_most_restrictive(a: str, b: str) -> None:
    unknown = LICENSE_CATEGORIES.index("unknown")

    def ranks(expression: str) -> list[int]:
        return [LICENSE_CATEGORIES.index(end) for end in category_bounds(expression)]

    for operator, pick in (("OR", min), ("AND", max)):
        expected = [
            unknown if unknown in pair else pick(pair)
            for pair in zip(ranks(a), ranks(b), strict=True)
        ]
        assert ranks(f"({a}) {operator} ({b})") == expected


@given(EXPRESSIONS, st.sampled_from(LICENSE_CATEGORIES))
def test_a_license_ref_stays_within_its_bounds(expression: str, stated: str) -> None:
    """Whatever a LicenseRef turns out to mean, the whole lies within the bounds."""
    stands_for = dict(
        zip(
            LICENSE_CATEGORIES,
            ["CC0-1.0", "MIT", "MPL-2.0", "GPL-2.0-only", "BUSL-1.1", "NOASSERTION"],
            strict=True,
        )
    )
    least, most = (LICENSE_CATEGORIES.index(end) for end in category_bounds(expression))
    meant = category(expression.replace("LicenseRef-a", stands_for[stated]))
    assert meant is not None
    assert least <= LICENSE_CATEGORIES.index(meant) <= most


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(
                ["MIT", "OR", "AND", "WITH", "(", ")", "LicenseRef-a", "é", "LLVM-exception"]
            ),
            max_size=12,
        ).map(" ".join),
    )
)
def test_any_text_is_an_expression_or_malformed(text: str) -> None:
    try:
        normal = normalise(text)
    except Malformed:
        return
    assert normalise(normal) == normal


def spdx_names() -> list[str]:
    """Every current and former identifier of the SPDX list that is a word."""
    found: set[str] = set()
    for item in get_license_index():
        for name in [item["spdx_license_key"], *item["other_spdx_license_keys"]]:
            if name and not name.startswith("LicenseRef-") and " " not in name:
                found.add(name)
    return sorted(found)


NAMES = spdx_names()
UNSTATED = {"any-OSI", "any-OSI-perl-modules"}


def is_exception(name: str) -> bool:
    """Whether it stands after WITH and cannot stand alone."""
    try:
        category(name)
    except Malformed:
        return True
    return False


def test_every_licence_of_the_list_has_a_category() -> None:
    assert len(NAMES) > 750
    licences = [name for name in NAMES if not is_exception(name)]
    assert len(licences) > 680
    assert {name for name in licences if category(name) == "unknown"} == UNSTATED
    for name in licences:
        normal = normalise(name)
        assert normalise(normal) == normal
        for spelling in (name.lower(), name.upper(), f"({name})", f" {name}\n"):
            assert normalise(spelling) == normal
        if name.endswith("+"):
            continue
        # "or later" changes nothing of what it asks.
        assert category(f"{name}+") == category(name), name
        assert use(f"{name}+") == use(name), name
