"""The demo's report: one file that says what the demo found, and fetches nothing."""

from __future__ import annotations

import re
from pathlib import Path

from govray.demo.findings import Refusal, Story, tabulate
from govray.demo.html_report import render
from govray.governance.verify import verify
from tests.support.world import AT, World


def story(world: World, model: Path, *, replayed: str) -> Story:
    verified = verify(model, trust_root=world.root, at=AT)
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
        assert f'<tr><th scope="row">{corpus}<br>' in page


def test_the_report_says_that_other_bytes_are_other_bytes(world: World, untouched: Path) -> None:
    page = render(story(world, untouched, replayed="sha256:" + "cd" * 32))
    assert "DIFFERENT" in page
    assert "are the same bytes" not in page
    assert "sha256:" + "cd" * 32 in page
