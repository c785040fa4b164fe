"""A register in an empty database (a file, and PostgreSQL), and a run that has ended."""

from __future__ import annotations

from tests.support.databases import empty_url, postgres
from tests.train.conftest import alone, deployment

__all__ = ["alone", "deployment", "empty_url", "postgres"]
