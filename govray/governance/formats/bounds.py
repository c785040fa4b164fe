"""Bounded numbers and texts of documents, once each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_EXACT = (1 << 53) - 1
"""The largest integer that every reader of JSON takes exactly (RFC 8259, section 6)."""

Natural = Annotated[int, Field(ge=0, le=MAX_EXACT)]
Positive = Annotated[int, Field(ge=1, le=MAX_EXACT)]
Probability = Annotated[float, Field(ge=0, le=1)]
PValue = Annotated[float, Field(gt=0, le=1)]
"""Of a permutation test, which counts the data themselves: never 0."""

ShortText = Annotated[str, Field(min_length=1, max_length=1024)]
LongText = Annotated[str, Field(min_length=1, max_length=4096)]
