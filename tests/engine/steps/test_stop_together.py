"""Where one of two ranks fails, both raise its error, whatever part of the step it fails in."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from govray.engine.steps.routed_step import RoutedStep
from govray.errors import GovrayError, InfrastructureFailed, RankFailed
from govray.governance.policy.route import Route
from tests.support.table import each_row
from tests.support.two_maps import GROUPS, TERMS, UPPER, TwoMaps, batch

LOWER = Route({"lower": 1.0})
ROUTES = {route.digest: route for route in (LOWER, UPPER)}


class Meeting:
    """Where two ranks exchange what they bring, one kind of exchange at a time."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._barriers: dict[str, threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
        self._brought: dict[str, dict[int, object]] = defaultdict(dict)
        for kind in ("gather", "sum"):
            _ = self._barriers[kind], self._brought[kind]

    def all(self, kind: str, rank: int, own: object) -> list[object]:
        self._brought[kind][rank] = own
        try:
            self._barriers[kind].wait(self._patience)
            found = [self._brought[kind][rank] for rank in range(2)]
            self._barriers[kind].wait(self._patience)
        except threading.BrokenBarrierError:
            raise InfrastructureFailed("the other rank did not come", where=kind) from None
        return found


class JoinedMaps(TwoMaps):
    """It fails on rank 1, at one place of the step."""

    world_size = 2
    takes_part = True
    patience = 60.0

    def __init__(self, meeting: Meeting, rank: int, place: str) -> None:
        super().__init__()
        self._meeting, self.rank, self._place = meeting, rank, place

    def differentiate(self, part, routed, step, loss_fn, sums):
        self._may_fail("loss")
        return super().differentiate(part, routed, step, loss_fn, sums)

    def gather(self, row):
        return self._meeting.all("gather", self.rank, list(row))

    def average(self, sums, counts):
        failure, zeros = None, {name: np.zeros_like(self.weights[name]) for name in counts}
        try:
            self._may_fail("sum")
            own = {name: sums.get(name, zeros[name]) for name in counts}
        except ValueError as error:
            if not self.takes_part:
                raise
            failure, own = error, zeros
        every = self._meeting.all("sum", self.rank, own)
        if failure:
            raise failure
        return {name: sum(each[name] for each in every) / n for name, n in counts.items()}

    def norm(self, gradients):
        self._may_fail("norm")
        return super().norm(gradients)

    def move(self, group, step, gradients, scale):
        self._may_fail("optimizer")
        return super().move(group, step, gradients, scale)

    def _may_fail(self, place: str) -> None:
        if self.rank == 1 and place == self._place:
            raise ValueError(f"no memory for the {place}")


class CarelessMaps(JoinedMaps):
    """The negative control: what fails stays away from the sum."""

    takes_part = False
    patience = 1.0


def both(kind: type[JoinedMaps], place: str) -> list[tuple[GovrayError | None, bool]]:
    """(what a rank raised, whether it moved a weight), by rank, of a step of two domains."""
    meeting = Meeting(kind.patience)

    def run(rank: int) -> tuple[GovrayError | None, bool]:
        framework = kind(meeting, rank, place)
        before = framework.parameters()
        step = RoutedStep(framework, groups=GROUPS, routes=ROUTES, terms=TERMS)
        error = None
        try:
            step(batch((LOWER, "open", 3), (UPPER, "weak", 3)), None)
        except GovrayError as raised:
            error = raised
        return error, any(framework.weights[name] is not w for name, w in before.items())

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(run, range(2))]


@each_row("place", ["loss", "sum", "norm", "optimizer"])
def test_both_raise_what_failed_on_one(place: str) -> None:
    for error, moved in both(JoinedMaps, place):
        assert isinstance(error, RankFailed)
        assert f"no memory for the {place}" in str(error)
        assert "rank 1, step 0" in str(error)
        assert not moved


def test_without_a_failure_both_move() -> None:
    assert both(JoinedMaps, "nowhere") == [(None, True), (None, True)]


def test_who_stays_away_from_a_sum_leaves_the_other_waiting() -> None:
    """Negative control: nobody learns what failed."""
    for error, moved in both(CarelessMaps, "sum"):
        assert isinstance(error, InfrastructureFailed)
        assert "did not come" in str(error)
        assert not moved
