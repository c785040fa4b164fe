"""docs/registry.md: its commands run, its gates are the shipped ones, its table is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from govray.platform.store.promotion_gates import read_promotion_policy
from tests.support.command import Run
from tests.support.monitored_world import Monitored
from tests.support.people import Service
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "registry.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M)
SHIPPED = (ROOT / "policies" / "promotion.yaml").read_bytes()


def test_its_commands_run(run: Run, service: Service, at: str, tmp_path: Path) -> None:
    world = Monitored()
    world.run(tmp_path / "model")
    (tmp_path / "root.json").write_bytes(world.root)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "promotion.yaml").write_bytes(SHIPPED)
    first, second = world.keys.compliance
    (tmp_path / "policies" / "promotion.dsse.json").write_bytes(
        read_promotion_policy(SHIPPED).seal([first])
    )
    key = tmp_path / "compliance.pem"
    key.write_bytes(second.to_pem())
    key.chmod(0o600)
    pinned = tmp_path / "config" / "govray" / "trust-root.json"
    pinned.parent.mkdir(parents=True)
    pinned.write_bytes(world.root)
    lines = [line for _, block in BLOCKS for line in block.splitlines() if line[:7] == "govray "]
    assert len(lines) == 9
    for line in lines:
        words = shlex.split(line)[1:]
        run(*words, *(["--at", at] if "--trust-root" in words else []))
    assert (tmp_path / "copy" / "governance" / "attestation.dsse.json").is_file()


def test_its_gates_are_the_shipped_ones() -> None:
    (section,) = [block for kind, block in BLOCKS if kind == "yaml"]
    assert read_promotion_policy(section) == read_promotion_policy(SHIPPED)
