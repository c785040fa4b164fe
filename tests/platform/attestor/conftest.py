"""A register in an empty database: a file, and PostgreSQL for tests that ask for both."""

from __future__ import annotations

from tests.support.databases import empty_url, postgres

__all__ = ["empty_url", "postgres"]
