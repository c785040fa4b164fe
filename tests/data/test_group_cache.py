"""What a process keeps of decoded row groups: bounded, the least recently used leaving first."""

from __future__ import annotations

import numpy as np

from govray.data.group_cache import GroupCache, GroupKey
from govray.data.shard_file import Rows


def key(group: int, *, stamp: int = 1) -> GroupKey:
    return GroupKey("shard.parquet", stamp, group, "sha256:" + "0" * 64, "<u2")


def rows(tokens: int) -> Rows:
    return Rows(np.zeros(tokens, "<u2"), np.array([tokens]))


def test_the_least_recently_used_leave_first() -> None:
    cache = GroupCache(most_bytes=60)
    for group in range(3):
        cache.keep(key(group), rows(10))
    assert cache.get(key(0)) is not None
    cache.keep(key(3), rows(10))
    assert [key(group) in cache for group in range(4)] == [True, False, True, True]
    cache.keep(key(4), rows(25))
    assert [key(group) in cache for group in range(5)] == [False, False, False, False, True]


def test_what_is_larger_than_all_is_not_kept() -> None:
    cache = GroupCache(most_bytes=20)
    cache.keep(key(0), rows(10))
    cache.keep(key(1), rows(11))
    assert key(0) in cache
    assert cache.get(key(1)) is None


def test_keeping_again_takes_no_room() -> None:
    cache = GroupCache(most_bytes=40)
    kept = rows(10)
    cache.keep(key(0), kept)
    for _ in range(5):
        cache.keep(key(1), rows(10))
    assert cache.get(key(0)) is kept


def test_a_shard_that_was_written_anew_is_another_one() -> None:
    cache = GroupCache(most_bytes=40)
    cache.keep(key(0, stamp=1), rows(10))
    assert cache.get(key(0, stamp=2)) is None


def test_clearing_lets_all_go() -> None:
    cache = GroupCache(most_bytes=40)
    cache.keep(key(0), rows(10))
    cache.clear()
    assert key(0) not in cache
    cache.keep(key(1), rows(20))
    assert key(1) in cache
