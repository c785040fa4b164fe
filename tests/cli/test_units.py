"""The units of a machine of one's own: each command as its account, in folders that ship."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from govray.cli import main
from govray.platform.store.database import open_store
from govray.storage.reach import Account
from tests.support.accounts import JOBS, OPERATOR, SERVICE, accounts, as_account
from tests.support.deployment import Deployment
from tests.support.tree import ROOT

FOLDER = ROOT / "deploy/on-premises"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
OURS = [name for name in UNITS if name not in ("govray-head.service", "govray-worker.service")]
UIDS = {"root": 0, "govray-operator": OPERATOR, "govray-service": SERVICE, "ray": JOBS}
RUNS = 64_104
"""The group of those who write runs."""
STORE = "postgresql+psycopg://govray@db/govray"
SHOWN = "/(?:etc|shared|srv|var/lib)/[a-z]"
"""How folders begin that the test has below one of its own."""


def settings(unit: str) -> dict[str, list[str]]:
    """What a unit says, by name: what stands there more than once adds up."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / unit).read_text().splitlines():
        name, equal, value = line.partition("=")
        if equal and not line.startswith(("#", "[")):
            found.setdefault(name, []).append(value)
    return found


def declared() -> dict[str, frozenset[str]]:
    """The accounts of sysusers.conf, with the groups that they are in."""
    rows = [shlex.split(each, comments=True) for each in _lines("sysusers.conf")]
    groups = {row[1]: {row[1]} for row in rows if row[0] == "u"}
    for row in rows:
        if row[0] == "m":
            groups[row[1]].add(row[2])
    return {name: frozenset(each) for name, each in groups.items()}


def _lines(name: str) -> list[str]:
    text = (FOLDER / name).read_text()
    return [each for each in text.splitlines() if each and not each.startswith("#")]


@dataclass
class Machine:
    """The folders of tmpfiles.conf below one of the test's, with the files that a person adds."""

    root: Path
    accounts: dict[str, Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gids = {name: uid for name, uid in UIDS.items() if uid} | {"govray-runs": RUNS}
        for name, groups in declared().items():
            self.accounts[name] = Account(UIDS[name], frozenset(gids[each] for each in groups))
        for each in _lines("tmpfiles.conf"):
            _, path, mode, user, group = each.split()
            folder = Path(self.here(path))
            folder.mkdir(parents=True)
            os.chown(folder, UIDS[user], gids.get(group, 0))
            folder.chmod(int(mode, 8))
        made = Deployment(self.root / "made")
        for name, text in {
            "operator/operator.pem": made.key.read_text(),
            "operator/attestor-token": "t" * 40,
            "service/attestor-token": "t" * 40,
            "service/ray-token": "r" * 40,
        }.items():
            path = self.root / "etc/govray" / name
            path.write_text(text)
            path.chmod(0o600)
            shutil.chown(path, UIDS[f"govray-{path.parent.name}"])
        etc = self.root / "etc/govray"
        shutil.move(made.root, etc / "root.json")
        (etc / "root.json").chmod(0o644)
        shutil.rmtree(made.folder)
        # Comments that hold a setting, and nothing of prose, are what a person turns on.
        queue = re.sub(
            r"^# (token_file|jobs_account|attestor|  url|  token_file|  settings_file):",
            r"\1:",
            (ROOT / "deploy/queue.yaml").read_text(),
            flags=re.M,
        )
        (etc / "queue.yaml").write_text(self.here(queue).replace("jobs_account: ray", JOBS_ACCOUNT))
        (etc / "attestor.yaml").write_text(self.here((ROOT / "deploy/attestor.yaml").read_text()))
        open_store(self.store, create=True).dispose()
        shutil.chown(self.root / "var/lib/govray-service/govray.db", SERVICE)

    @property
    def store(self) -> str:
        return f"sqlite:///{self.root}/var/lib/govray-service/govray.db"

    def here(self, text: str) -> str:
        """The text with the paths and the store of this machine."""
        text = text.replace(STORE, "sqlite:////var/lib/govray-service/govray.db")
        text = text.replace("127.0.0.1:8265", "127.0.0.1:1")  # another test's head may be there
        text = text.replace("--jobs-account ray", f"--jobs-account {JOBS}:{JOBS}")
        return re.sub(rf"(?<![\w.-]){SHOWN}", lambda found: f"{self.root}{found[0]}", text)

    def command(self, unit: str, name: str, *more: str) -> tuple[int, str]:
        """What a unit's command says, as its account and with its environment; and its code."""
        said = settings(unit)
        env = dict(
            each.split("=", 1) for line in said["Environment"] for each in self.here(line).split()
        )
        [command] = said[name]
        words = [*shlex.split(self.here(re.sub(r"\$\{(\w+)\}", lambda v: env[v[1]], command)))]
        assert words[0] == "/opt/govray/bin/govray"
        assert "/opt/govray/bin" in env["PATH"].split(":")
        with tempfile.TemporaryFile("w+") as out:

            def ends() -> int:
                os.environ.clear()
                user = said["User"][0]
                home = f"{self.root}/var/lib/{user}"
                os.environ.update(env | {"HOME": home, "USER": user})
                os.chdir("/")  # as systemd does
                os.umask(int(said["UMask"][0], 8))
                with redirect_stdout(out), redirect_stderr(out):
                    code = main([*words[1:], *more])
                out.flush()
                return code

            code = as_account(self.accounts[said["User"][0]], ends)
            out.seek(0)
            return code, out.read()


JOBS_ACCOUNT = f"jobs_account: {JOBS}:{JOBS}"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with accounts() as made:
        (root := made.folder / "machine").mkdir()
        root.chmod(0o755)
        yield Machine(root)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_gives_its_account_no_more_than_it_needs(unit: str) -> None:
    said = settings(unit)

    assert said["User"][0] in declared()
    assert said["Group"] == said["User"]
    assert said["NoNewPrivileges"] == ["yes"]
    assert said["LimitCORE"] == ["0"]
    assert any(re.search(r"\bPATH=/opt/govray/bin:", each) for each in said["Environment"])
    if unit in OURS:
        assert said["ProtectSystem"] == ["strict"]
        assert said["CapabilityBoundingSet"] == [""]
        made = [each.split()[1] for each in _lines("tmpfiles.conf")]
        assert {*said["ReadWritePaths"][0].split()} <= {*made}
    else:
        assert said["User"] == ["ray"]


def test_jobs_and_the_key_have_no_account_and_no_group_in_common() -> None:
    groups = declared()
    assert not groups["govray-operator"] & (groups["ray"] | groups["govray-service"])
    assert groups["ray"] & groups["govray-service"] == {"govray-runs"}
    assert {settings(each)["User"][0] for each in OURS} == {"govray-operator", "govray-service"}


def refused_by_systemd(folder: Path, **changed: str) -> list[str]:
    """What systemd says of the units, with the programs and accounts of this machine."""
    for name in UNITS:
        text = re.sub(r"^(User|Group)=.*", r"\1=root", (FOLDER / name).read_text(), flags=re.M)
        for before, after in changed.items():
            text = text.replace(before, after)
        text = text.replace("/opt/govray/bin", str(Path(sys.executable).parent))
        (folder / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *(folder / name for name in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [each for each in done.stderr.splitlines() if str(folder) in each]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    assert refused_by_systemd(tmp_path) == []
    assert len(refused_by_systemd(tmp_path, LimitCORE="LimitCOER")) == len(UNITS)


@pytest.mark.parametrize("unit", [each for each in OURS if "ExecStartPre" in settings(each)])
def test_the_doctor_lets_a_unit_start(machine: Machine, unit: str) -> None:
    done = machine.command(unit, "ExecStartPre")

    assert done[0] == 0, done[1]
    assert "reaches nothing that is kept from jobs" in done[1]


def test_control_the_doctor_keeps_it_from_starting(machine: Machine) -> None:
    """Prepared data that the group of runs may write, and a key in a folder that is open."""
    prepared = machine.root / "shared/runs/prepared"
    os.chown(prepared, OPERATOR, RUNS)
    prepared.chmod(0o775)
    try:
        # `ray` has the group by the system's own list; here by its numbers.
        queue = machine.root / "etc/govray/queue.yaml"
        text = queue.read_text()
        queue.write_text(text.replace(JOBS_ACCOUNT, f"jobs_account: {JOBS}:{RUNS}"))
        done = machine.command("govray-queue.service", "ExecStartPre")
        queue.write_text(text)
    finally:
        os.chown(prepared, OPERATOR, OPERATOR)
        prepared.chmod(0o755)

    assert done[0] == 1
    assert "can write prepared data" in done[1]


@pytest.mark.parametrize(
    ("unit", "more", "code", "says"),
    [
        ("govray-attestor.service", ["--once"], 0, ""),
        ("govray-queue.service", ["--once"], 3, "127.0.0.1:1"),
        ("govray-alerts.service", ["--once"], 0, ""),
        ("govray-service.service", ["--host", "no host"], 2, "cannot be listened on"),
        ("govray-prepare@.service", [], 2, "%f"),
    ],
)
def test_a_unit_s_command_runs_as_its_account(
    machine: Machine, unit: str, more: list[str], code: int, says: str
) -> None:
    """As far as it comes without a cluster, an experiment and a port."""
    done = machine.command(unit, "ExecStart", *more)

    assert done[0] == code, done[1]
    assert says in done[1]


def test_what_one_account_makes_the_other_reads(machine: Machine) -> None:
    """Runs of jobs are the group's: the queue tells them how many workers they may have."""
    runs = machine.root / "shared/runs"
    ray, service = machine.accounts["ray"], machine.accounts["govray-service"]

    def made() -> int:
        os.umask(int(settings("govray-head.service")["UMask"][0], 8))
        (runs / "one").mkdir()
        return 0

    def told() -> int:
        (runs / "one/workers.most").write_text("2")
        return 0

    assert as_account(ray, made) == as_account(service, told) == 0
