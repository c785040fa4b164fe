"""What a submission states, and the file that states it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.submission.submission import read_submission

STATED = {
    "id": "s-20261124-203049-0123abcd",
    "user": "ada",
    "project": "search",
    "policy": f"sha256:{'0' * 64}",
    "submitted": "2026-11-24T20:30:49Z",
    "archive": f"sha256:{'1' * 64}",
}


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "submission.json"
    file.write_bytes(canonical_json.encode(STATED))
    found = read_submission(file)
    assert found.to_json() == STATED
    assert str(found) == "submitted by ada, project search"
    small = {key: STATED[key] for key in ("id", "user", "project", "submitted")}
    file.write_bytes(canonical_json.encode(small))
    assert read_submission(file).to_json() == small


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../up"},
        {"id": "x" * 57},
        {"user": ""},
        {"user": "x" * 257},
        {"project": 3},
        {"policy": "0" * 64},
        {"policy": None},
        {"submitted": "yesterday"},
        {"role": "admin"},
    ],
    ids=str,
)
def test_other_facts_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "submission.json"
    file.write_bytes(canonical_json.encode(STATED | change))
    with pytest.raises(Malformed, match=next(iter(change))):
        read_submission(file)
