"""docs/registry.md: its commands run, its gates are the shipped ones, its table is complete."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml

from govray.platform.store.promotion_gates import GATES, read_promotion_policy
from govray.platform.store.registry import STAGES
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
    lines = [line for _, block in BLOCKS for line in block.splitlines() if line[:7] == "govray "]
    assert len(lines) == 7
    for line in lines:
        words = shlex.split(line)[1:]
        run(*words, *(["--at", at] if "--trust-root" in words else []))
    assert (tmp_path / "copy" / "governance" / "attestation.dsse.json").is_file()


def test_its_gates_are_the_shipped_ones() -> None:
    (section,) = [block for kind, block in BLOCKS if kind == "yaml"]
    assert read_promotion_policy(section).digest == read_promotion_policy(SHIPPED).digest


def test_its_words_are_those_of_the_code() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == list(GATES)
    for stage in STAGES:
        assert f"`{stage}`" in PAGE


def test_what_it_says_of_serve_is_there() -> None:
    (block,) = [block for _, block in BLOCKS if "ray start" in block]
    assert (ROOT / "serve" / "environment.sh").is_file()
    assert "serve deploy serve/config.yaml" in block
    assert yaml.safe_load((ROOT / "serve" / "config.yaml").read_text())["applications"]


def test_the_benchmark_takes_the_page_s_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import service

    asked: list[argparse.Namespace] = []

    class Parsed(Exception):
        pass

    def generated(folder: Path, sizes: object) -> None:
        asked.append(argparse.Namespace(folder=folder, sizes=sizes))
        raise Parsed

    monkeypatch.setattr(service, "generated", generated)
    for words in ([], ["--mixed", "10"]):
        with pytest.raises(Parsed):
            service.main(words)
    assert {each.folder.name for each in asked} == {".benchmark-data"}
    assert asked[0].sizes.models == 100
    assert asked[0].sizes.corpora == 1_000
    assert asked[0].sizes.ledgers[-1] == 10_000_000
    assert asked[0].sizes.records == 1_000_000
