"""Licence expressions: the table of cases, and the algebra of OR, AND and WITH."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.governance.license import (
    LICENSE_CATEGORIES,
    USES,
    category,
    category_bounds,
    normalise,
    use,
    use_bounds,
)

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
    ("Foo-1.0 OR MIT", "permissive"),
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
    # It cannot make a difference.
    ("CC0-1.0 OR LicenseRef-acme", "public_domain"),
    ("Foo-1.0 AND LicenseRef-acme", "unknown"),
]


@pytest.mark.parametrize(("expression", "expected"), CATEGORY_CASES)
def test_category(expression: str, expected: str | None) -> None:
    assert category(expression) == expected


@pytest.mark.parametrize(
    ("expression", "bounds"),
    [
        ("LicenseRef-acme", ("public_domain", "unknown")),
        ("GPL-3.0-only AND LicenseRef-acme", ("copyleft", "unknown")),
        ("MIT OR LicenseRef-acme", ("public_domain", "permissive")),
        ("GPL-2.0-only WITH AdditionRef-acme", ("copyleft_limited", "unknown")),
    ],
)
def test_a_license_ref_leaves_bounds(expression: str, bounds: tuple[str, str]) -> None:
    assert category_bounds(expression) == bounds


@pytest.mark.parametrize(
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
    ],
)
def test_use(expression: str, expected: str) -> None:
    assert use(expression) == expected


def test_use_of_a_non_commercial_part_bounds_the_whole() -> None:
    assert use_bounds("CC-BY-NC-4.0 AND LicenseRef-acme") == ("non_commercial", "unspecified")


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@settings(deadline=None)
@given(EXPRESSIONS)
def test_normalise_is_idempotent_and_keeps_the_meaning(expression: str) -> None:
    normal = normalise(expression)
    assert normalise(normal) == normal
    assert category_bounds(normal) == category_bounds(expression)
    assert use_bounds(normal) == use_bounds(expression)


@settings(deadline=None)
@given(EXPRESSIONS, EXPRESSIONS)
def test_or_takes_the_most_permissive_and_and_the_most_restrictive(a: str, b: str) -> None:
    for order, bounds in ((LICENSE_CATEGORIES, category_bounds), (USES, use_bounds)):

        def ranks(
            expression: str, order: tuple[str, ...] = order, bounds: Callable[..., Any] = bounds
        ) -> list[int]:
            return [order.index(end) for end in bounds(expression)]

        for operator, pick in (("OR", min), ("AND", max)):
            expected = [pick(pair) for pair in zip(ranks(a), ranks(b), strict=True)]
            assert ranks(f"({a}) {operator} ({b})") == expected


@settings(deadline=None)
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


@settings(deadline=None)
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


def test_the_index_is_read_once_and_quickly() -> None:
    category("MIT")
    start = time.process_time()
    for number in range(200):
        category(f"MIT OR Foo-{number}")
    assert time.process_time() - start < 0.5
