"""The reserve's salt, the same in every test: of so few records a draw alone decides outcomes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

SALT = bytes(range(32))


def fix_salt(patch: pytest.MonkeyPatch) -> None:
    """Let runs of this process hold back the same records, until ``patch`` is undone."""
    drawn = SimpleNamespace(token_bytes=lambda size: SALT[:size])
    patch.setattr("govray.train.driver.preparation.secrets", drawn)
