"""The files of deploy/ that nothing here can start: what their own parsers and Ray say of them."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import promql_parser
import pytest
import yaml
from ray.dashboard.modules.metrics import metrics_head
from ray.dashboard.modules.metrics.templates import GRAFANA_INI_TEMPLATE
from ray.scripts.scripts import start
from typer.main import get_command

from govray.cli.app import app
from govray.platform.service.http import prometheus, store_numbers
from govray.train.watching.metrics import DECLARED
from tests.support.tree import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
WATCHING = (ROOT / "docs/watching.md").read_text()

EXPORTED = {f"ray_{each.name}" for each in DECLARED} | {
    f"{prometheus.REQUESTS[0]}_total",
    f"{prometheus.SECONDS[0]}_bucket",
    prometheus.INDEXED[0],
    *(
        each[0]
        for each in (
            *(store_numbers.ENTRIES, store_numbers.SLOTS, store_numbers.LEASE),
            *(store_numbers.DECIDED, store_numbers.UNDECIDED),
            store_numbers.PREPARED,
            *(store_numbers.FREE, store_numbers.SIZE),
        )
    ),
    "up",
}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_numbers_that_are_exported(alert: dict[str, Any]) -> None:
    named = set(re.findall(r"\b(?:ray_govray|govray)_\w+|\bup\b", alert["expr"]))
    assert named, alert["expr"]
    assert named <= EXPORTED
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert f"| `{alert['alert']}` |" in WATCHING


DURATION = re.compile(r"(?:[0-9]+(?:ms|[smhdwy]))+")


def wrong_rules(rules: dict[str, Any]) -> list[str]:
    """What Prometheus would refuse of a file of alert rules."""
    found = [f"{each} is no key" for each in rules.keys() - {"groups"}]
    for group in rules["groups"]:
        found += [f"{each} is no key of a group" for each in group.keys() - GROUP]
        for rule in group["rules"]:
            found += [f"{each} is no key of a rule" for each in rule.keys() - RULE]
            if not DURATION.fullmatch(rule.get("for", "0s")):
                found.append(f"{rule['for']} is no duration")
            try:
                promql_parser.parse(rule["expr"])
            except ValueError as error:
                found.append(f"{rule['alert']}: {error}")
            told = " ".join(rule["annotations"].values())
            found += [
                f"{each} is no template"
                for each in re.findall(r"{{(.*?)}}", told)
                if not re.fullmatch(r" \$(?:labels\.\w+|value) ", each)
            ]
    return found


GROUP = {"name", "interval", "limit", "rules"}
RULE = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}


def test_prometheus_takes_the_rules() -> None:
    assert wrong_rules(RULES) == []
    if tool := shutil.which("promtool"):
        subprocess.run([tool, "check", "rules", DEPLOY / "prometheus/rules.yml"], check=True)


def test_compose_has_no_secret_and_listens_on_loopback() -> None:
    for name, service in COMPOSE["services"].items():
        for each in service.get("secrets", ()):
            assert (each["source"] if isinstance(each, dict) else each) in COMPOSE["secrets"], name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        image = service["image"]
        assert image.startswith("${GOVRAY_IMAGE:?") or re.search(r"\w@\${\w+_DIGEST:\?", image)
        for key, value in service.get("environment", {}).items():
            if re.search("PASS|KEY|SECRET|TOKEN", key):
                assert value.startswith("/run/secrets/"), (name, key)
            assert not re.search(r"://\w+:[^@/]+@", value), (name, key)
    for each in COMPOSE["secrets"].values():
        assert each["file"].startswith("../secrets/")


def mounts() -> Iterator[str]:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith(".") and source != "../policies/root.json":  # yours
                yield source


@pytest.mark.parametrize("source", sorted(set(mounts())))
def test_what_compose_mounts_is_there(source: str) -> None:
    assert (DEPLOY / source).exists()


def options(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("unit", ["govray-head", "govray-worker"])
def test_a_unit_starts_ray_with_options_that_it_has(unit: str) -> None:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string((DEPLOY / f"on-premises/{unit}.service").read_text())
    _, verb, *words = shlex.split(read["Service"]["ExecStart"])
    assert verb == "start"
    given = {word.partition("=")[0] for word in words}
    assert given <= options(start)
    assert "--block" in given
    assert "RAY_AUTH_MODE=token" in (DEPLOY / f"on-premises/{unit}.service").read_text()


def test_the_slurm_job_starts_ray_on_what_its_nodes_have(tmp_path: Path) -> None:
    for name, text in {
        "scontrol": "printf 'n1\\nn2\\n'",
        "srun": 'echo "srun $@"; while [ "$1" != ray ]; do shift; done; exec "$@"',
        "ray": 'echo "ray $@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    slurm |= {"SLURM_CPUS_PER_TASK": "32", "SLURM_GPUS_ON_NODE": "4"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = DEPLOY / "on-premises/slurm.sh"
    told = subprocess.run(
        [script, "jobs/train.yaml"], env={**slurm, "PATH": path, "HOME": "/root"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    step, started = told.splitlines()
    assert "--cpus-per-task=32" in step
    verb, *words = shlex.split(started.removeprefix("ray "))
    assert verb == "symmetric-run"
    own, entry = words[: words.index("--")], words[words.index("--") + 1 :]
    assert own[:4] == ["--address", "n1:6379", "--min-nodes", "2"]
    assert set(own[4:]) == {"--num-cpus=32", "--num-gpus=4"}
    assert {word.partition("=")[0] for word in own[4:]} <= options(start)
    assert entry == ["python", "jobs/train.py", "--config", "jobs/train.yaml"]
    directives = re.findall(r"^#SBATCH --([a-z-]+)", script.read_text(), re.M)
    assert {"gres", "cpus-per-task", "nodes", "ntasks-per-node"} <= set(directives)


GOVRAY = {
    name: service["command"]
    for name, service in COMPOSE["services"].items()
    if "GOVRAY_IMAGE" in service["image"]
}


@pytest.mark.parametrize("name", GOVRAY)
def test_the_command_of_a_service_is_one_that_govray_has(name: str) -> None:
    command = GOVRAY[name]
    text = command[-1] if command[0] == "sh" else shlex.join(command)
    assert COMPOSE["services"][name]["restart"] == "unless-stopped"
    for part in text.split("&&"):
        words = [word for word in shlex.split(part) if word != "exec"]
        assert words[0] == "govray"
        verb: Any = get_command(app)
        rest = words[1:]
        while hasattr(verb, "commands") and rest:
            verb = verb.commands[rest.pop(0)]
        given = {word for word in rest if word.startswith("--")}
        assert given <= options(verb), part
        for word in rest:
            if word.startswith("deploy/"):
                assert (ROOT / word).is_file()


def test_grafana_is_where_ray_s_dashboard_looks_and_has_ray_s_boards_too() -> None:
    folder = DEPLOY / "grafana/provisioning"
    [source] = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["name"] == metrics_head.DEFAULT_PROMETHEUS_NAME
    ports = [urlsplit(each).port for each in (source["url"], metrics_head.DEFAULT_GRAFANA_HOST)]
    assert ports == [urlsplit(metrics_head.DEFAULT_PROMETHEUS_HOST).port, 3000]
    found = yaml.safe_load((folder / "dashboards/govray.yml").read_text())["providers"]
    paths = {each["options"]["path"] for each in found}
    assert paths >= {"/tmp/ray/session_latest/metrics/grafana/dashboards"}
    grafana = COMPOSE["services"]["grafana"]
    assert "/tmp/ray:/tmp/ray:ro" in grafana["volumes"]
    # What Ray's own grafana.ini says.
    ini = configparser.ConfigParser()
    ini.read_string(GRAFANA_INI_TEMPLATE)
    env = grafana["environment"]
    assert env["GF_SECURITY_ALLOW_EMBEDDING"] == ini["security"]["allow_embedding"]
    assert env["GF_AUTH_ANONYMOUS_ENABLED"] == ini["auth.anonymous"]["enabled"]


def test_what_a_service_writes_is_not_read_only() -> None:
    for name in ("service", "queue"):
        runs = [each for each in COMPOSE["services"][name]["volumes"] if "GOVRAY_RUNS" in each]
        assert len(runs) == 1
        assert not runs[0].endswith(":ro"), name  # archives are written there
    assert any(
        each.endswith(":ro") for each in COMPOSE["services"]["attestor"]["volumes"]
        if "GOVRAY_RUNS" in each
    )  # fmt: skip
    kept = set(COMPOSE["volumes"])
    for name in ("database", "prometheus", "grafana", "alertmanager"):
        assert {v.partition(":")[0] for v in COMPOSE["services"][name]["volumes"]} & kept, name


INSTALLS = re.compile(
    r"pip3? (?:install|wheel|download)\b(?! --no-index )"
    r"(?! 'govray\[[\w{},]+\]'(?![^\n&;|`]*govray))"
    r"[^\n&;|`]*?[ '\"]govray(?![\w./-])"
)
"""A command that asks an index for a name which is not the project's there. For a bare extra pip
takes the govray that is installed (tests/cli/test_base_install.py)."""

WRITTEN = [
    ROOT / "cluster.yaml",
    ROOT / "README.md",
    *(
        each
        for name in ("deploy", "jobs", "serve", "searchers")
        for each in (ROOT / name).rglob("*")
    ),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "govray").rglob("*.py"),
]


def test_nothing_asks_an_index_for_govray() -> None:
    for wrong in (
        "pip install govray",
        "python3 -m pip install 'govray[train]==0.1.0'",
        "pip install -U 'govray[train]'",
        "pip download 'govray[train]' govray",
    ):
        assert INSTALLS.search(wrong)
    assert not INSTALLS.search("pip install 'govray[train]'")
    for each in WRITTEN:
        if each.is_file() and each.suffix != ".pyc":
            assert not INSTALLS.search(each.read_text(encoding="utf-8")), each


def test_what_is_installed_has_versions_and_hashes() -> None:
    text = (DEPLOY / "constraints.txt").read_text()
    blocks = re.split(r"^(?=\w)", text, flags=re.M)[1:]
    form = re.compile(r"[a-z0-9-]+==[\w.]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert all(form.fullmatch(each) for each in blocks)
    pinned = {each.partition("==")[0] for each in blocks}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = (*project["dependencies"], *extras["trace"], *extras["train"], *extras["serve"])
    for each in (each for each in needed if not each.startswith("govray[")):
        assert re.split(r"[^\w-]", each)[0].lower() in pinned, each
    for file in ("cluster.yaml", "deploy/gcp.yaml"):
        read = yaml.safe_load((ROOT / file).read_text())
        assert read["setup_commands"][1].endswith(f"--require-hashes -r {CONSTRAINTS}")
        assert read["file_mounts"][CONSTRAINTS] == "deploy/constraints.txt"
    container = (DEPLOY / "Containerfile").read_text()
    assert "FROM python:3.11-slim@${PYTHON_DIGEST}\n" in container
    assert "--require-hashes -r /tmp/constraints.txt" in container


CONSTRAINTS = "~/govray/constraints.txt"


@pytest.mark.slow
@pytest.mark.parametrize(("script", "host"), [("environment", "127.0.0.1"), ("cluster", "0.0.0.0")])
def test_serve_listens_on_loopback_unless_told_otherwise(script: str, host: str) -> None:
    """``serve run`` states no host, so it is this one (Ray 2.60, ``serve_start``)."""
    asked = "from ray.serve.config import HTTPOptions; print(HTTPOptions().host)"
    words = f'. serve/{script}.sh && exec "$0" -c "{asked}"'
    told = subprocess.run(
        ["sh", "-c", words, sys.executable], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[-1] == host
