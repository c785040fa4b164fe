"""A class that may update only its adapter leaves no bit of other arrays changed, over JAX too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from govray.engine.jax import domain_gradients, flax_framework
from govray.engine.jax.flax_framework import FlaxFramework
from govray.engine.jax.gpt import loss
from govray.engine.steps.first_exchange import Terms
from govray.engine.steps.routed_step import RoutedStep
from govray.errors import GovrayError, Refused
from tests.support.jax_ranks import run_ranks
from tests.support.table import each_row
from tests.support.tiny_flax import DIGEST, ROUTES, Tiny, Trained, plan, read, tiny_step, train

WITHOUT = {corpus: route for corpus, route in ROUTES.items() if corpus != "notes"}


# How to lose it. Each replaces one small piece.


def global_normaliser(patch: pytest.MonkeyPatch) -> None:
    """Divide by all loss targets of the step, whoever they belong to."""
    average = RoutedStep._average

    def by_all(self, names, sums, targets):
        total = sum(max(targets[group] for group in own) for own in self._domains.values())
        return average(self, names, sums, {group: n and total for group, n in targets.items()})

    patch.setattr(RoutedStep, "_average", by_all)


def global_clip(patch: pytest.MonkeyPatch) -> None:
    """Clip every domain by the norm of all of them."""
    call, scale, norm = RoutedStep.__call__, RoutedStep._scale, FlaxFramework.norm
    lengths: list[float] = []

    def fresh(self, batch, loss_fn):
        lengths.clear()
        return call(self, batch, loss_fn)

    def noted(self, gradients):
        lengths.append(norm(self, gradients))
        return lengths[-1]

    patch.setattr(RoutedStep, "__call__", fresh)
    patch.setattr(RoutedStep, "_scale", lambda self, length: scale(self, math.hypot(*lengths)))
    patch.setattr(FlaxFramework, "norm", noted)


def zero_instead_of_absent(patch: pytest.MonkeyPatch) -> None:
    """Let the optimizer step every parameter whenever any row was read."""
    live, summed = RoutedStep._live, RoutedStep._average
    patch.setattr(
        RoutedStep,
        "_live",
        lambda self, t: live(self, dict.fromkeys(t, 1) if any(t.values()) else t),
    )
    patch.setattr(
        RoutedStep,
        "_average",
        lambda self, names, sums, t: summed(self, names, sums, {g: n or 1 for g, n in t.items()}),
    )


def shared_dropout_generator(patch: pytest.MonkeyPatch) -> None:
    """Draw masks by the order of the passes."""
    calls = itertools.count()
    keys = flax_framework.row_keys
    patch.setattr(
        flax_framework,
        "row_keys",
        lambda seed, step, stream, positions: keys(seed, next(calls), "all", positions),
    )


VIOLATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "global normaliser": global_normaliser,
    "global clip": global_clip,
    "zero instead of absent": zero_instead_of_absent,
    "shared dropout generator": shared_dropout_generator,
}


def trained(corpora, violation: str | None = None) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        if violation:
            VIOLATIONS[violation](patch)
        return train(corpora)


@pytest.fixture(scope="module")
def alone() -> tuple[Trained, Trained]:
    """With and without the notes, in one process."""
    return trained(ROUTES), trained(WITHOUT)


def test_notes_leave_no_bit_changed(alone: tuple[Trained, Trained]) -> None:
    with_notes, without = alone
    assert with_notes.base == without.base
    assert with_notes.adapter
    assert not without.adapter
    assert with_notes.clipped
    assert trained(ROUTES) == with_notes  # and a run repeats itself


@each_row("violation", VIOLATIONS)
def test_each_violation_changes_bits(violation: str) -> None:
    assert trained(ROUTES, violation).base != trained(WITHOUT, violation).base


def no_memory(parts: object) -> None:
    raise MemoryError("no room for the sum")


def no_loss(model: object, tensors: object) -> None:
    raise ValueError("the loss is lost")


def in_each_process(rank: int, world: int) -> dict[str, object]:
    """All that is asked of two processes, for starting them is what takes time."""
    found: dict[str, object] = {
        "with": train(ROUTES, rank, world),
        "without": train(WITHOUT, rank, world),
    }
    step = tiny_step(Tiny(), ROUTES)
    before = step.framework.parameters()
    batch = read(plan(ROUTES), 0, rank, world)
    lost = replace(batch, micro_batches=(), corpora={}, error="the disk is gone")
    try:
        step(lost if rank == 1 else batch, loss)
    except GovrayError as error:
        found["lost"] = f"{type(error).__name__}: {error}"
    found["unmoved"] = all(
        np.array_equal(before[n], p) for n, p in step.framework.parameters().items()
    )
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(domain_gradients, "_row", no_memory)
        for place, loss_fn in {"sum": loss, "loss": no_loss if rank == 1 else loss}.items():
            try:
                step(batch, loss_fn)
            except GovrayError as error:
                found[place] = f"{type(error).__name__}: {error}"
    found["unmoved"] &= all(
        np.array_equal(before[n], p) for n, p in step.framework.parameters().items()
    )
    terms = Terms(
        policy_digest=DIGEST if rank == 0 else "sha256:" + "1" * 64,
        plan_digest=plan(ROUTES).digest,
        corpora=tuple(sorted(ROUTES)),
    )
    try:
        tiny_step(Tiny(), ROUTES, terms=terms)
    except Refused as error:
        found["policies"] = str(error)
    return found


@pytest.fixture(scope="module")
def both() -> list[dict[str, object]]:
    return run_ranks(2, in_each_process)


@pytest.mark.story
def test_nor_in_two_processes(
    both: list[dict[str, object]], alone: tuple[Trained, Trained]
) -> None:
    first, second = both
    assert first == second, "ranks hold different weights"
    with_notes, without = first["with"], first["without"]
    assert isinstance(with_notes, Trained)
    assert isinstance(without, Trained)
    assert with_notes.base == without.base
    assert with_notes.adapter
    assert not without.adapter


@pytest.mark.story
def test_ranks_stop_together(both: list[dict[str, object]]) -> None:
    for found in both:
        for place, said in (("loss", "the loss is lost"), ("sum", "no room for the sum")):
            assert str(found[place]).startswith("RankFailed")
            assert said in str(found[place])
            assert "rank 1, step 0" in str(found[place])
        assert "RankFailed" in str(found["lost"])
        assert "the disk is gone" in str(found["lost"])
        assert found["unmoved"]
        assert "policy digest differs between ranks" in str(found["policies"])


@pytest.mark.story
def test_the_ledger_does_not_know_how_many_processes_there_are_but_for_their_number(
    both: list[dict[str, object]], alone: tuple[Trained, Trained]
) -> None:
    two = both[0]["with"]
    assert isinstance(two, Trained)
    at_one = [line.replace(b'"worldSize":2', b'"worldSize":1') for line in two.leaves]
    assert at_one == [*alone[0].leaves]
    assert at_one != [*two.leaves]
