"""Fixtures of the store's tests; those that run `on_both` have PostgreSQL too."""

from __future__ import annotations

from tests.support.databases import empty_url, made_file, postgres, store, store_url

__all__ = ["empty_url", "made_file", "postgres", "store", "store_url"]
