"""The demo's story as one HTML file: no network, no script, prints on paper.

Its parts, its style and how numbers are written are those of the service's pages.
"""

from __future__ import annotations

from importlib.resources import files

from govray.demo.findings import Story
from govray.service.pages.entropy_chart import charts
from govray.service.pages.heatmap import heat_map
from govray.service.pages.rendering import environment
from govray.store.lineage import lineage


def render(story: Story) -> str:
    """The report's HTML."""
    model = story.verified
    document = lineage(model.attestation, model.digest, model.replayed_by)
    section = model.policy.document.memorization
    profile = (
        charts(model.ledger.profiles, section, model.attestation.memorization) if section else ()
    )
    style = files("govray.service.pages").joinpath("static/govray.css").read_text("utf-8")
    return (
        environment("govray.demo")
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
