"""Fixtures of the store's tests: every one on SQLite and on PostgreSQL."""

from __future__ import annotations

from tests.support.databases import empty_url, made_file, postgres, store, store_url

__all__ = ["empty_url", "made_file", "postgres", "store", "store_url"]
