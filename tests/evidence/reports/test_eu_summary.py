"""The EU's summary of training content, section by section: filled, asked, missing."""

from __future__ import annotations

from govray.evidence.reports.draft import Draft, Field
from govray.evidence.reports.eu_summary import eu_summary
from tests.evidence.reports.conftest import Deployed

SECTIONS = (
    "0", "1", "1.1", "1.2", "1.3", "2", "2.1", "2.2", "2.2.1", "2.2.2", "2.3", "2.4", "2.5", "2.6",
    "3", "3.1", "3.2", "3.3",
)  # fmt: skip
"""Of the template C(2025) 8311; 0 is its header."""


def field(draft: Draft, key: str) -> Field:
    (found,) = [each for each in draft.fields if each.key == key]
    return found


def test_every_section_of_the_template_is_there(described: Deployed, plain: Deployed) -> None:
    for each in (described, plain):
        draft = eu_summary(each.model)
        assert tuple(section.number for section in draft.sections) == SECTIONS
        keys = [one.key for one in draft.fields]
        assert len(keys) == len(set(keys))
        assert all(one.source for one in draft.fields)


def test_without_descriptions_nothing_is_invented(plain: Deployed) -> None:
    draft = eu_summary(plain.model)
    filled = {each.key for each in draft.fields if each.state == "filled"}
    assert filled == {  # what attestation, manifest, policy and licences say
        "1.2 dependencies", "1.3 modalities", "1.3 size text", "1.3 legal", "3.1 policy",
        "3.3 refused",
    }  # fmt: skip
    assert draft.count("asked") == 0
    for each in draft.fields:
        if each.state == "missing":
            assert each.ask is not None
            assert each.ask in each.source
    assert "acme, alpha, beta, gamma" in field(draft, "2.1 used").source


def test_described_corpora_fill_their_sections(described: Deployed) -> None:
    draft = eu_summary(described.model)
    said = {each.key: each.lines for each in draft.fields if each.state == "filled"}
    assert said["1.3 size text"][0] == "Less than 1 billion tokens"
    assert said["1.3 latest"] == ("11/2025",)
    assert said["1.3 languages"] == ("acme: de", "alpha: en, fr", "beta: en", "gamma: en")
    assert said["2.1 used"][0] == "Yes: beta"
    assert said["2.2.1 used"][0] == "Yes: acme"
    assert said["2.2.2 used"][0].startswith("No:")
    assert said["2.3 used"][0] == "Yes: alpha"
    assert said["2.3 crawlers"] == ("alpha: examplebot/1",)
    assert said["2.3 behaviour"] == ("alpha: examplebot/1: Obeys robots.txt.",)
    assert said["2.3 period"] == ("alpha: 2023-05 to 2025-11",)
    assert said["2.4 used"][0].startswith("No:")
    assert said["2.4 services"] == ("Not applicable: no such data.",)
    assert said["2.5 models"] == ("gamma: model-x 2",)
    assert said["2 unstated"][0].startswith("None:")
    assert "alpha: honoured: robots.txt was read before each request." in said["3.1 measures"]
    assert said["3.2 measures"][0] == "acme: Read by the publisher."
    grid = field(draft, "2.1 list").grid
    assert grid is not None
    assert grid.rows[0][:2] == ("beta", "https://data.example/beta")
    # Who provides the model, and whether the Code was signed, no record says.
    missing = {each.key for each in draft.fields if each.state == "missing"}
    assert {"0 version", "1.1 provider", "1.2 date", "3.1 code", "3.1 link"} <= missing


def test_tokens_are_those_that_train(described: Deployed) -> None:
    """Counted here row by row, from the records and not from the parts' totals."""
    model = described.model
    names = [each.corpus for each in model.manifest.document.corpora]
    records = [model.records.record(c, i) for c in names for i in range(model.records.count(c))]
    tokens = sum(r.tokens + 1 for r in records if r.split == "train")
    assert any(r.split == "reserve" for r in records)
    (line,) = field(eu_summary(model), "1.3 size text").lines[1:]
    assert f"{tokens:,} tokens" in line


def test_the_largest_tenth_of_the_domains_is_listed(described: Deployed) -> None:
    found = field(eu_summary(described.model), "2.3 domains by records")
    assert found.state == "filled"
    assert found.grid is not None
    assert found.grid.rows == tuple((f"d{n:02}.example", str(100 - n)) for n in range(20))
    assert "20 of 200 domains (largest 10 %)" in found.lines[0]


def test_the_provider_answers_what_lacks_and_no_more(described: Deployed) -> None:
    data = described.statement(
        provider="Example <Ltd>", code_of_practice=True, languages="All of them."
    )
    draft = eu_summary(described.model, described.verified(data))
    assert field(draft, "1.1 provider").state == "asked"
    assert field(draft, "3.1 code").lines == ("Yes",)
    # Records state the languages: the provider's word is told apart, and not mixed in.
    assert field(draft, "1.3 languages").state == "filled"
    assert draft.unused == ("languages",)
