"""The Grafana dashboard draws what the code declares, and has what Ray's provisioning reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
from ray.dashboard.modules.metrics import dashboards

from govray.platform.service.http import store_numbers
from govray.train.watching.metrics import DECLARED, PREFIX, TAGS
from tests.support.tree import ROOT

FILE = ROOT / "deploy" / "grafana" / "govray_dashboard.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
KNOWN = {PREFIX + each.name: each for each in DECLARED}

# Labels that Ray's agent and Grafana bring.
BROUGHT = {"SessionName", *TAGS}

OF_THE_STORE = {
    store_numbers.ENTRIES[0]: {"pool", "state"},
    store_numbers.UNDECIDED[0]: set(),
    store_numbers.FREE[0]: {"holds"},
    store_numbers.SIZE[0]: {"holds"},
}
"""What the service says of its store, and the labels of each."""


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def unknown(expression: str) -> list[str]:
    """What an expression names that nobody declares."""
    names = set(re.findall(r"\bray_\w+", expression))
    stated = set(re.findall(r"\bgovray_\w+", expression))
    found = sorted(names - KNOWN.keys()) + sorted(stated - OF_THE_STORE.keys())
    tags = {KNOWN[name].tag for name in names & KNOWN.keys()} | BROUGHT
    tags |= {tag for name in stated & OF_THE_STORE.keys() for tag in OF_THE_STORE[name]}
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        found += sorted({label.strip() for label in grouped.split(",")} - tags)
    return found + sorted(set(re.findall(r"(\w+)=~", expression)) - tags)


def misused(expression: str) -> list[str]:
    """Counters that are drawn as they are, and gauges whose rate is taken."""
    rated = set(re.findall(r"rate\((ray_\w+)", expression))
    return [
        name
        for name in set(re.findall(r"\bray_\w+", expression))
        if name in KNOWN and KNOWN[name].counts != (name in rated)
    ]


def test_each_panel_draws_what_the_code_declares() -> None:
    assert len(expressions()) >= 12
    for expression in expressions():
        promql_parser.parse(expression.replace("$__rate_interval", "1m"))
        assert unknown(expression) == [], expression
        assert misused(expression) == [], expression


def test_everything_that_is_declared_is_drawn() -> None:
    drawn = set(re.findall(r"\bray_\w+", " ".join(expressions())))
    # A gauge over the last second of what the panels take from counters, for alerts and scripts.
    apart = {"ray_govray_tokens_per_second", "ray_govray_permitted_share"}
    assert KNOWN.keys() - drawn == apart


def test_it_has_what_grafana_reads_of_rays_own() -> None:
    base = Path(dashboards.__file__).with_name("train_grafana_dashboard_base.json")
    rays = json.loads(base.read_text())
    needed = {"annotations", "panels", "schemaVersion", "templating", "time", "title", "uid"}
    assert needed <= BOARD.keys() & rays.keys()
    assert BOARD["uid"] != rays["uid"]
    assert BOARD["schemaVersion"] >= rays["schemaVersion"]
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    corners = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(corners)) == len(corners)
    for panel in BOARD["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
