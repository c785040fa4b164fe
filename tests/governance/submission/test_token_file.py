"""A token's file: its owner's alone, and long enough where somebody makes it for this."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import Refused, UsageError
from govray.governance.submission.token_file import SHORTEST, read_token


def test_the_token_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t" * SHORTEST + "\n")
    path.chmod(0o640)
    with pytest.raises(Refused, match="others than its owner may read my token"):
        read_token(path, "my token", shortest=SHORTEST)
    path.chmod(0o600)
    assert read_token(path, "my token", shortest=SHORTEST) == "t" * SHORTEST
    path.write_text("short")
    with pytest.raises(UsageError, match="no token of at least 32"):
        read_token(path, "my token", shortest=SHORTEST)
    assert read_token(path, "my token") == "short"
    path.write_text(" \n")
    with pytest.raises(UsageError, match="holds no token"):
        read_token(path, "my token")
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none", "my token")
