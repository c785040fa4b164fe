"""Unix accounts of a test: numbers that nobody has, and processes under them. Root makes them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from govray.storage.reach import Account
from tests.support.tree import ROOT

OPERATOR, SERVICE, JOBS, PERSON = 64_101, 64_102, 64_103, 64_104
"""Three accounts, and that of somebody who submits. Each has a group of its number, and no machine
has a user of it."""


def need_root() -> None:
    """Skip a test that makes accounts, loudly; CI is root."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("CI makes Unix accounts: run it as root")
        pytest.skip("ONLY ROOT MAKES UNIX ACCOUNTS: nothing shows here that they are kept apart")


@dataclass(frozen=True)
class Accounts:
    """A folder that every account reaches, and programs under each of them."""

    folder: Path

    def own(self, path: Path, uid: int, mode: int, data: str | None = None) -> Path:
        """Make a folder, or a file with ``data``, of an account."""
        if data is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_text(data)
        os.chown(path, uid, uid)
        path.chmod(mode)
        return path

    def start(
        self,
        uid: int,
        words: Sequence[str | Path],
        *,
        cwd: Path,
        log: int | IO[str] = subprocess.PIPE,
        **env: str,
    ) -> subprocess.Popen[str]:
        """Start a program under an account, with the environment of a unit. ``log``: its errors."""
        return subprocess.Popen(
            [*under(uid), *map(str, words)],
            cwd=cwd,
            env=environment(cwd) | env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def run(
        self, uid: int, words: Sequence[str | Path], *, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program under an account to its end."""
        with self.start(uid, words, cwd=cwd or self.folder, **env) as process:
            said, complained = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, said, complained)


def under(uid: int) -> list[str]:
    """What runs a program under an account, and ends it with the test."""
    return [
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"),
        *("--inh-caps=-all", "--bounding-set=-all", "--pdeathsig", "KILL"),
    ]


def environment(home: Path) -> dict[str, str]:
    """What a unit of systemd gives a program: the path with the programs of this environment."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


@contextmanager
def accounts() -> Iterator[Accounts]:
    """Accounts that can run this environment's programs, and a folder that all of them reach."""
    need_root()
    folder = Path(tempfile.mkdtemp(prefix="accounts-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        with _open_to_all(Path(sys.base_prefix), Path(sys.prefix), ROOT):
            yield Accounts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _open_to_all(*paths: Path) -> Iterator[None]:
    """Let every account come as far as these folders, meanwhile. CI's machine is thrown away."""
    above = {each for path in paths for each in (path, *path.parents)}
    held = os.open(paths[0], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # whoever came second would find them open, and then shut
    modes = {each: each.stat().st_mode & 0o7777 for each in above}
    shut = {each: mode for each, mode in modes.items() if not mode & 0o001}
    try:
        if shut and not os.environ.get("CI"):
            pytest.skip(f"NO OTHER ACCOUNT REACHES {', '.join(map(str, shut))}: chmod o+x")
        for path, mode in shut.items():
            path.chmod(mode | 0o011)
        yield
    finally:
        for path, mode in shut.items():
            path.chmod(mode)
        os.close(held)


def as_account(account: Account, work: Callable[[], int]) -> int:
    """What ``work`` answers, a small number, in a fork that belongs to the account."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgroups(sorted(account.gids))
            os.setresgid(*[min(account.gids)] * 3)
            os.setresuid(*[account.uid] * 3)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != 255
    return code
