"""Scans for personal data, as credentials state them: by what, for what, from which score on.

Patterns find what has a form, such as an e-mail address. They find no names and no street
addresses. So a scan without a finding does not say that there is no personal data.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, StringConstraints

from govray.governance.formats.document import Document

PiiEntity: TypeAlias = Literal[
    "CREDIT_CARD",
    "CRYPTO",
    "EMAIL_ADDRESS",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MAC_ADDRESS",
    "PHONE_NUMBER",
    "US_SSN",
]
"""A kind of personal data that `govray corpus` can look for, by Presidio's name."""

PII_ENTITIES: tuple[PiiEntity, ...] = get_args(PiiEntity)
PII_SCORE = 0.5
"""From which score on a finding counts, unless the user says otherwise."""


# Open: who verifies need not know what another version can look for.
_Entity = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]


class PiiScan(Document):
    """What records were scanned for. Those with a finding are not in the corpus.

    Attributes:
        analyzer: The package that scanned, and its version.
        score: From which of its scores on a finding counts, in (0, 1].
    """

    analyzer: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z-]* [0-9][0-9A-Za-z.+]*$")]
    entities: Annotated[tuple[_Entity, ...], Field(min_length=1)]
    score: Annotated[float, Field(gt=0, le=1)]
