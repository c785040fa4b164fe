"""What an account can do with a file: said from modes and owners, and done by the kernel."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from govray.storage.reach import BOTH, Account, Ownership, Reach, reach, reached_below
from tests.support.accounts import JOBS, OPERATOR, SERVICE, as_account, need_root

OTHERS = Account(JOBS, frozenset({JOBS}))

owners = st.tuples(
    st.integers(0, 0o777).map(lambda bits: bits | 0o111 & bits << 1) | st.integers(0, 0o1777),
    st.sampled_from([0, OPERATOR, JOBS]),
    st.sampled_from([0, SERVICE, JOBS]),
)
"""Mode, user and group of a folder or file; among them many that can be searched."""
members = st.sampled_from([OTHERS, Account(JOBS, frozenset({JOBS, SERVICE}))])
Owner = tuple[int, int, int]
OPEN: Owner = (0o755, 0, 0)


@contextmanager
def reachable() -> Iterator[Path]:
    need_root()
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def top() -> Iterator[Path]:
    with reachable() as folder:
        yield folder


def made(path: Path, owner: Owner) -> None:
    mode, uid, gid = owner
    os.chown(path, uid, gid, follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(mode)


def done(ways: list[Path], file: Path) -> int:
    """What this process can do, with all means: read the file, write it or something else there.
    ``ways``: what leads to it."""
    for each in ways:
        with suppress(OSError):
            each.chmod(0o777)
    found = 0
    with suppress(OSError):
        file.read_bytes()
        found |= Reach.READ.value
    with suppress(OSError):
        os.close(os.open(file, os.O_WRONLY))
        found |= Reach.WRITE.value
    for each in ways:
        with suppress(OSError):
            each.rename(each.with_name("away"))
            found |= Reach.WRITE.value
            break
    return found


@given(
    folder=owners,
    below=owners,
    file=owners,
    link=st.none() | owners,
    far=st.booleans(),
    who=members,
)
@example(folder=(0o1777, 0, 0), below=OPEN, file=OPEN, link=None, far=False, who=OTHERS)
@example(folder=(0o777, 0, 0), below=OPEN, file=(0o600, 0, 0), link=None, far=False, who=OTHERS)
@example(folder=OPEN, below=(0o700, JOBS, 0), file=(0o600, 0, 0), link=None, far=False, who=OTHERS)
@example(folder=OPEN, below=OPEN, file=(0o600, 0, 0), link=(0o777, 0, 0), far=True, who=OTHERS)
def test_the_kernel_allows_what_is_said_and_no_more(
    folder: Owner,
    below: Owner,
    file: Owner,
    link: Owner | None,
    far: bool,
    who: Account,
) -> None:
    """Over a link in a folder of its own, too."""
    with reachable() as root:
        ways = [Path(root, "a"), Path(root, "a/b"), Path(root, "a/b/file")]
        ways[1].mkdir(parents=True)
        ways[2].write_text("s")
        path = ways[2]
        if link is not None:
            links = [Path(root, "l"), Path(root, "l/b")]
            links[0].mkdir()
            links[1].symlink_to(ways[1] if far else "../a/b")
            made(links[0], link)
            ways, path = [*links, *ways], links[1] / "file"
        for each, owner in zip(reversed(ways[-3:]), (file, below, folder), strict=True):
            made(each, owner)

        said = reach(path, who)

        assert as_account(who, lambda: done(ways, ways[-1])) == said.value


def test_what_is_missing_counts_by_who_could_make_it(top: Path) -> None:
    made(top, (0o1777, 0, 0))
    assert reach(top / "absent", OTHERS) is Reach.WRITE
    made(top, (0o755, 0, 0))
    assert reach(top / "absent" / "key", OTHERS) is Reach.NOTHING


def test_an_access_list_counts_as_what_it_can_give_at_most(top: Path) -> None:
    (file := top / "key").write_text("s")
    file.chmod(0o600)
    entries = [(1, 6, -1), (2, 4, JOBS), (4, 0, -1), (16, 4, -1), (32, 0, -1)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)
    assert reach(file, OTHERS) is Reach.NOTHING

    try:
        os.setxattr(file, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"no access lists on this file system: {error.strerror}")

    assert reach(file, OTHERS) is Reach.READ
    assert as_account(OTHERS, lambda: done([], file)) == Reach.READ.value


def test_where_this_process_may_not_look_and_the_account_may_counts_as_both(top: Path) -> None:
    (shut := top / "shut").mkdir()
    (shut / "key").write_text("s")
    made(shut, (0o710, 0, JOBS))
    looks = Account(OPERATOR, frozenset({OPERATOR}))

    assert as_account(looks, lambda: reach(shut / "key", OTHERS).value) == BOTH.value
    made(shut, (0o700, 0, JOBS))
    assert as_account(looks, lambda: reach(shut / "key", OTHERS).value) == Reach.NOTHING.value


def test_a_folder_is_looked_into_as_far_as_was_said(top: Path) -> None:
    (shard := top / "prepared" / "part").mkdir(parents=True)
    (shard / "rows").write_text("s")
    made(shard / "rows", (0o644, JOBS, JOBS))

    found = {path.name: what for path, what in reached_below(top / "prepared", OTHERS, 9)}

    assert found == {"prepared": Reach.READ, "part": Reach.READ, "rows": BOTH}
    assert len([*reached_below(top / "prepared", OTHERS, 2)]) == 2


@given(owner=owners, listed=st.booleans(), who=members)
def test_root_and_the_owner_can_do_everything(owner: Owner, listed: bool, who: Account) -> None:
    mode, _, gid = owner
    entry = Ownership(mode, who.uid, gid, listed)
    assert entry.rights(who) == entry.rights(Account(0, frozenset({0}))) == 7


def test_an_account_is_a_name_or_numbers() -> None:
    assert Account.named(f"{JOBS}:{SERVICE}") == Account(JOBS, frozenset({SERVICE}))
    assert Account.named("root") == Account.named("0")
    assert Account.named("root").uid == 0
    with pytest.raises(KeyError):
        Account.named("no-such-account")
