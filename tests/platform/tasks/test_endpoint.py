"""Where a task answers, on a disk and in a bucket; and what the file may not say."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from govray.errors import Malformed
from govray.platform.tasks.endpoint import (
    ENDPOINT,
    Ended,
    Endpoint,
    read_endpoint,
    register,
    withdraw,
)
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

NOW = datetime(2026, 11, 24, 9, tzinfo=UTC)
TOKEN = "t" * 43


def endpoint(**changed: str) -> Endpoint:
    fields = {
        "task": "s-1",
        "kind": "notebook",
        "address": "http://10.0.0.5:4321",
        "token": TOKEN,
        "landing": "lab",
        "started": "2026-11-24T09:00:00Z",
    }
    return Endpoint.model_validate({**fields, **changed})


def check_life(storage: Place) -> None:
    assert read_endpoint(storage, "s-1") is None
    register(storage, endpoint())
    assert read_endpoint(storage, "s-1") == endpoint()
    withdraw(storage, "s-1", "idle", at=NOW)
    assert read_endpoint(storage, "s-1") == Ended(why="idle", at="2026-11-24T09:00:00Z")
    register(storage, endpoint())
    assert read_endpoint(storage, "s-1") == endpoint()


def test_it_is_written_read_and_withdrawn(tmp_path: Path) -> None:
    check_life(tmp_path)
    assert os.stat(tmp_path / "tasks/s-1" / ENDPOINT).st_mode & 0o777 == 0o600
    assert os.stat(tmp_path / "tasks/s-1").st_mode & 0o077 == 0


def test_in_a_bucket_it_is_the_same(store: BucketPath) -> None:
    check_life(store)


@pytest.mark.parametrize(
    "address",
    [
        "https://10.0.0.5:1",
        "http://10.0.0.5",
        "http://localhost:8585",
        "http://user@10.0.0.5:1",
        "http://10.0.0.5:1/x",
        "http://10.0.0.5:1?x",
        "http://10.0.0.5:1#x",
        "file:///etc/passwd",
        "",
    ],
)
def test_an_address_is_an_ip_address_and_a_port(tmp_path: Path, address: str) -> None:
    register(tmp_path, endpoint())
    path = tmp_path / "tasks/s-1" / ENDPOINT
    path.write_text(json.dumps({**json.loads(path.read_text()), "address": address}))
    with pytest.raises(Malformed) as raised:
        read_endpoint(tmp_path, "s-1")
    assert TOKEN not in str(raised.value)
