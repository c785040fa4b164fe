"""Which rows share a pass: never two domains, always every row once, cheapest where exact."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.engine.batch import MicroBatch
from govray.engine.gradients import pass_planner
from govray.engine.gradients.pass_planner import Planner
from govray.engine.model.gpt import GPT
from govray.engine.model.layer_groups import layer_groups
from govray.engine.steps.routed import Routed, resolve_parameters
from govray.governance.policy.route import Route, domains
from tests.support.cases import micro_batch, token_rows

CONTEXT, VOCABULARY = 4, 7
MODEL = GPT(4, 8, CONTEXT, VOCABULARY, heads=1)
GROUPS = layer_groups(MODEL)
PARAMETERS = dict(MODEL.named_parameters())
ADAPTER = {"adapter:notes": ("adapter:notes/a",)}

ALL = Route(dict.fromkeys(GROUPS, 1.0))
UPPER = Route(dict.fromkeys(["block.2", "block.3", "final_norm", "head"], 1.0))
TOP = Route(dict.fromkeys(["block.3", "final_norm", "head"], 0.5))
MIDDLE = Route({"block.1": 1.0, "block.2": 1.0})
UNEVEN = Route({"block.3": 0.5, "final_norm": 1.0, "head": 1.0})
NOTES = Route({}, "notes", 2)
ROUTES = [ALL, UPPER, TOP, MIDDLE, UNEVEN, NOTES]


def routed(route: Route) -> Routed:
    own = {"adapter:notes/a": torch.nn.Parameter(torch.zeros(1))}
    return resolve_parameters(route, GROUPS | ADAPTER, PARAMETERS | own)


def planner(max_rows: int | None = None) -> Planner:
    return Planner(
        {route.digest: routed(route) for route in ROUTES},
        GROUPS,
        domains(ROUTES, tuple(GROUPS)),
        max_rows,
        {name: parameter.numel() for name, parameter in PARAMETERS.items()},
    )


def rows(route: Route, count: int) -> MicroBatch:
    return micro_batch(route, token_rows(count, CONTEXT, VOCABULARY, count))


def test_routes_of_a_domain_are_next_to_each_other() -> None:
    batches = [rows(TOP, 1), rows(NOTES, 2), rows(ALL, 3), rows(MIDDLE, 1), rows(UPPER, 2)]
    *trunk, notes = planner().passes(batches)
    own = [ALL, MIDDLE, UPPER, TOP]
    assert [part.stream for each in trunk for part in each.parts] == [r.digest for r in own]
    assert (notes.adapter, notes.method) == ("notes", "homogeneous")


def test_where_the_model_allows_no_sliced_pass_every_stream_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pass_planner, "slicing_pays", lambda *_: True)
    plan = planner()
    plan.unsliced = "because"
    passes = plan.passes([rows(ALL, 3), rows(UPPER, 2)])
    assert [len(each.parts) for each in passes] == [1, 1]


@given(
    counts=st.lists(st.integers(0, 5), min_size=len(ROUTES), max_size=len(ROUTES)),
    max_rows=st.none() | st.integers(1, 7),
)
def test_every_row_is_in_one_pass_and_a_pass_in_one_domain(
    counts: list[int], max_rows: int | None
) -> None:
    batches = [rows(route, n) for route, n in zip(ROUTES, counts, strict=True) if n]
    passes = planner(max_rows).passes(batches)
    seen = [row for each in passes for row in each.rows]
    assert sorted(seen) == sorted(
        (each.stream, position) for each in batches for position in each.positions
    )
    trunk = {route.digest for route in ROUTES if route is not NOTES}
    for each in passes:
        assert len(each.rows) <= (max_rows or len(each.rows))
        assert len({stream in trunk for stream, _ in each.rows}) == 1
        assert len(each.tensors["tokens"]) == len(each.rows)
        # Each row keeps its own tokens.
        for part, (start, stop) in zip(each.parts, each.spans, strict=True):
            assert torch.equal(each.tensors["tokens"][start:stop], part.tensors["tokens"])
    # A domain's passes do not depend on whether another domain has rows.
    alone = planner(max_rows).passes([b for b in batches if b.stream in trunk])
    assert [each.rows for each in passes if each.adapter is None] == [each.rows for each in alone]
