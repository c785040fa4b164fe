"""The demo's report: one file that says what the demo found, and fetches nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from govray.cli.demo.command import _listed, _tell
from govray.cli.demo.findings import PlantedList, Refusal, Story, planted_list, tabulate
from govray.cli.demo.run import render
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record import rank_evidence
from tests.support.monitored_world import SECTION, Monitored, from_step
from tests.support.tree import ROOT
from tests.support.world import POLICY, World


def story(
    world: World, model: Path, *, replayed: str | None, listed: PlantedList | None = None
) -> Story:
    verified = world.verify(model)
    return Story(
        versions={"govray": "0.1.0", "Ray": "2.60.0"},
        corpora=4,
        admitted=12_449,
        quarantined=2_343,
        refusals=[Refusal(1782, "unknown-licence", "evil: <script>alert(1)</script>", 4)],
        steps=30,
        losses=[5.55, 2.31],
        train_seconds=98.0,
        replay_seconds=69.0,
        share_read=0.004,
        table=tabulate(verified.coverage),
        adapter="acme",
        adapter_bytes=201_000,
        base_digest="sha256:" + "ab" * 32,
        replay_digest=replayed,
        rank_with=105,
        rank_without=5_866,
        candidates=10_000,
        listed=listed or PlantedList("parts-list", None, None, (), None, None, 2.0),
        verified=verified,
        verify_seconds=0.7,
        commands=["govray verify MODEL", "govray init my-deployment"],
    )


def test_the_report_is_one_file_that_says_what_the_demo_found(
    world: World, untouched: Path
) -> None:
    found = story(world, untouched, replayed="sha256:" + "ab" * 32)
    page = render(found)
    assert not re.search(r'\b(?:src|srcset|action|href)="(?!#)', page)
    assert "<script" not in page
    assert "evil: &lt;script&gt;" in page
    assert found.verified.digest in page
    assert found.verified.attestation.disclaimer.split(".")[0] in page
    for said in ("12,449", "2,343", "0.4% of the admitted data", "201kB", "105", "5,866", "0.7 s"):
        assert said in page
    assert page.count("sha256:" + "ab" * 32) == 2
    assert "are the same bytes" in page
    # The service's style came along, unescaped, and its heat map with the model's corpora.
    assert '"Segoe UI"' in page
    for corpus in found.verified.credentials:
        assert f'<tr><th scope="row">{corpus} <span' in page


def test_what_was_left_out_is_said_and_what_differs_too(
    world: World, untouched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for replayed, said, never in (
        (None, "not replayed without it", "IDENTICAL"),
        ("sha256:" + "cd" * 32, "replayed without it: DIFFERENT", "not shown"),
    ):
        found = story(world, untouched, replayed=replayed)
        _tell(found, Path("govray-demo"))
        told = capsys.readouterr().out
        removal = told[told.index("Remove acme") : told.index("a planted account number")]
        assert said in removal
        assert never not in removal
        assert "Next  open govray-demo/report.html" in told
        page = render(found)
        assert "are the same bytes" not in page
        assert f"<dd>{found.verdict}</dd>" in page
        assert "30 steps are too few to measure what was learnt by heart" in page


GATING = (POLICY + SECTION).replace("fallback: nothing", "fallback: upper_half")


def test_the_report_says_where_a_corpus_learnt_by_heart_went(tmp_path: Path) -> None:
    world = Monitored(deviations=from_step("alpha", 6)).under(GATING)
    verified = world.verify(model := world.run(tmp_path))
    found = planted_list(verified, "alpha")
    assert (found.step, found.fallback) == (10, "upper_half")
    bound = rank_evidence.least_odds(32, 32, [world.some("alpha")], 0.05)
    assert (found.odds, found.after, found.allowed) == (bound, bound, 1.5)
    assert bound > 1.5
    assert "block.0" not in found.groups
    assert "head" in found.groups
    page = render(story(world, model, replayed="sha256:" + "ab" * 32, listed=found))
    assert "From step <strong>10</strong> on its rows train only" in page
    assert f"at least\n{bound:.1f} times the odds of pages held back" in page
    assert page.count("<polyline") >= 1  # its profiles, drawn
    told = _listed(found, 30)
    assert told[0].startswith("alpha was learnt by heart: from step 10 on its rows train only ")
    assert f"at least {bound:.1f} times the odds" in told[1]
    assert "the policy allows 1.5" in told[1]
    assert f"by the end the model without adapters gives them at least {bound:.1f}" in told[2]
    # The control: of a corpus that stayed within the tolerance it says that.
    calm = planted_list(verified, "beta")
    assert (calm.step, calm.fallback, calm.odds, calm.after) == (None, None, 1.0, None)
    page = render(story(world, model, replayed="sha256:" + "ab" * 32, listed=calm))
    assert "It was not learnt by heart in 30 steps" in page
    assert _listed(calm, 30)[0].startswith("beta was not learnt by heart in 30 steps")
    late = replace(calm, odds=8.4)
    page = render(story(world, model, replayed="sha256:" + "ab" * 32, listed=late))
    assert "The monitor found too little evidence of learning by heart." in page
    assert _listed(late, 30)[0] == ("beta was not found to be learnt by heart: too little evidence")
    unmeasured = PlantedList("beta", None, None, (), None, None, 2.0)
    assert _listed(unmeasured, 30) == [
        "beta: 30 steps are too few to measure what was learnt by heart"
    ]


def test_what_is_noticed_at_the_end_is_told_without_a_consequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = Monitored(deviations=from_step("alpha", 16)).under(GATING)
    verified = world.verify(model := world.run(tmp_path))
    found = planted_list(verified, "alpha")
    assert (found.step, found.fallback, found.noticed) == (None, None, True)
    page = render(told := story(world, model, replayed="sha256:" + "ab" * 32, listed=found))
    _tell(told, Path("govray-demo"))
    out = " ".join(capsys.readouterr().out.split())
    assert "alpha was learnt by heart: noticed at the end, nothing followed" in out
    assert "memorization alpha noticed at the end, nothing followed, after step 19 by" in out
    assert "The monitor noticed at the end, step 30, and nothing followed" in page
    for untrue in ("rerouted", "train only", "trained by"):
        assert untrue not in page + out


def test_the_demos_policy_is_the_shipped_one_with_a_monitor() -> None:
    shipped = read_policy((ROOT / "policies" / "licences.yaml").read_text())
    own = read_policy((ROOT / "govray" / "cli" / "demo" / "policy.yaml").read_text())
    assert tuple(rule for rule in own.rules if rule.name != "lists") == shipped.rules
    assert {k: v for k, v in own.profiles.items() if k != "lists"} == shipped.profiles
    assert own.memorization is not None
    assert own.memorization.rules == ("lists",)
