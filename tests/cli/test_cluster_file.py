"""`cluster.yaml` and `deploy/gcp.yaml` by Ray's own schema, and what their comments promise."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.support.tree import ROOT

FILES = ("cluster.yaml", "deploy/gcp.yaml")


@pytest.fixture(params=FILES)
def cluster_file(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / request.param).read_text())
    return loaded


def test_ray_accepts_it(cluster_file: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster_file))


def test_the_head_holds_no_work_and_no_port_is_open_without_a_token(
    cluster_file: dict[str, Any],
) -> None:
    head = cluster_file["available_node_types"][cluster_file["head_node_type"]]
    assert head["resources"]["CPU"] == 0
    starts = [
        command
        for command in cluster_file["head_start_ray_commands"]
        + cluster_file["worker_start_ray_commands"]
        if "ray start" in command
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]


def test_each_node_gets_the_token_and_is_asked_for_its_image_first(
    cluster_file: dict[str, Any],
) -> None:
    mounted = cluster_file["file_mounts"]
    assert mounted["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert (ROOT / mounted["~/govray/node_image.sh"]).is_file()
    assert cluster_file["setup_commands"][0].startswith("sh ~/govray/node_image.sh ")
    text = yaml.safe_dump(cluster_file["available_node_types"])
    assert not re.search(r"ami-[0-9a-f]|images/family", text)  # nobody here can look one up
    assert {"your-cpu-image", "your-gpu-image"} <= set(re.findall(r"your-\w+-image", text))


@pytest.mark.parametrize(
    ("version", "pip", "vendor", "driver", "told"),
    [
        ("3.11", True, "0x8086", False, None),
        ("3.11", True, "0x10de", True, None),
        ("3.10", True, "0x8086", False, "another Python than 3.11"),
        ("3.11", False, "0x8086", False, "no pip"),
        ("3.11", True, "0x10de", False, "no NVIDIA driver"),
    ],
)
def test_an_image_that_lacks_something_is_refused_with_what(
    tmp_path: Path, version: str, pip: bool, vendor: str, driver: bool, told: str | None
) -> None:
    python = f'case "$1" in -c) [ {version} = 3.11 ];; *) {"true" if pip else "false"};; esac'
    programs = {"python3": python} | ({"nvidia-smi": "true"} if driver else {})
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (device := tmp_path / "pci" / "0").mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    done = subprocess.run(
        ["sh", ROOT / "deploy/node_image.sh", "cluster.yaml"],
        env={"PATH": f"{tmp_path}:/bin", "PCI": str(tmp_path / "pci")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (1 if told else 0), done.stderr
    assert (told or "") in done.stderr
