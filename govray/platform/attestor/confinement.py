"""A process that gives up what reading hostile files does not need: keys, network, memory, time.

The parser calls `confine` before it opens a byte of a run. From then on the kernel refuses it every
file but those named, every connection, and more than its share of memory, time and open files. It
runs govray's own code up to there, so it can be trusted to ask.

`keep_secret` is for the process that has the key: no other process of its account may look into its
memory, and it leaves no core.

Sources: landlock(7), Landlock ABI 1 to 6; prctl(2), PR_SET_NO_NEW_PRIVS and PR_SET_DUMPABLE;
setrlimit(2); unshare(2).
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from govray.errors import Refused

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION = 1
_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << n for n in range(4))
_ALL_OF_ABI_1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract sockets, signals

_NO_NEW_PRIVS, _DUMPABLE = 38, 4
_NEW_USER, _NEW_NET = 0x10000000, 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class ParserLimits:
    """What a confined process may use.

    Attributes:
        memory: Bytes of its data.
        seconds: Of processor time.
        files: Open at once.
        written: Bytes of one file.
    """

    memory: int = 4 << 30
    seconds: int = 3600
    files: int = 256
    written: int = 1 << 40


def confine(*, read: Sequence[Path], write: Sequence[Path], limits: ParserLimits) -> None:
    """Leave this process nothing but these folders, for good.

    Args:
        read: Files and folders that may be read, with all below them.
        write: Files below them may be read, made, changed and removed.

    Raises:
        Refused: The kernel has no Landlock. Nothing is read then.
    """
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_FSIZE, limits.written),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    _leave_network()
    _restrict(read, write)


def keep_secret() -> None:
    """Let no other process of this account read this one's memory, now or from a core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _check(_libc.prctl(_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def _leave_network() -> None:
    """A network of its own, with nobody in it. Landlock refuses TCP where this is not allowed."""
    _libc.unshare(_NEW_USER | _NEW_NET)


def _restrict(read: Sequence[Path], write: Sequence[Path]) -> None:
    abi = _libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if abi < 1:
        raise Refused(
            "this kernel has no Landlock, so the parser could read the operator's key",
            where="attestor",
            do="Run the attestor on Linux 5.13 or later, with landlock among its security modules",
        )
    handled = _ALL_OF_ABI_1
    handled |= _REFER if abi >= 2 else 0
    handled |= _TRUNCATE if abi >= 3 else 0
    handled |= _IOCTL if abi >= 5 else 0
    attributes = struct.pack("=QQQ", handled, _TCP if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)[
        : 8 if abi < 4 else 16 if abi < 6 else 24
    ]
    rules = _libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    _check(rules, "landlock_create_ruleset")
    try:
        for place in read:
            _allow(rules, place, _READ_FILE | (_READ_DIR if place.is_dir() else 0))
        for folder in write:
            _allow(rules, folder, handled & ~_EXECUTE)
        _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
        _check(_libc.syscall(_RESTRICT, rules, 0), "landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, folder: Path, access: int) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", access, descriptor)
        _check(_libc.syscall(_ADD, rules, _BENEATH, rule, 0), "landlock_add_rule")
    finally:
        os.close(descriptor)


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
