"""`policy lint`, `explain` and `diff`: the library's answers, with exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Run
from tests.support.world import POLICY


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def test_lint_passes_or_fails_by_its_findings(run: Run, policy: Path) -> None:
    assert "licences v3: nothing found" in run("policy", "lint", policy).out
    assert run("policy", "lint", policy, "--json").json == {"policy": "licences v3", "findings": []}
    policy.write_text(POLICY.replace("rules:", "  unused: {layers: all}\nrules:"))
    done = run("policy", "lint", policy, code=1)
    assert "unused_profile  unused" in done.out
    (finding,) = run("policy", "lint", policy, "--json", code=1).json["findings"]
    assert finding["code"] == "unused_profile"


def test_explain_names_the_rule_behind_each_group(run: Run, policy: Path) -> None:
    told = run("policy", "explain", policy, "--license", "MPL-2.0", "--blocks", 4, "--json").json
    assert told["rules"] == ["weak-copyleft"]
    assert told["class"]["sensitivity"] == "restricted"  # as `corpus build` would state it
    weights = {each["group"]: each["weight"] for each in told["groups"]}
    assert weights == {
        "embedding": 0,
        "block.0": 0,
        "block.1": 0,
        "block.2": 1,
        "block.3": 1,
        "final_norm": 0.3,
        "head": 1,
    }
    out = run("policy", "explain", policy, "--license", "MPL-2.0").out
    assert "profile    upper_half" in out
    assert "weak-copyleft" in out


def test_diff_lists_gains_and_losses(run: Run, policy: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    new.write_text(
        POLICY.replace("version: 3", "version: 4")
        .replace("blocks[0.5:]", "blocks[0.75:]")
        .replace("{match: {license_category: [copyleft]}", "{match: {license_category: [copyleft]}")
    )
    same = run("policy", "diff", policy, policy, "--json").json
    assert same["changes"] == []
    told = run("policy", "diff", policy, new, "--json").json
    assert (told["old"], told["new"]) == ("licences v3", "licences v4")
    assert {each["class"]["licenseCategory"] for each in told["changes"]} == {"copyleft_limited"}
    assert all(each["losses"] == ["block.2"] for each in told["changes"])
    assert not any(each["widens"] for each in told["changes"])
    assert "loses      block.2" in run("policy", "diff", policy, new).out
