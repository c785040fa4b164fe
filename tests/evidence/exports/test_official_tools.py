"""Each format is what its own tool accepts, and what is broken is refused by the tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from govray.evidence.exports.croissant import croissant, licence
from govray.evidence.exports.cyclonedx import cyclonedx
from govray.evidence.exports.model_card import model_card
from govray.evidence.exports.openlineage import openlineage
from govray.evidence.exports.spdx import spdx
from govray.evidence.exports.verified_facts import VerifiedFacts
from tests.support.official_validators import (
    NotValid,
    check_croissant,
    check_cyclonedx,
    check_model_card,
    check_openlineage,
    check_spdx,
)
from tests.support.stated_world import REMOVED

BOTH = pytest.mark.parametrize("name", ["facts", "stated"])


@pytest.fixture
def given(name: str, request: pytest.FixtureRequest) -> VerifiedFacts:
    found: VerifiedFacts = request.getfixturevalue(name)
    return found


@BOTH
def test_all_documents_are_accepted(given: VerifiedFacts, tmp_path: Path) -> None:
    check_cyclonedx(cyclonedx(given))
    check_spdx(spdx(given))
    for data in croissant(given).values():
        check_croissant(data)
    check_openlineage(openlineage(given), tmp_path / "sent")
    (tmp_path / "README.md").write_bytes(model_card(given))
    check_model_card(tmp_path / "README.md")


def altered(data: bytes, change: Callable[[Any], object]) -> bytes:
    value = json.loads(data)
    change(value)
    return json.dumps(value).encode()


def part(document: Any, kind: str) -> Any:
    """The first object of a type in a graph."""
    return next(each for each in document["@graph"] if each["type"] == kind)


def without(path: str) -> Callable[[Any], object]:
    """Delete a member, by its path of names and numbers."""

    def change(value: Any) -> None:
        *way, last = path.split("/")
        for word in way:
            value = value[int(word) if word.isdigit() else word]
        del value[last]

    return change


BROKEN: Mapping[str, Callable[[Any], object]] = {
    "cyclonedx, a field that is none": lambda bom: bom.update(colour="red"),
    "cyclonedx, no algorithm": without("components/0/hashes/0/alg"),
    "cyclonedx, a score beyond 1": lambda bom: bom["declarations"]["attestations"][0]["map"][0][
        "conformance"
    ].update(score=2),
    "cyclonedx, a data set that is not there": lambda bom: bom["metadata"]["component"][
        "modelCard"
    ]["modelParameters"]["datasets"].append({"ref": "corpus:nobody"}),
    "cyclonedx, evidence that is not there": lambda bom: bom["declarations"]["claims"][0][
        "evidence"
    ].append("evidence:nothing"),
    "spdx, a field that is none": lambda doc: part(doc, "ai_AIPackage").update(ai_colour="red"),
    "spdx, no type of data": lambda doc: part(doc, "dataset_DatasetPackage").pop(
        "dataset_datasetType"
    ),
    "spdx, an unknown level": lambda doc: part(doc, "dataset_DatasetPackage").update(
        dataset_confidentialityLevel="purple"
    ),
    "spdx, an element that is not there": lambda doc: part(doc, "Relationship")["to"].append(
        "https://govray.dev/nothing"
    ),
    "spdx, an unknown class": lambda doc: part(doc, "software_File").update(type="ai_Cat"),
    "croissant, another version": lambda doc: doc.update(conformsTo="http://example.com/1"),
    "croissant, a licence that is none": lambda doc: doc.update(license=3),
    "croissant, no name": without("name"),
    "croissant, a file without a digest": lambda doc: doc.update(
        distribution=[{"@type": "cr:FileObject", "@id": "a", "name": "a", "contentUrl": "a"}]
    ),
    "croissant, times that are none": lambda doc: doc.update(
        {"rai:dataCollectionTimeFrame": ["yesterday"]}
    ),
    "openlineage, a run without a UUID": lambda event: event["run"].update(runId="run"),
    "openlineage, a time without one": lambda event: event.update(eventTime="2026-11-10"),
    "openlineage, an unknown state": lambda event: event.update(eventType="DONE"),
    "openlineage, a field that is none": lambda event: event["inputs"][0]["facets"][
        "version"
    ].update(colour="red"),
    "openlineage, another schema": lambda event: event["inputs"][0]["facets"]["version"].update(
        _schemaURL="https://openlineage.io/other"
    ),
    "openlineage, no schema": without("schemaURL"),
}


def check(kind: str, facts: VerifiedFacts, change: Callable[[Any], object], sent: Path) -> None:
    """Give a document of everything that is stated, changed, to its tool."""
    match kind:
        case "cyclonedx":
            check_cyclonedx(altered(cyclonedx(facts), change))
        case "spdx":
            check_spdx(altered(spdx(facts), change))
        case "croissant":
            check_croissant(altered(croissant(facts)["alpha"], change))
        case "openlineage":
            line = openlineage(facts).splitlines(keepends=True)[0]
            check_openlineage(altered(line, change) + b"\n", sent)
        case _:
            raise AssertionError(kind)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused(name: str, stated: VerifiedFacts, tmp_path: Path) -> None:
    with pytest.raises(NotValid):
        check(name.partition(",")[0], stated, BROKEN[name], tmp_path / "sent")


def test_what_is_stated_reaches_the_documents(stated: VerifiedFacts) -> None:
    alpha = json.loads(croissant(stated)["alpha"])
    assert alpha["inLanguage"] == ["en", "de-AT"]
    assert alpha["url"] == "https://data.example/alpha?q=a%20b&x=%C3%BC%7C%3Cy%3E"
    assert alpha["license"] == "https://spdx.org/licenses/MIT.html"
    assert alpha["rai:dataCollectionTimeFrame"] == ["2024-01-01T00:00:00Z", "2025-06-01T00:00:00Z"]
    bom = json.loads(cyclonedx(stated))
    assert bom["metadata"]["timestamp"] == REMOVED
    card = bom["metadata"]["component"]["modelCard"]
    assert card["quantitativeAnalysis"]["performanceMetrics"][0]["value"] == "1.5"
    document = json.loads(spdx(stated))
    package = part(document, "ai_AIPackage")
    assert {"type": "DictionaryEntry", "key": "blocks", "value": "2"} in package[
        "ai_hyperparameter"
    ]
    assert f"removed: adapter acme, {REMOVED}." in package["ai_informationAboutTraining"]


@pytest.mark.parametrize(
    ("expression", "url"),
    [
        ("Apache-2.0", "https://spdx.org/licenses/Apache-2.0.html"),
        ("LicenseRef-acme", "LicenseRef-acme"),
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"),
    ],
)
def test_a_licence_is_a_url_only_if_it_is_one_of_the_list(expression: str, url: str) -> None:
    assert licence(expression) == url
