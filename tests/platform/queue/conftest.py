"""A store at head, and a queue over a cluster in memory."""

from __future__ import annotations

from tests.support.databases import made_file, postgres, store, store_url

__all__ = ["made_file", "postgres", "store", "store_url"]
