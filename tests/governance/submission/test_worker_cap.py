"""The queue's word to a run: one encoding, bounded, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import Malformed
from govray.governance.submission.worker_cap import (
    ANSWER,
    LARGEST,
    REQUEST,
    WorkerCap,
    read_cap,
    write_cap,
)


def test_a_word_is_read_as_it_was_written_and_has_these_bytes(tmp_path: Path) -> None:
    assert read_cap(tmp_path, REQUEST) is None
    write_cap(tmp_path, REQUEST, WorkerCap(number=3, most=2))
    assert (tmp_path / "workers.most").read_bytes() == b'{"most":2,"number":3}'
    assert read_cap(tmp_path, REQUEST) == WorkerCap(number=3, most=2)
    assert read_cap(tmp_path, ANSWER) is None
    write_cap(tmp_path, ANSWER, WorkerCap(number=3, most=2))
    assert (tmp_path / "workers.given").is_file()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b'{"most":2}',
        b'{"most":0,"number":1}',
        b'{"most":2,"number":0}',
        b'{"most":"2","number":1}',
        b'{"most":true,"number":1}',
        b'{"most":2,"number":1,"then":1}',
        b'{"number":1,"most":2}',
        b'{"most":2,"number":1}\n',
        b'{"most":2,"most":3,"number":1}',
        b'{"most":2,"number":1}' + b" " * LARGEST,
    ],
)
def test_what_is_no_word_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / REQUEST).write_bytes(data)
    with pytest.raises(Malformed):
        read_cap(tmp_path, REQUEST)
