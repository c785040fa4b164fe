"""docs/cluster.md, block by block: two machines, joined by a cable, and a team of three.

Each machine has its own accounts, processes and ports, and both one share. Systemd is not their
first process: of ``systemctl`` the test reads which units start, runs these as they stand, and
starts again what a unit says it may. Units' restrictions of files (``ProtectSystem``), and the
tunnel from a laptop, are not shown: Eve and Quinn are accounts of the head.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.databases import BINARIES
from tests.support.machine import PATIENCE_S, Machine, Running, Unit, cable, machine
from tests.support.page_commands import section
from tests.support.ray_nodes import agent_ports
from tests.support.tree import ROOT

pytestmark = [pytest.mark.story, pytest.mark.timeout(1800)]

GUIDE = (ROOT / "docs/cluster.md").read_text()
BLOCKS = re.findall(r"^```bash\n# ([^\n]*)\n(.*?)^```", GUIDE, re.M | re.S)
"""Place, and commands."""

DATABASE = """
for each in /tmp/db /var/run/postgresql; do install -d -o postgres $each; done
as() { (cd /tmp && setpriv --reuid=postgres --regid=postgres --clear-groups "$@" > /tmp/db.log); }
as "$1/initdb" -D /tmp/db/data -A peer --auth-host=scram-sha-256 -E UTF8 --no-sync
as "$1/pg_ctl" -D /tmp/db/data -w -l /tmp/db/log start
"""
GIVEN = """
for each in eve quinn; do
  install -o $each -m 600 $each.token policies/root.json /etc/govray/first.yaml /home/$each
done
"""
JOINED = "Ray runtime started"
KEPT = "{ export -p; declare -f; echo \"umask $(umask); cd '$PWD'\"; } > $HOME/.shell"
READ = """
from ray._private.runtime_env.agent import runtime_env_agent
from ray.dashboard import agent, dashboard
from ray.dashboard.utils import DashboardAgentModule, get_all_modules
get_all_modules(DashboardAgentModule)
"""
"""Has a machine read what Ray's raylet waits for, for 15 seconds and no more."""
PATIENT = {
    "RAY_agent_register_timeout_ms": "200000",
    "RAY_health_check_failure_threshold": "120",
    "RAY_raylet_start_wait_time_s": "60",
}
"""What a busy machine needs of Ray, beside what a unit says, and ports of its agents."""


@dataclass
class Started(Running):
    """Units that run on a machine, and the shells of people there."""

    units: dict[str, Unit] = field(default_factory=dict)

    def unit(self, name: str) -> None:
        """Start one; of those that end, see it end well."""
        file, at, place = name.partition("@")
        read = Unit.read(file + at, self.on, "/" + place.replace("-", "/"))
        self.units[file + at] = self.units[name] = read
        if name.startswith(("govray-head", "govray-worker")):
            read.env.update(PATIENT)
            read.start.extend(agent_ports())
        if read.restarts:
            self.ended(name)
            self.until(name, self.shows(name))
        else:
            self.once(name, read.start)

    def shows(self, name: str) -> Callable[[], bool]:
        """What a person waits for."""
        return {
            "govray-service": self.answers("http://127.0.0.1:8585/v1/ready"),
            "govray-attestor": lambda: "8686" in self.said(name),
            "govray-head": lambda: JOINED in self.said(name),
            "govray-worker": lambda: JOINED in self.said(name),
            "govray-alerts": lambda: self.said(name) != "",
        }.get(name, lambda: True)

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

    def types(self, user: str, commands: str, code: int = 0) -> str:
        """What a person's shell there says, which remembers folder, variables and functions."""
        home = "/root" if user == "root" else f"/home/{user}"
        path = "/opt/govray/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        text = f"systemctl() {{ :; }}; cd; [ ! -e .shell ] || . ./.shell\n{commands}\n{KEPT}"
        words = ["bash", "-euo", "pipefail", "-c", text]
        env = {"PATH": path, "HOME": home, "LANG": "C.UTF-8"}
        done = subprocess.run(
            self.on.words(user, words, env), capture_output=True, text=True, timeout=900
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{commands}\n{said}"
        assert "Traceback" not in said
        return said


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, list[tuple[Started, str]]]]:
    """Where blocks run, by the words of their first line, and as whom."""
    for program in ("systemd-sysusers", "systemd-tmpfiles", "runuser", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"NO {program} HERE: nothing shows here that the guide holds")
    if not BINARIES:
        pytest.skip("no PostgreSQL here")
    with ExitStack() as ending:
        shared = Path(ending.enter_context(TemporaryDirectory(dir="/var/tmp")))
        shared.chmod(0o755)
        both = [ending.enter_context(machine(shared=shared)) for _ in range(2)]
        cable(*both)
        head, worker = (Started(each, tmp_path / str(n)) for n, each in enumerate(both))
        for each in (head, worker):
            each.folder.mkdir()
            each.on.run('/opt/govray/bin/python -c "$1"', READ)
        prepared(head.on)
        yield {
            "head, as root": [(head, "root")],
            "worker, as root": [(worker, "root")],
            "head and worker, as root": [(head, "root"), (worker, "root")],
            "Eve": [(head, "eve")],
            "Quinn": [(head, "quinn")],
        }


def prepared(head: Machine) -> None:
    """What the guide says that you have: a database. And who works there, without rights."""
    head.run(DATABASE, str(BINARIES[-1]))
    head.run("for each in eve quinn; do useradd -m $each; done")


def test_the_guide_leads_to_two_machines_and_a_team(
    places: dict[str, list[tuple[Started, str]]],
) -> None:
    [(head, root)] = places["head, as root"]
    [(worker, _)] = places["worker, as root"]
    for number in "134":
        head.types(root, section("docs/tutorial.md", number))
    said: dict[str, str] = {}
    for where, commands in BLOCKS:
        if where == "Eve" and where not in said:
            head.types(root, GIVEN)
        place, _, refused = where.partition(": ")
        for there, user in places[place]:
            told = there.types(user, commands, 1 if refused else 0)
            said[where] = said.get(where, "") + told
            for units in re.findall(r"^systemctl .*? (govray-.*)", commands, re.M):
                for each in units.split():
                    there.unit(each)
    head.unit("govray-alerts")
    assert len(re.findall(r"^ 1 node_", said["head, as root"], re.M)) == 2
    assert len(re.findall(r"^VERIFIED model ", said["Quinn"], re.M)) == 1
    assert "submitted by eve, project vision" in said["Quinn"]
    assert "for admin and engineer, not member" in said["Quinn: refused"]
    assert "not the scope admin" in said["Eve: refused"]
    assert "operator.pem: Permission denied" in said["head, as root: refused"]
    assert head.on.run("stat -c %U /srv/govray/models/first-*").split() == ["govray-operator"]
    units = {each.stem for each in (ROOT / "deploy/on-premises").glob("*.service")}
    assert {*head.units, *worker.units} >= units
