"""Bounded numbers and texts of documents, once each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from govray.governance.formats import canonical_json

MAX_EXACT = canonical_json.MAX_INTEGER
"""The largest integer that every reader of JSON takes exactly (RFC 8259, section 6)."""

Natural = Annotated[int, Field(ge=0, le=MAX_EXACT)]
Positive = Annotated[int, Field(ge=1, le=MAX_EXACT)]
Share = Annotated[float, Field(ge=0, le=1)]
"""Of a whole; a weight or a probability too."""

PositiveShare = Annotated[float, Field(gt=0, le=1)]
"""Never 0: the weight of a permitted group, or a p-value, which counts the data themselves."""

ShortText = Annotated[str, Field(min_length=1, max_length=1024)]
LongText = Annotated[str, Field(min_length=1, max_length=4096)]

Label = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
"""Name of a profile or rule."""

Hex256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256, without a prefix."""
