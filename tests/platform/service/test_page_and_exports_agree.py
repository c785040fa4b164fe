"""Attestation, page, CycloneDX and SPDX of one model tell the same corpora and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from govray.evidence.exports.export_format import FORMATS
from govray.evidence.exports.verified_facts import VerifiedFacts
from tests.support.library import Library, library

Facts = dict[str, tuple[int, dict[str, int]]]
"""Corpus → loss targets that were read, and layer group → level of exclusion."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("agree")) as made:
        yield made


class HeatMap(HTMLParser):
    """The texts of the lineage table's cells, by row, what is hidden from readers left out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._within = False
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "table":
            self._within = found.get("id") == "heat-map"
        elif self._within and tag == "tr":
            self.rows.append([])
        elif self._within and tag in ("th", "td"):
            self.rows[-1].append("")
        elif tag == "br":
            self.handle_data("\n")
        elif tag == "span" and (self._hidden or found.get("aria-hidden") == "true"):
            self._hidden += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._within = False
        elif tag == "span" and self._hidden:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        if self._within and not self._hidden and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def on_page(html: str) -> Facts:
    page = HeatMap()
    page.feed(html)
    head, *rows = page.rows
    facts: Facts = {}
    for name, *cells in rows:
        tokens = [re.match(r"\s*([\d,]+) tokens", cell) for cell in cells]
        levels = {
            group.strip(): int(said[1])
            for group, cell in zip(head[1:], cells, strict=True)
            if (said := re.search(r"exclusion level (\d)$", cell.strip()))
        }
        most = max(int(each[1].replace(",", "")) if each else 0 for each in tokens)
        facts[name.strip().splitlines()[0]] = (most, levels)
    return facts


def in_cyclonedx(data: bytes) -> Facts:
    facts: Facts = {}
    for each in json.loads(data)["components"]:
        if each["type"] == "data":
            held = {p["name"]: p["value"] for p in each["data"][0]["contents"]["properties"]}
            prefix = "govray:level:"
            levels = {n.removeprefix(prefix): int(v) for n, v in held.items() if prefix in n}
            facts[each["name"]] = (int(held["govray:tokensRead"]), levels)
    return facts


def in_spdx(data: bytes) -> Facts:
    facts: Facts = {}
    for each in json.loads(data)["@graph"]:
        if each["type"] == "dataset_DatasetPackage":
            read = re.search(r"(\d+) loss targets", each["comment"])
            told = re.findall(r"^Level (\d) \([a-z ]+\) for (.*)\.$", each["comment"], re.M)
            levels = {group: int(level) for level, names in told for group in names.split(", ")}
            facts[each["name"]] = (int(read[1]) if read else 0, levels)
    return facts


@pytest.mark.parametrize(("name", "excludes"), [("first", True), ("narrow", False)])
def test_page_and_exports_say_what_the_attestation_says(
    shelf: Library, name: str, excludes: bool
) -> None:
    model = shelf.model(name)
    attested: Facts = {
        corpus.corpus: (
            max(row.tokens for row in model.attestation.coverage if row.corpus == corpus.corpus),
            dict(model.attestation.levels.get(corpus.corpus, {})),
        )
        for corpus in model.attestation.corpora
    }
    assert any(levels for _, levels in attested.values()) == excludes
    page = shelf.service.client("auditor", accept="text/html").get(
        f"/models/{name}/1.0.0", params={"rows": "all"}
    )
    assert on_page(page.text) == attested
    facts = VerifiedFacts.of(model)
    [bom] = FORMATS["cyclonedx"].write(facts).values()
    [graph] = FORMATS["spdx"].write(facts).values()
    assert in_cyclonedx(bom) == attested
    assert in_spdx(graph) == attested
