"""All formats say the same, which is what the attestation says; equal models give equal bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from govray.errors import Damaged
from govray.evidence.exports.export_format import FORMATS
from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.attestation import model_folder
from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.verify.verifier import VerifiedModel
from tests.support.world import World, write


@pytest.fixture
def written(stated: VerifiedFacts) -> dict[str, dict[str, bytes]]:
    return {name: dict(each.write(stated)) for name, each in FORMATS.items()}


def only(files: dict[str, bytes]) -> str:
    [data] = files.values()
    return data.decode()


def table(card: str, heading: str) -> list[list[str]]:
    section = card.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [
        [re.sub(r"\\(.)", r"\1", cell).strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        for row in rows
    ]


def test_the_levels_agree(stated: VerifiedFacts, written: dict[str, dict[str, bytes]]) -> None:
    attested = {
        (corpus, group): level
        for corpus, groups in stated.attestation.levels.items()
        for group, level in groups.items()
    }
    assert set(attested.values()) == {1, 3}
    bom = json.loads(only(written["cyclonedx"]))
    assert attested == {
        (each["name"], held["name"].removeprefix("govray:level:")): int(held["value"])
        for each in bom["components"]
        if each["type"] == "data"
        for held in each["data"][0]["contents"]["properties"]
        if held["name"].startswith("govray:level:")
    }
    comments = {
        each["name"]: each["comment"]
        for each in json.loads(only(written["spdx"]))["@graph"]
        if each["type"] == "dataset_DatasetPackage"
    }
    assert attested == {
        (corpus, group): int(level)
        for corpus, comment in comments.items()
        for level, groups in re.findall(r"^Level (\d) \([a-z ]+\) for (.*)\.$", comment, re.M)
        for group in groups.split(", ")
    }
    finished = json.loads(only(written["openlineage"]).splitlines()[1])
    tags = finished["outputs"][0]["facets"]["tags"]["tags"]
    assert attested == {
        (corpus, group): int(tag["value"])
        for tag in tags
        if tag["key"].startswith("level:")
        for corpus, group in [tag["key"].removeprefix("level:").split(":", 1)]
    }
    rows = table(only(written["model-card"]), "Levels of exclusion")
    assert attested == {(corpus, group): int(level[0]) for corpus, group, level in rows}


def test_what_was_read_and_under_which_licence_agrees(
    stated: VerifiedFacts, written: dict[str, dict[str, bytes]]
) -> None:
    tokens: dict[str, int] = {}
    for row in stated.attestation.coverage:
        tokens[row.corpus] = max(tokens.get(row.corpus, 0), row.tokens)
    licences = {each.corpus: each.credential_class.license for each in stated.attestation.corpora}
    assert len(tokens) == 4

    data = [
        each
        for each in json.loads(only(written["cyclonedx"]))["components"]
        if each["type"] == "data"
    ]
    assert licences == {each["name"]: each["licenses"][0]["expression"] for each in data}
    assert tokens == {
        each["name"]: int(held["value"])
        for each in data
        for held in each["data"][0]["contents"]["properties"]
        if held["name"] == "govray:tokensRead"
    }

    graph = json.loads(only(written["spdx"]))["@graph"]
    by_id = {each.get("spdxId"): each for each in graph}
    relations = [each for each in graph if each["type"] == "Relationship"]
    assert licences == {
        by_id[each["from"]]["name"]: by_id[each["to"][0]]["simplelicensing_licenseExpression"]
        for each in relations
        if each["relationshipType"] == "hasDeclaredLicense"
    }
    [trained] = [each for each in relations if each["relationshipType"] == "trainedOn"]
    found: dict[str, int] = {}
    for each in trained["to"]:
        said = re.search(r"(\d+) loss targets", by_id[each]["comment"])
        assert said
        found[by_id[each]["name"]] = int(said[1])
    assert found == tokens

    rows = table(only(written["model-card"]), "Training data")
    assert licences == {row[0]: row[1] for row in rows}
    assert tokens == {row[0]: int(row[5]) for row in rows}


def test_which_gradients_reached_a_layer_group_agrees(
    stated: VerifiedFacts, written: dict[str, dict[str, bytes]]
) -> None:
    direct = {each.group: set(each.direct) for each in stated.attestation.taint}
    finished = json.loads(only(written["openlineage"]).splitlines()[1])
    lineage = finished["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert direct == {
        group: {each["name"] for each in of["inputFields"]} for group, of in lineage.items()
    }
    rows = table(only(written["model-card"]), "Lineage")
    assert direct == {row[0]: set(row[1].split(", ")) for row in rows}


@pytest.mark.parametrize("name", [model_folder.CONFIG, model_folder.LEDGER])
def test_a_file_that_changes_after_it_verified_is_refused(
    world: World, tmp_path: Path, name: str
) -> None:
    folder = world.deploy(tmp_path / "model")
    model: VerifiedModel = world.verify(folder)
    VerifiedFacts.of(model)
    write(folder / name, (folder / name).read_bytes() + b" ")
    with pytest.raises(Damaged):
        VerifiedFacts.of(model)


def test_a_description_is_exported(tmp_path: Path) -> None:
    described = CorpusDescription.from_json(
        {
            "source": "crawled",
            "url": "https://data.example/alpha",
            "collected": {"first": "2024-01", "last": "2024-12"},
            "modality": ["code"],
            "languages": ["de"],
            "optOut": "honoured",
            "optOutMeasures": "robots.txt was read.",
            "personalData": "present",
        }
    )
    world = World()
    world.deploy(tmp_path, credentials={"alpha": world.issue("alpha", description=described)})
    facts = VerifiedFacts.of(world.verify(tmp_path))
    [alpha] = [each for each in facts.corpora if each.name == "alpha"]
    assert (alpha.described.modality, alpha.personal_data) == (("code",), "present")
    assert alpha.described.reservations == "honoured: robots.txt was read."
    period = alpha.period
    assert period is not None
    assert (period.from_, period.until) == ("2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z")
    made = dict(FORMATS["croissant"].write(facts))
    [document] = [json.loads(data) for name, data in made.items() if "alpha" in name]
    assert document["inLanguage"] == ["de"]
    assert document["url"] == "https://data.example/alpha"
