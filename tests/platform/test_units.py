"""Each unit of ``deploy/on-premises``, run as it stands: its account, its variables, its command.

Systemd is not the first process here. The test starts again what a unit says it may, and a unit's
restrictions of files (``ProtectSystem`` and so on) are not shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import yaml

from tests.support.databases import BINARIES
from tests.support.deployment import Deployment
from tests.support.machine import PATIENCE_S, SECRET, Running, Unit, machine, on_premises
from tests.support.tree import ROOT

pytestmark = pytest.mark.story

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
class Started(Running):
    """Units that run."""

    units: dict[str, Unit] = field(default_factory=dict)

    def unit(self, name: str, file: str = "") -> None:
        """Start one."""
        self.units[name] = Unit.read(name, self.on, file)
        self.ended(name)

    def once(self, name: str, words: list[str]) -> None:
        unit = self.units[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            given = self.on.words(unit.user, words, unit.env, unit.umask)
            done = subprocess.run(given, stdout=log, stderr=log, timeout=PATIENCE_S)
        assert done.returncode == 0, self.said(name)

    def ended(self, name: str) -> None:
        """As systemd would, if the unit lets it."""
        unit = self.units[name]
        assert unit.restarts, self.said(name)
        if unit.before:
            self.once(name, unit.before)
        with (self.folder / f"{name}.log").open("ab") as log:
            words = self.on.words(unit.user, unit.start, unit.env, unit.umask)
            self.found[name] = subprocess.Popen(words, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A machine with the files that the units read, whose database answers."""
    if not BINARIES:
        pytest.skip("no PostgreSQL here")
    folder = tmp_path_factory.mktemp("units")
    made = Deployment(folder / "made")
    with machine(on_premises) as on:
        found, put = Started(on, folder), on.put
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
        found.database()
        yield found


def test_every_unit_starts_as_it_stands(here: Started) -> None:
    units = {each.stem for each in (ROOT / "deploy/on-premises").glob("*.service")}
    service = Unit.read("govray-service", here.on)
    upgrade = ["/opt/govray/bin/govray", "store", "upgrade"]
    subprocess.run(here.on.words(service.user, upgrade, service.env), check=True, timeout=120)

    here.unit("govray-head")
    here.until("govray-head", here.answers("http://127.0.0.1:8265/api/version", 401))
    here.unit("govray-worker")
    here.unit("govray-attestor")
    here.until("govray-attestor", lambda: "8686" in here.said("govray-attestor"))
    here.unit("govray-service")
    here.until("govray-service", here.answers("http://127.0.0.1:8585/v1/ready"))
    here.unit("govray-queue")
    here.unit("govray-alerts")
    here.until("govray-queue", here.leased)
    here.until("govray-alerts", lambda: here.said("govray-alerts") != "")
    joined = "Ray runtime started"
    here.until("govray-worker", lambda: joined in here.said("govray-worker"))
    assert joined in here.said("govray-head")
    assert {*here.units, "govray-prepare@"} == units
