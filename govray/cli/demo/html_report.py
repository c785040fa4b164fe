"""The demo's story as one HTML file: no network, no script, prints on paper.

Its parts, its style and how numbers are written are those of the service's pages.
"""

from __future__ import annotations

from importlib.resources import files

from govray.cli.demo.findings import Story
from govray.platform.service.pages.charts.entropy_chart import charts
from govray.platform.service.pages.charts.heatmap import heat_map
from govray.platform.service.pages.rendering import environment
from govray.platform.store.lineage import lineage


def render(story: Story) -> str:
    model = story.verified
    document = lineage(model.attestation, model.digest, model.replayed_by)
    section = model.policy.document.memorization
    profile = (
        charts(model.ledger.profiles, section, model.attestation.memorization) if section else ()
    )
    style = files("govray.platform.service.pages").joinpath("static/govray.css").read_text("utf-8")
    return (
        environment("govray.cli.demo")
        .get_template("report.html")
        .render(
            story=story,
            document=document,
            map=heat_map(document),
            profile=profile,
            linked=(),
            style=style,
        )
    )
