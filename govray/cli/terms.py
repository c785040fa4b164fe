"""What an SPDX expression fixes, so that options only have to say the rest."""

from __future__ import annotations

from typing import NamedTuple

from govray.errors import Malformed, UsageError


class Terms(NamedTuple):
    """A licence as credentials state it."""

    license: str
    license_category: str
    use: str


def terms(license: str, license_category: str | None, use: str | None) -> Terms:
    """The normal form of an expression, its category and the use that it allows.

    Args:
        license: An SPDX licence expression.
        license_category: Stated, or None for the one that follows from the expression.
        use: Stated, or None for the one that follows; ``unspecified`` if none does.

    Raises:
        UsageError: no SPDX expression, or no category follows and none is stated.
    """
    from govray.governance.license import category, normalise, use_bounds

    try:
        expression = normalise(license)
        derived = category(expression)
        bounds = use_bounds(expression)
    except Malformed as error:
        raise UsageError(error.what, where="--license", do=error.do) from None
    if license_category is None and derived is None:
        raise UsageError(
            f"no licence category follows from {expression!r}",
            where="--license-category",
            do="State it: whoever issues a LicenseRef knows its terms.",
        )
    return Terms(
        expression,
        license_category or derived or "unknown",
        use or (bounds.widest if bounds.widest == bounds.narrowest else "unspecified"),
    )
