"""Technical documentation by Annex XI: what records say, what was counted, what lacks."""

from __future__ import annotations

from govray.evidence.reports.annex_xi import CountedFlops, annex_xi, read_files
from govray.evidence.reports.draft import Draft, Field
from govray.train.attest.counted_flops import HOW, row_flops
from tests.evidence.reports.conftest import Deployed

GPT_CONFIG = {
    "entrypoint": "govray.engine.gpt:GPT",
    "context": 16,
    "hyperparameters": {"vocabulary": 257, "context": 16, "width": 32, "blocks": 2, "heads": 2},
}


def field(draft: Draft, key: str) -> Field:
    (found,) = [each for each in draft.fields if each.key == key]
    return found


def test_every_point_of_the_annex_is_there(described: Deployed, plain: Deployed) -> None:
    for each in (described, plain):
        model = each.model
        draft = annex_xi(model, read_files(model))
        numbers = [section.number for section in draft.sections]
        assert numbers == ["1", "2", "2.a", "2.b", "2.c", "2.d", "2.e", "3"]
        states = {one.key: one.state for one in draft.fields}
        assert len(states) == len(list(draft.fields))
        for key in ("1d architecture", "1d parameters", "2b process", "2c data", "2d hardware"):
            assert states[key] == "filled"
        for key in ("1a tasks", "1f licence", "2d flops", "2e energy", "3 evaluation"):
            assert states[key] == "missing"


def test_what_records_say(described: Deployed) -> None:
    model = described.model
    draft = annex_xi(model, read_files(model))
    assert field(draft, "1d architecture").lines[0] == "entrypoint: world:Model"
    assert field(draft, "1d parameters").lines == (
        "7 in the base model, 0 buffers not counted",
        "2 in adapter acme",
    )
    assert field(draft, "2d time").lines[0].startswith("1.00 hours from 2026-11-10T08:00:00Z")
    assert field(draft, "2d time").lines[1] == "workers: 2 in 6 steps"
    assert field(draft, "2d hardware").lines[0] == (
        "device cpu, processor a processor, AVX2, 1 threads"
    )
    assert field(draft, "2c reserve").lines == (
        "a share of 0.25, chosen by a salt drawn by preparation",
    )
    grid = field(draft, "2c data").grid
    assert grid is not None
    assert [row[0] for row in grid.rows] == ["acme", "alpha", "beta", "gamma"]
    assert grid.rows[1][1:4] == ("crawled", "https://crawl.example/2026", "MIT")


def test_the_provider_answers(described: Deployed) -> None:
    model = described.model
    statement = described.verified(
        described.statement(licence="Apache-2.0", energy="3 kWh, by a meter", training_flops="1e9")
    )
    draft = annex_xi(model, read_files(model), statement)
    assert field(draft, "1f licence").lines == ("Apache-2.0",)
    assert field(draft, "2e energy").state == "asked"
    assert field(draft, "2d flops").lines == ("1e9",)
    # What was counted comes first, and what the provider says is told apart.
    counted = annex_xi(model, read_files(model), statement, CountedFlops(1000, HOW))
    rows = sum(use.rows for leaf in model.ledger.steps for use in leaf.corpora.values())
    assert field(counted, "2d flops").state == "filled"
    assert field(counted, "2d flops").lines[0] == (
        f"{1000 * rows:.3e} of what is counted: 1,000 of a full row, {rows:,} rows"
    )
    assert counted.unused == ("training_flops",)


def test_counted_as_the_formula_has_it() -> None:
    """Kaplan et al. 2020: 6 a weight and token; and attention's two products, three times."""
    width, blocks, context, vocabulary = 32, 2, 16, 257
    weights = blocks * 12 * width**2 + width * vocabulary
    attention = blocks * 2 * (2 * context**2 * width)
    assert row_flops(GPT_CONFIG) == 6 * weights * context + 3 * attention
    assert row_flops(GPT_CONFIG | {"context": 8}) < row_flops(GPT_CONFIG) / 2
