"""A machine of its own, for one test: this one's files, changed by nobody, and an own loopback.

It is a mount over this machine's files that keeps what is written, with its own processes, accounts
and ports. Root makes it. So units of systemd run as they stand, under the accounts that they name.
What containers run does so too, under their users, with their variables and mounts.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.databases import BINARIES
from tests.support.tree import ROOT

PATIENCE_S = 600.0
SECRET = "5a" * 20
"""The database's password, and what else a test needs one for."""

MAKES = """
set -e
at=$(mktemp -d) && mount -t tmpfs machine "$at" && cd "$at" && ip link set lo up
over() {
  mkdir -p up$2 work$2 "$3"
  mount -t overlay machine -o "lowerdir=$1,upperdir=up$2,workdir=work$2" "$3"
}
over / 1 root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount --rbind /sys root/sys
mount -t tmpfs -o mode=1777 machine root/tmp
[ -z "$SHARED" ] || { mkdir -p root/shared && mount --bind "$SHARED" root/shared; }
over "$TREE" 2 "root$TREE"
over "$ENVIRONMENT" 3 "root$ENVIRONMENT"  # which may lie in this machine's /tmp
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

    def contained(self, container: Container, words: Sequence[str]) -> list[str]:
        """What runs a program as a container would, among this machine's files."""
        return [
            *("nsenter", "-t", str(self.pid), "-m", "-n", "-p", "unshare", "-m"),
            *("sh", "-ec", CONTAINS, "sh", self.root, container.user, container.folder),
            *("\n".join(" ".join(each) for each in container.mounts),),
            *("env", "-i", *(f"{name}={value}" for name, value in container.env.items()), *words),
        ]

    def put(self, path: str, owner: str, mode: str, text: str) -> None:
        """Write a file, for its owner and nobody's group."""
        script = (
            'mkdir -p "$(dirname "$1")"; printf %s "$4" > "$1"; chown "$2" "$1"; chmod "$3" "$1"'
        )
        self.run(script, path, owner, mode, text)

    def run(self, script: str, *given: str, user: str = "root") -> str:
        """What a script of the shell says, which must end well."""
        path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(
            self.words(user, ["sh", "-ec", script, "sh", *given], path),
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


CONTAINS = """
printf '%s\\n' "$4" | while read -r source target mode; do
  [ -n "$source" ] || continue
  source=$(chroot "$1" readlink -f "$source")
  target=$(chroot "$1" readlink -m "$target")
  mkdir -p "$1$(dirname "$target")"
  if [ -d "$1$source" ]; then mkdir -p "$1$target"; else : >> "$1$target"; fi
  mount --bind "$1$source" "$1$target"
  [ "$mode" != ro ] || mount -o remount,bind,ro "$1$target"
done
root=$1 user=$2 folder=$3
shift 4
exec chroot "$root" setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all \
  sh -c 'umask 0022; cd "$1"; shift; exec "$@"' sh "$folder" "$@"
"""
"""Makes a container's mounts, gives up root, and runs a program."""

IMAGE_ENV = dict(re.findall(r"(\w+)=(\S+)", "".join(
    re.findall(r"^ENV ((?:.*\\\n)*.*)$", (ROOT / "deploy/Containerfile").read_text(), re.M)
))) | {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
"""What the image's processes have, and Python's own image says of PATH."""


@dataclass(frozen=True)
class Container:
    """How a container runs. ``user``: a number, which is its group's too. ``mounts``: what is seen
    where, each maybe ``ro``. ``folder``: where it starts."""

    user: str
    mounts: Sequence[tuple[str, ...]] = ()
    env: Mapping[str, str] = field(default_factory=lambda: IMAGE_ENV)
    folder: str = "/home/ray"


def cable(one: Machine, other: Machine) -> None:
    """Between 10.0.0.1 and 10.0.0.2, by which each seeks all else, too."""
    ends = ["eth0", "type", "veth", "peer", "name", "eth0", "netns", str(other.pid)]
    inside = ["nsenter", "-t", str(one.pid), "-n"]
    subprocess.run([*inside, "ip", "link", "add", *ends], check=True, timeout=60)
    for number, each in enumerate((one, other), 1):
        set_up = 'ip addr add "$1/24" dev eth0; ip link set eth0 up; ip route add default dev eth0'
        each.run(set_up, f"10.0.0.{number}")


def image(on: Machine) -> None:
    """The machine's files as the Containerfile makes an image: its users and folders, its programs
    in /usr/local/bin, what it copies. The wheel is this environment."""
    text = (ROOT / "deploy/Containerfile").read_text()
    on.run('echo "127.0.0.1 db" >> /etc/hosts')
    on.run("sed -i -E '/^[^:]*:[^:]*:1[0-9]{3}:/d' /etc/passwd /etc/group")  # this machine's people
    on.run("\n".join(each for each in re.findall(r"^RUN (.*)$", text, re.M) if "pip" not in each))
    for folder in re.findall(r"^COPY (\w+) \./\1$", text, re.M):
        on.run('cp -r "$1" /home/ray/', str(ROOT / folder))
    for program in ("govray", "python", "ray"):
        script = f'#!/bin/sh\nexec /opt/govray/bin/{program} "$@"\n'
        on.put(f"/usr/local/bin/{program}", "root:root", "0755", script)


@contextmanager
def machine(
    makes: Callable[[Machine], None] = lambda _: None, *, shared: Path | None = None
) -> Iterator[Machine]:
    """One with what ``makes`` puts there, as `image` does, and this environment at ``/opt/govray``.
    ``shared``: the folder that it has at ``/shared``. All that runs there ends with it."""
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT MAKES MACHINES: nothing shows here that a unit starts")
    if shutil.which("nsenter") is None:
        pytest.skip("NO nsenter HERE: nothing shows here that a unit starts")
    process = subprocess.Popen(
        ["unshare", "-m", "-n", "-p", "-f", "--kill-child", "bash", "-c", MAKES],
        env={
            **os.environ, "TREE": str(ROOT), "ENVIRONMENT": sys.prefix,
            "SHARED": str(shared or ""),
        },
        stdout=subprocess.PIPE, text=True,
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
        made.run('ln -s "$1" /opt/govray', sys.prefix)
        makes(made)
        yield made
    finally:
        process.kill()
        process.communicate(timeout=60)


@dataclass
class Running:
    """Programs that run on a machine, and where each one's words go."""

    on: Machine
    folder: Path
    found: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def ends(self, name: str, container: Container, words: Sequence[str]) -> None:
        """Run a program that ends well."""
        with (self.folder / f"{name}.log").open("ab") as log:
            contained = self.on.contained(container, words)
            done = subprocess.run(contained, stdout=log, stderr=log, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{name} {words}: {self.said(name)}"

    def start(self, name: str, container: Container, words: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            contained = self.on.contained(container, words)
            self.found[name] = subprocess.Popen(contained, stdout=log, stderr=log)

    def until(self, name: str, found: Callable[[], bool]) -> None:
        """Wait for what shows that a program has started."""
        end = time.monotonic() + PATIENCE_S
        while not found():
            for each, process in [*self.found.items()]:
                if process.poll() is not None:
                    self.ended(each)
            assert time.monotonic() < end, f"{name} did not start: {self.said(name)}"
            time.sleep(0.5)

    def ended(self, name: str) -> None:
        """What follows where a program ends by itself."""
        raise AssertionError(f"{name} ended: {self.said(name)}")

    def answers(self, url: str, status: int = 200) -> Callable[[], bool]:
        asked = f"curl -sk -o /dev/null -w '%{{http_code}}' {url} || true"
        return lambda: self.on.run(asked).strip() == str(status)

    def database(self) -> None:
        """A database server, of a user govray with a password."""
        self.on.put("/tmp/password", "nobody", "0600", SECRET)
        self.on.run(
            'mkdir /tmp/db && chown nobody /tmp/db && cd /tmp && setpriv --reuid=nobody'
            ' --clear-groups "$1/initdb" -D /tmp/db/data -U govray -A scram-sha-256 -E UTF8'
            ' --pwfile=/tmp/password --no-sync > /dev/null; setpriv --reuid=nobody --clear-groups'
            ' "$1/pg_ctl" -D /tmp/db/data -w -o "-c unix_socket_directories=/tmp" -l /tmp/db/log'
            ' start > /dev/null; PGPASSWORD="$2" "$1/createdb" -h db -U govray govray',
            str(BINARIES[-1]), SECRET,
        )  # fmt: skip

    def sql(self, asked: str) -> str:
        script = 'PGPASSWORD="$1" psql -h db -U govray -Atc "$2" govray'
        return self.on.run(script, SECRET, asked).strip()

    def leased(self) -> bool:
        return self.sql("SELECT count(*) FROM lease WHERE name = 'reconciler'") == "1"


@dataclass(frozen=True)
class Unit:
    """A unit that a machine has, as systemd reads it."""

    user: str
    umask: str
    env: dict[str, str]
    before: list[str]
    start: list[str]
    restarts: bool

    @classmethod
    def read(cls, name: str, machine: Machine, file: str = "") -> Unit:
        """``file``: what stands behind the @ of a template's name."""
        text = machine.run(f"cat /etc/systemd/system/{name}.service").replace("%f", file)
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
