"""`policy lint`, `explain` and `diff`: the library's answers, with exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.command import Run
from tests.support.world import POLICY, World


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


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version: 3", "version: three", "field 'version': input should be a valid integer"),
        ("version: 3", "version: null", "field 'version' is null"),
        ("version: 3", "verson: 3", "unknown field 'verson' (did you mean 'version'?)"),
        ("on_expiry: stop", "on_expiry: stpo", "'stop' or 'gate' (did you mean 'stop'?)"),
        ("[permissive", "[permisive", "'unknown' (did you mean 'permissive'?)"),
        ("license_category", "licence_category", "(did you mean 'license_category'?)"),
        ("blocks[0.5:]", "bloks[0.5:]", "layers.bloks[0.5:]': 'bloks[0.5:]' is no selector"),
        ("profile: upper_half", "profile: uper_half", "(did you mean 'upper_half'?)"),
        ("name: open", "name: weak-copyleft", "two rules are called 'weak-copyleft'"),
    ],
)
def test_lint_names_the_line_and_the_nearest_word(
    run: Run, policy: Path, old: str, new: str, said: str
) -> None:
    policy.write_text(POLICY.replace(old, new, 1))
    # Of two rules of one name, the second is at fault.
    wrong = max(
        number for number, line in enumerate(policy.read_text().splitlines(), 1) if new in line
    )
    err = run("policy", "lint", policy, code=1).err
    assert err.startswith(f"govray: {policy}:{wrong}: ")
    assert said in err


def test_a_value_that_is_left_out_by_mistake_is_asked_for(run: Run, policy: Path) -> None:
    policy.write_text(POLICY.replace("2027-11-01}", "}"))
    assert "'until' is null. Give it a value" in run("policy", "lint", policy, code=1).err


def test_too_many_rules_are_counted(run: Run, policy: Path) -> None:
    rules = [f"  - {{name: r{n}, match: {{corpus: c{n}}}, profile: nothing}}" for n in range(300)]
    policy.write_text(POLICY.replace("rules:", "\n".join(["rules:", *rules])))
    err = run("policy", "lint", policy, code=1).err
    assert re.search(r"'rules': it has 3\d\d items, at most 256 are allowed", err)


def test_lint_reports_what_a_new_version_widens(
    run: Run, policy: Path, tmp_path: Path, world: World
) -> None:
    (tmp_path / "old.dsse.json").write_bytes(world.policy)  # signed, version 3
    policy.write_text(POLICY.replace("blocks[0.5:]", "blocks[0:]").replace("n: 3", "n: 4"))
    words = ("policy", "lint", policy, "--previous", "old.dsse.json", "--blocks", 2)
    findings = run(*words, "--json", code=1).json["findings"]
    assert {each["code"] for each in findings} == {"widens"}
    assert "block.0" in findings[0]["message"]
    assert "license_category=copyleft_limited" in run(*words, code=1).out


def test_lint_knows_the_groups_of_a_model(run: Run, policy: Path, untouched: Path) -> None:
    policy.write_text(POLICY.replace("final_norm", "finale_norm"))
    run("policy", "lint", policy)
    done = run("policy", "lint", policy, "--model", untouched, code=1)
    assert "'finale_norm'" in done.out
    both = run("policy", "lint", policy, "--model", untouched, "--blocks", 2, code=2)
    assert "--blocks" in both.err


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


def test_explain_reads_a_credential(
    run: Run, policy: Path, world: World, tmp_path: Path, untouched: Path
) -> None:
    (tmp_path / "acme.dsse.json").write_bytes(world.credentials["acme"])
    words = ("policy", "explain", policy, "--credential", "acme.dsse.json")
    told = run(*words, "--model", untouched, "--json").json
    assert told["adapter"] == "acme"
    assert told["groups"][-1] == {"group": "adapter:acme", "weight": 1, "rules": ["contracts"]}
    assert "adapter:acme (rank 2)" in run(*words).out


def test_explain_says_that_a_quota_counts_for_each_corpus(run: Run, policy: Path) -> None:
    words = ("policy", "explain", policy, "--license-category", "commercial", "--corpus", "acme")
    assert "rows_per_step counts for each" in run(*words, "--license", "LicenseRef-acme").out
    assert "rows_per_step" not in run("policy", "explain", policy, "--license", "MIT").out


def test_explain_says_when_records_are_quarantined(run: Run, policy: Path) -> None:
    out = run("policy", "explain", policy, "--license", "GPL-3.0-only").out
    assert "quarantined  by rule strong-copyleft" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give one of the two"),
        (["--license", "MIT", "--credential", "x.json"], "Give one of the two"),
        (["--license", "BSD License"], "SPDX"),
        (["--license", "LicenseRef-x"], "--license-category"),
        (["--license", "MIT", "--jurisdiction", "XX"], "XX"),
        (["--license", "MIT", "--license-category", "free"], "permissive"),
        (["--license", "MIT", "--blocks", "0"], "--blocks"),
        (["--credential", "policy.yaml"], "not a credential"),
    ],
)
def test_a_class_that_is_none_is_usage(run: Run, policy: Path, words: list[str], said: str) -> None:
    assert said in run("policy", "explain", policy, *words, code=2).err


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


def test_explain_tells_of_reserved_rights(run: Run, policy: Path) -> None:
    words = ("policy", "explain", policy, "--license", "MIT", "--source", "crawled")
    told = run(*words, "--modality", "text", "--language", "en", "--opt-out", "honoured", "--json")
    assert told.json["class"] | {"optOut": "honoured", "modality": ["text"]} == told.json["class"]
    assert "opt_out: reserved" in run(*words, "--opt-out", "reserved", code=1).err
    policy.write_text(POLICY + "  - {name: r, match: {opt_out: reserved}, profile: upper_half}\n")
    assert "profile" in run(*words, "--opt-out", "reserved").out
    assert "admits_reserved  r" in run("policy", "lint", policy, code=1).out
    assert "field 'modality[0]'" in run(*words, "--modality", "txt", code=2).err
