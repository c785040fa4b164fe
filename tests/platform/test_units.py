"""Each unit of ``deploy/on-premises``, run as it stands: its account, its variables, its command.

Systemd is not the first process here. The test starts again what a unit says it may, and a unit's
restrictions of files (``ProtectSystem`` and so on) are not shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
        """Start one; of those that end, see it end well."""
        self.units[name] = unit = Unit.read(name, self.on, file)
        if unit.restarts:
            self.ended(name)
        else:
            self.once(name, unit.start)

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
    with ExitStack() as ending:
        seen = ending.enter_context(TemporaryDirectory(dir="/var/tmp"))  # its /tmp is its own
        made = Deployment(Path(seen))
        on = ending.enter_context(machine(on_premises))
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
        # What a preparation reads, where its account may.
        on.run(
            'cp -r "$1" /srv/data; cp "$2" /srv/data/policy.json; chmod -R a+rX /srv/data; '
            'for secret in /srv/data/*/records.secret; do '
            'chown govray-operator "$secret"; chmod 600 "$secret"; done',
            str(made.corpora), str(made.policy),
        )  # fmt: skip
        experiment: Any = made.experiment(storage_path="/shared/runs")
        experiment["data"]["corpora"] = "/srv/data"
        experiment["governance"] |= {
            "policy": "/srv/data/policy.json", "trust_root": "/etc/govray/root.json",
        }  # fmt: skip
        put("/etc/govray/train.yaml", "root", "0644", yaml.safe_dump(experiment))
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

    here.unit("govray-prepare@", "/etc/govray/train.yaml")
    owned = here.on.run("stat -c %U /shared/runs/prepared/*").split()
    assert owned
    assert {*owned} == {"govray-operator"}  # jobs read them, and change nothing
    assert {*here.units} == units
