"""Each unit of ``deploy/on-premises``, run as it stands: its account, its variables, its command.

Systemd is not the first process here. The test starts again what a unit says it may, and a unit's
restrictions of files (``ProtectSystem`` and so on) are not shown.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.support.databases import BINARIES
from tests.support.deployment import Deployment
from tests.support.machine import Machine, Unit, machine
from tests.support.tree import ROOT

pytestmark = pytest.mark.story

PATIENCE_S = 240.0
SECRET = "5a" * 20
SECTION = {
    "jobs_account": "ray",
    "attestor": {
        "url": "http://127.0.0.1:8686",
        "token_file": "/etc/govray/service/attestor-token",
        "settings_file": "/etc/govray/attestor.yaml",
    },
}
"""What docs/attestor.md lets the queue's file say where there is an attestor."""


@dataclass
class Started:
    """Units that run, and where each one's words go."""

    on: Machine
    folder: Path
    units: dict[str, Unit] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def said(self, unit: str) -> str:
        return (self.folder / f"{unit}.log").read_text()

    def start(self, name: str, file: str = "") -> None:
        self.units[name] = Unit.read(name, self.on, file)
        self._run(name)

    def _run(self, name: str) -> None:
        unit = self.units[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            if unit.before:
                words = self.on.words(unit.user, unit.before, unit.env, unit.umask)
                done = subprocess.run(words, stdout=log, stderr=log, timeout=PATIENCE_S)
                assert done.returncode == 0, self.said(name)
            words = self.on.words(unit.user, unit.start, unit.env, unit.umask)
            self.running[name] = subprocess.Popen(words, stdout=log, stderr=log)

    def until(self, name: str, found: Callable[[], bool]) -> None:
        """Wait for what shows that a unit has started."""
        end = time.monotonic() + PATIENCE_S
        while not found():
            for each, process in [*self.running.items()]:
                if process.poll() is not None:  # as systemd would, if the unit lets it
                    assert self.units[each].restarts, self.said(each)
                    self._run(each)
            assert time.monotonic() < end, f"{name} did not start: {self.said(name)}"
            time.sleep(0.5)

    def answers(self, url: str, status: int = 200) -> Callable[[], bool]:
        asked = f"curl -s -o /dev/null -w '%{{http_code}}' {url} || true"
        return lambda: self.on.run(asked).strip() == str(status)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A machine with the files that the units read, whose database answers."""
    if not BINARIES:
        pytest.skip("no PostgreSQL here")
    folder = tmp_path_factory.mktemp("units")
    made = Deployment(folder / "made")
    with machine() as on, ExitStack():
        found = Started(on, folder)

        def put(path: str, owner: str, mode: str, text: str) -> None:
            script = 'printf %s "$4" > "$1"; chown "$2:" "$1"; chmod "$3" "$1"'
            on.run(script, path, owner, mode, text)

        queue = yaml.safe_load((ROOT / "deploy/queue.yaml").read_text()) | SECTION
        put("/etc/govray/queue.yaml", "root", "0644", yaml.safe_dump(queue))
        put(
            "/etc/govray/attestor.yaml", "root", "0644", (ROOT / "deploy/attestor.yaml").read_text()
        )
        put("/etc/govray/root.json", "root", "0644", made.root.read_text())
        put("/etc/govray/node", "root", "0644", "RAY_HEAD_ADDRESS=127.0.0.1:6379\n")
        put("/etc/govray/operator/operator.pem", "govray-operator", "0600", made.key.read_text())
        for owner in ("operator", "service"):
            put(f"/etc/govray/{owner}/attestor-token", f"govray-{owner}", "0600", SECRET)
        for owner in ("ray", "govray-service"):
            part = owner.removeprefix("govray-")
            put(f"/etc/govray/{part}/ray-token", owner, "0600", SECRET)
        put("/etc/govray/service/pgpass", "govray-service", "0600", f"db:5432:*:govray:{SECRET}\n")
        put("/tmp/password", "nobody", "0600", SECRET)
        on.run(
            'mkdir /tmp/db && chown nobody /tmp/db && cd /tmp && setpriv --reuid=nobody'
            ' --clear-groups "$1/initdb" -D /tmp/db/data -U govray -A scram-sha-256 -E UTF8'
            ' --pwfile=/tmp/password --no-sync > /dev/null; setpriv --reuid=nobody --clear-groups'
            ' "$1/pg_ctl" -D /tmp/db/data -w -o "-c unix_socket_directories=/tmp" -l /tmp/db/log'
            ' start > /dev/null; PGPASSWORD="$2" "$1/createdb" -h db -U govray govray',
            str(BINARIES[-1]), SECRET,
        )  # fmt: skip
        yield found


def test_every_unit_starts_as_it_stands(here: Started) -> None:
    units = {each.stem for each in (ROOT / "deploy/on-premises").glob("*.service")}
    service = Unit.read("govray-service", here.on)
    upgrade = ["/opt/govray/bin/govray", "store", "upgrade"]
    subprocess.run(here.on.words(service.user, upgrade, service.env), check=True, timeout=120)

    here.start("govray-head")
    here.until("govray-head", here.answers("http://127.0.0.1:8265/api/version", 401))
    here.start("govray-worker")
    here.start("govray-attestor")
    here.until("govray-attestor", lambda: "8686" in here.said("govray-attestor"))
    here.start("govray-service")
    here.until("govray-service", here.answers("http://127.0.0.1:8585/v1/ready"))
    here.start("govray-queue")
    here.start("govray-alerts")
    asked = "SELECT count(*) FROM lease WHERE name = 'reconciler'"
    sql = f'PGPASSWORD={SECRET} psql -h db -U govray -Atc "{asked}" govray'
    here.until("govray-queue", lambda: here.on.run(sql).strip() == "1")
    here.until("govray-alerts", lambda: here.said("govray-alerts") != "")
    joined = "Ray runtime started"
    here.until("govray-worker", lambda: joined in here.said("govray-worker"))
    assert joined in here.said("govray-head")
    assert {*here.running, "govray-prepare@"} == units
