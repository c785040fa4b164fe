"""A machine of its own, for one test: this one's files, changed by nobody, and an own loopback.

It is a mount over this machine's files that keeps what is written, with its own processes, accounts
and ports. Root makes it. So units of systemd run as they stand, under the accounts that they name.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.tree import ROOT

MAKES = """
set -e
at=$(mktemp -d) && mount -t tmpfs machine "$at" && cd "$at" && ip link set lo up
over() {
  mkdir -p up$2 work$2 "$3"
  mount -t overlay machine -o "lowerdir=$1,upperdir=up$2,workdir=work$2" "$3"
}
over / 1 root
over "$TREE" 2 "root$TREE"
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount --rbind /sys root/sys
mount -t tmpfs -o mode=1777 machine root/tmp
echo "$at/root" && exec sleep infinity
"""


@dataclass(frozen=True)
class Machine:
    """The process that keeps it, and where its files are for who is inside."""

    pid: int
    root: str

    def words(
        self, user: str, words: Sequence[str], env: Mapping[str, str], umask: str = "0022"
    ) -> list[str]:
        """What runs a program there under an account, with these variables and no others."""
        apart = (
            ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"] if user != "root" else []
        )
        return [
            *("nsenter", "-t", str(self.pid), "-m", "-n", "-p", "chroot", self.root),
            *("env", "-i", *(f"{name}={value}" for name, value in env.items())),
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *apart),
            *("sh", "-c", f'umask {umask}; cd /; exec "$@"', "sh", *words),
        ]

    def run(self, script: str, *given: str, user: str = "root") -> str:
        """What a script of the shell says, which must end well."""
        path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(
            self.words(user, ["sh", "-ec", script, "sh", *given], path),
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def machine() -> Iterator[Machine]:
    """One whose accounts and folders are those of ``deploy/on-premises``, with this environment at
    ``/opt/govray``. All that runs there ends with it."""
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT MAKES MACHINES: nothing shows here that a unit starts")
    for program in ("nsenter", "systemd-sysusers", "systemd-tmpfiles"):
        if shutil.which(program) is None:
            pytest.skip(f"NO {program} HERE: nothing shows here that a unit starts")
    process = subprocess.Popen(
        ["unshare", "-m", "-n", "-p", "-f", "--kill-child", "bash", "-c", MAKES],
        env={**os.environ, "TREE": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        root = process.stdout.readline().strip()
        if not root:
            pytest.skip("NO MOUNTS HERE: nothing shows here that a unit starts")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        made = Machine(int(children), root)
        shut = [*Path(sys.prefix).parents, *Path(sys.base_prefix).parents, *ROOT.parents]
        made.run(
            'chmod o+x "$@"', *map(str, {*shut, ROOT, Path(sys.prefix), Path(sys.base_prefix)})
        )
        made.run(
            'systemd-sysusers "$1/sysusers.conf"; systemd-tmpfiles --create "$1/tmpfiles.conf";'
            'ln -s "$2" /opt/govray; echo "127.0.0.1 db" >> /etc/hosts',
            str(ROOT / "deploy/on-premises"), sys.prefix,
        )  # fmt: skip
        yield made
    finally:
        process.kill()
        process.communicate(timeout=60)


@dataclass(frozen=True)
class Unit:
    """A unit of ``deploy/on-premises``, as systemd reads it."""

    user: str
    umask: str
    env: dict[str, str]
    before: list[str]
    start: list[str]
    restarts: bool

    @classmethod
    def read(cls, name: str, machine: Machine, file: str = "") -> Unit:
        """``file``: what stands behind the @ of a template's name."""
        text = (ROOT / f"deploy/on-premises/{name}.service").read_text().replace("%f", file)
        variables = " ".join(re.findall(r"^Environment=(.*)$", text, re.M))
        read = configparser.ConfigParser(strict=False, interpolation=None)
        read.optionxform = str  # type: ignore[assignment, method-assign]
        read.read_string(text)
        section = read["Service"]
        env = dict(each.partition("=")[::2] for each in shlex.split(variables))
        if "EnvironmentFile" in section:
            lines = machine.run('cat "$1"', section["EnvironmentFile"]).split()
            env |= dict(line.partition("=")[::2] for line in lines)
        home = machine.run('getent passwd "$1" | cut -d: -f6', section["User"]).strip()

        def words(key: str) -> list[str]:
            given = shlex.split(section.get(key, ""))
            return [re.sub(r"\$\{(\w+)\}", lambda m: env[m[1]], each) for each in given]

        return cls(
            user=section["User"],
            umask=section["UMask"],
            env={**env, "HOME": home, "USER": section["User"], "LANG": "C.UTF-8"},
            before=words("ExecStartPre"),
            start=words("ExecStart"),
            restarts=section.get("Restart", "no") in ("always", "on-failure"),
        )
