"""A process that gives up what reading hostile files does not need: keys, network, memory, time.

The parser calls `confine` before it opens a byte of a run. From then on the kernel refuses it every
file but those named, every socket and every other process. Memory, time and open files are bounded.
It runs govray's own code up to there, so it can be trusted to ask.

Only the calling thread is bound, and what it starts. So a process with threads is refused.

Sources: landlock(7), Landlock ABI 1 to 6; seccomp(2) and Linux's ``Documentation/userspace-api/
seccomp_filter.rst``; prctl(2), PR_SET_NO_NEW_PRIVS and PR_SET_PDEATHSIG; setrlimit(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from govray.errors import Refused
from govray.governance.signers.kept_memory import prctl

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION = 1
_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << n for n in range(4))
_ALL_OF_ABI_1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract sockets, signals

_NO_NEW_PRIVS, _DEATH_SIGNAL, _SECCOMP, _FILTER = 38, 1, 22, 2

_ARCHITECTURES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        *(56, 435),
        # sockets; fork, vfork, execve; signals; modes, owners, extended attributes; ptrace and what
        # is like it; mounts, namespaces, keys, bpf, files in memory, io_uring
        (
            *(41, 42, 43, 44, 45, 46, 47, 49, 50, 53, 57, 58, 59, 322, 62, 200, 424, 434),
            *(90, 91, 268, 452, 92, 93, 94, 260, 188, 189, 190, 101, 310, 311, 298),
            *(165, 272, 308, 248, 249, 250, 321, 319, 425),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        *(220, 435),
        (
            *(198, 199, 200, 201, 202, 203, 206, 207, 211, 212, 221, 281, 129, 130, 424, 434),
            *(52, 53, 452, 54, 55, 5, 6, 7, 117, 270, 271, 241),
            *(40, 97, 268, 217, 218, 219, 280, 279, 425),
        ),
    ),
}
"""Machine → its number in audit(7), ``clone``, ``clone3``, and calls that reading needs none of."""
_LOAD, _IS, _BITS, _ANSWER = 0x20, 0x15, 0x45, 0x06  # BPF: ld abs, jeq, jset, ret
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
_THREAD = 0x00010000  # CLONE_THREAD
_OTHER_ABI = 0x40000000  # x32's calls

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

    @property
    def of_a_run(self) -> float:
        """Seconds by the clock for all that reads one run, in all tries: more than it takes."""
        return 2.0 * self.seconds + 60


def confine(*, read: Sequence[Path], write: Sequence[Path], limits: ParserLimits) -> None:
    """Leave this process nothing but these folders, for good.

    Args:
        read: Files and folders that may be read, with all below them.
        write: Files below them may be read, made, changed and removed.

    Raises:
        Refused: The kernel can't do it, or the process has threads. Nothing is read then.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise Refused("the parser has threads, which would keep their rights", where="attestor")
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_FSIZE, limits.written),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    # The first ends it by SIGXCPU, which says why. The second is for what ignores that.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 5))
    _restrict(read, write)
    _refuse_calls()


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends."""
    prctl(_DEATH_SIGNAL, signal.SIGKILL, "PR_SET_PDEATHSIG")


def _refuse_calls() -> None:
    """Refuse system calls that reach beyond this process: no socket, no other process, no modes."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise Refused(f"the parser cannot be confined on {machine}", where="attestor")
    number, clone, clone3, refused = _ARCHITECTURES[machine]
    program = [
        _op(_LOAD, 4),
        _op(_IS, number, 1, 0),
        _op(_ANSWER, _EPERM),
        _op(_LOAD, 0),
        _op(_BITS, _OTHER_ABI, 0, 1),
        _op(_ANSWER, _EPERM),
        _op(_IS, clone3, 0, 1),
        _op(_ANSWER, _ENOSYS),  # so libc tries clone, whose flags a filter can read
    ]
    for each in refused:
        program += [_op(_IS, each, 0, 1), _op(_ANSWER, _EPERM)]
    program += [
        _op(_IS, clone, 0, 3),
        _op(_LOAD, 16),
        _op(_BITS, _THREAD, 1, 0),
        _op(_ANSWER, _EPERM),
        _op(_ANSWER, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(program))
    filter = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    prctl(_SECCOMP, _FILTER, "PR_SET_SECCOMP", ctypes.addressof(filter))


def _op(code: int, value: int, if_so: int = 0, else_: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, else_, value)


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
        prctl(_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")
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
