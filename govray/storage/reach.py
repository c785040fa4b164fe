"""What another account can do with a file, by the modes and owners of all that leads to it.

A file is as safe as the folders above it. An account that may write into one of them puts another
file in its place, and the owner of one may change its mode. Of a path with links count the place of
each link, and the file itself by its own way.

Seen are modes, owners, groups, and that there is an access control list of POSIX. Such a list gives
a named account the bits of the group at most, so these count for everybody then. Not seen are
capabilities, lists of NFSv4, read-only mounts, and what security modules refuse.

Sources: path_resolution(7), inode(7), acl(5), rename(2) for the sticky bit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Flag
from errno import ELOOP
from pathlib import Path

_READ, _WRITE, _SEARCH = 4, 2, 1
_MOST_LINKS = 40
_ACL = "system.posix_acl_access"


class Reach(Flag):
    """What an account can do. `WRITE` is also to put something else in its place."""

    NOTHING = 0
    READ = 1
    WRITE = 2


BOTH = Reach.READ | Reach.WRITE


@dataclass(frozen=True)
class Account:
    """Of whom the kernel asks: a user's number, with the groups that its processes are in."""

    uid: int
    gids: frozenset[int]

    @classmethod
    def own(cls) -> Account:
        """This process's."""
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))

    @classmethod
    def named(cls, name: str) -> Account:
        """That of a name, or of UID:GID where no name is known. Raises ``KeyError``: it is
        unknown."""
        import pwd  # of Unix alone

        uid, _, gid = name.partition(":")
        if uid.isdecimal() and gid.isdecimal():
            return cls(int(uid), frozenset({int(gid)}))
        known = pwd.getpwuid(int(uid)) if name.isdecimal() else pwd.getpwnam(name)
        return cls(known.pw_uid, frozenset(os.getgrouplist(known.pw_name, known.pw_gid)))


@dataclass(frozen=True)
class Ownership:
    """Mode and owners of a file, folder or link. ``listed``: it has an access control list."""

    mode: int
    uid: int
    gid: int
    listed: bool = False

    def rights(self, account: Account) -> int:
        """What the account may do, in the bits of a mode, at once or after changing the mode."""
        if account.uid in (0, self.uid):
            return _READ | _WRITE | _SEARCH
        group = self.mode >> 3 & 7
        found = group if self.gid in account.gids else self.mode & 7
        return found | group if self.listed else found


def reach(path: Path, account: Account) -> Reach:
    """What ``account`` can do with what is at ``path``, or could be put there.

    Where this process may not look and the account may, it counts as both.
    """
    try:
        return _reach(path, account)
    except OSError:
        return BOTH


def _reach(path: Path, account: Account) -> Reach:
    here, links = Path(path.absolute().anchor), 0
    left = [*reversed(path.absolute().parts[1:])]
    found = Reach.NOTHING
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            is_link = (here / name).is_symlink()
        except PermissionError:
            is_link = False  # what this process doesn't see is judged by the folder around it
        if not is_link:
            here /= name
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(ELOOP, os.strerror(ELOOP))
        found |= _along(here / name, account) & Reach.WRITE
        target = Path(os.readlink(here / name))
        here = Path(target.anchor) if target.is_absolute() else here
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return found | _along(here, account)


def _along(path: Path, account: Account) -> Reach:
    """What the account can do on the way to ``path``, which has no link in it, and there."""
    here = Path(path.anchor)
    folder, found = _entry(here), Reach.NOTHING
    for name in path.parts[1:]:
        if not folder.rights(account) & _SEARCH:
            return found
        here /= name
        try:
            entry = _entry(here)
        except FileNotFoundError:  # what is not there could be made
            return found | (Reach.WRITE if folder.rights(account) & _WRITE else Reach.NOTHING)
        if _replaces(folder, entry, account):
            found |= Reach.WRITE
        folder = entry
    if stat.S_ISLNK(folder.mode):
        return found
    rights = folder.rights(account)
    found |= Reach.READ if rights & _READ else Reach.NOTHING
    return found | (Reach.WRITE if rights & _WRITE else Reach.NOTHING)


def reached_below(folder: Path, account: Account, most: int) -> Iterator[tuple[Path, Reach]]:
    """``folder`` and what lies below it, ``most`` entries at most, and what the account can do."""
    left = [folder]
    while left and most > 0:
        path = left.pop()
        most -= 1
        yield path, reach(path, account)
        if os.path.isdir(path) and not os.path.islink(path):  # Path's own raise where it is shut
            with suppress(OSError):
                left += path.iterdir()


def _replaces(folder: Ownership, entry: Ownership, account: Account) -> bool:
    """Whether the account can take ``entry`` out of ``folder``, and put another there."""
    if not folder.rights(account) & _WRITE:
        return False
    kept = folder.mode & stat.S_ISVTX
    return not kept or account.uid in (0, folder.uid, entry.uid)


def _entry(path: Path) -> Ownership:
    found = path.lstat()
    listed = False
    if hasattr(os, "listxattr") and not stat.S_ISLNK(found.st_mode):
        with suppress(OSError):
            listed = _ACL in os.listxattr(path)
    return Ownership(found.st_mode, found.st_uid, found.st_gid, listed)
