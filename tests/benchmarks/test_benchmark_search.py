"""The search benchmark: replays and censoring on made-up curves, and the curves it comes with."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import search, search_cache, search_replay
from benchmarks.expected_time import Spent, expected, speedup
from benchmarks.memorization_data import library
from benchmarks.search_cache import Cached, make, read
from benchmarks.search_population import Controller, Ended, Member
from benchmarks.search_race import (
    Method,
    Promoting,
    Reached,
    Stopping,
    ToTheEnd,
    race,
    ray_s_own,
    since,
)
from benchmarks.search_replay import ARMS, FORMS, LowestM
from benchmarks.search_trials import DECAY, DIVISOR, Measured, Space, train
from benchmarks.upsampling import QUICK
from benchmarks.upsampling_trials import RATE, build
from govray.errors import CouldNotCheck, UsageError
from govray.tune.brackets import Bracket
from govray.tune.objective import TrialReport, report
from govray.tune.points import Point

RUNGS = [Bracket((10, 30, 90), 18)]
TENS = range(10, 91, 10)
ORDERS = 10


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the command has it: models this small are slower on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Races


def curve(point: Point, step: int) -> TrialReport:
    """Loss falls to the point's level; odd points memorize from step 20 on."""
    m = 2.0 if point["n"] % 2 and step >= 20 else 0.0
    return report(step=step, value=point["level"] + 10 / step, memorization=m, tau=1.0)


def point(number: int) -> Point:
    return {"n": number, "level": random.Random(number).random()}


def test_full_length_trials_use_the_budget_exactly() -> None:
    found = race(ToTheEnd(4, 90), point, curve, workers=2, reports=TENS, budget=360)
    best = min(point(n)["level"] for n in (0, 2)) + 10 / 90
    assert found[-1].loss == pytest.approx(best)
    assert (found[-1].ticks, found[-1].steps) == (180, 360)
    first = found[0]
    assert (first.ticks, first.steps, first.starts) == (10, 10, 2)


def test_a_memorizer_is_no_result_once_it_memorizes() -> None:
    found = race(ToTheEnd(1, 90), lambda n: {"n": 1, "level": 0.0}, curve, workers=1, reports=TENS,
                 budget=1000)  # fmt: skip
    lost = [(each.steps, each.best, math.isinf(each.loss)) for each in found]
    assert lost == [(10, "0", False), (20, None, True), (90, None, True)]


def test_nothing_is_counted_beyond_the_budget() -> None:
    found = race(ToTheEnd(9, 90), point, curve, workers=3, reports=TENS, budget=50)
    assert max(each.steps for each in found) <= 50


def ray(brackets: list[Bracket], divisor: int) -> Stopping:
    return Stopping(brackets, divisor, ray_s_own(brackets[0], divisor))


@pytest.mark.parametrize("form", [Stopping, Promoting, ray])
def test_halving_spends_less_on_bad_points(form: Any) -> None:
    steps: dict[int, int] = {}

    def counted(of: Point, step: int) -> TrialReport:
        steps[of["n"]] = max(step, steps.get(of["n"], 0))
        return curve(of, step)

    found = race(form(RUNGS, 3), point, counted, workers=3, reports=TENS, budget=10**6)
    assert len(steps) == 18
    assert sum(steps.values()) < 18 * 90 * 0.6
    assert found[-1].loss < 0.6


@pytest.mark.parametrize("form", [Stopping, Promoting, ray, lambda *_: ToTheEnd(18, 90)])
def test_a_trial_without_a_finite_loss_fails_and_stalls_nothing(form: Any) -> None:
    def diverging(of: Point, step: int) -> TrialReport:
        ran[of["n"]] = step
        return report(step=step, value=math.inf if of["n"] < 6 else of["level"], memorization=0.0)

    ran: dict[int, int] = {}
    found = race(form(RUNGS, 3), point, diverging, workers=3, reports=(10, 30, 90), budget=10**6)
    assert {ran[number] for number in range(6)} == {10}
    assert max(ran.values()) == 90
    assert int(str(found[-1].best)) >= 6


def test_a_loss_that_is_lost_again_was_not_reached() -> None:
    found = [Reached(1, 1, 1, 3.0), Reached(2, 2, 1, 1.0), Reached(3, 3, 1, 4.0),
             Reached(4, 4, 1, 2.0), Reached(5, 5, 1, 1.5)]  # fmt: skip
    assert since(found, 2.5).steps == 4
    assert since(found, 1.5).steps == 5
    assert since(found, 9.0).steps == 1


# Censoring


def test_the_expected_time_of_censored_searches_is_that_of_restarting() -> None:
    """Each search has 10 steps; with hits at rate 1/40 a step the expected time is 40."""
    draw = random.Random(0)
    found = []
    for _ in range(4000):
        hit = draw.expovariate(1 / 40)
        found.append(Spent(min(hit, 10.0), hit <= 10.0))
    assert expected(found) == pytest.approx(40, rel=0.06)
    # The controls: only those that reached it, and ends counted as if they had.
    reached = [each for each in found if each.reached]
    assert sum(each.time for each in reached) / len(reached) < 6
    assert sum(each.time for each in found) / len(found) < 10
    assert expected([Spent(5.0, False)]) == math.inf


def test_a_speedup_is_of_expected_times_and_its_interval_covers_it() -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(40):
        ours = [Spent(draw.expovariate(1), True) for _ in range(60)]
        theirs = []
        for _ in range(60):
            hit = draw.expovariate(1 / 4)
            theirs.append(Spent(min(hit, 5.0), hit <= 5.0))
        low, high = speedup(ours, theirs).interval
        covered += low <= 4 <= high
    assert covered >= 34, "of 40, 95 % intervals"
    same = speedup(ours, ours)
    assert (same.ratio, same.interval) == (1, (1, 1))
    never = [Spent(9.0, False)]
    assert speedup([Spent(1.0, True)], never).ratio == math.inf
    assert speedup(never, [Spent(1.0, True)]).ratio == 0
    assert math.isnan(speedup(never, never).ratio)


# Replays


def made(known: float, memorizing: int = 0, count: int = 256) -> Cached:
    """Curves whose end is their number; ``known`` of it shows at the first rung.

    The best ``memorizing`` of them are beyond a limit of 1 at the last rung, and show some M from
    the first.
    """
    draw = random.Random(3)
    curves = []
    for number in range(count):
        noise = draw.uniform(0, count)
        curves.append(
            tuple(
                Measured(
                    loss=share * number + (1 - share) * noise + 10 * (4 - rung),
                    memorization=(3.0 if rung == 4 else 0.5) if number < memorizing else 0.1,
                    exposure=9.0 if number < memorizing and rung == 4 else 1.5,
                )
                for rung in range(5)
                for share in [known + (1 - known) * rung / 4]
            )
        )
    return Cached(17, (4, 16, 64, 256, 1024), "", tuple(range(count)), tuple(curves))


def test_where_the_first_rung_says_all_asha_is_many_times_faster() -> None:
    found = search.measure(made(1.0), tau=1.0, orders=ORDERS, workers=4)
    for arm in ARMS:
        assert found[arm]["spearman"] == pytest.approx([1.0] * 4)
        for form in FORMS:
            against = found[arm][form]["vs_random"]
            assert against["speedup"] > 3, (arm, form)
            assert against["interval"][0] > 1.5
            assert found[arm][form]["winner"]["within_in_every_seed"]


def test_random_search_needs_as_long_as_its_first_good_point_lets_expect() -> None:
    """8 of 256 points are good. The first of them is the 28.6th on average: 257 / 9."""
    cached = made(1.0)
    aim = search_replay.target(cached, math.inf, 8 / 256)
    assert aim == 7
    spent = []
    for order in search_replay.orders(200, 256):
        found = search_replay.searched(
            cached, order, arm="plain", form=None, tau=1.0, divisor=4, workers=1, budget=64 * 1024
        )
        spent.append(search.spent(found, aim, "steps"))
    censored = [each for each in spent if not each.reached]
    assert {each.time for each in censored} == {64 * 1024}
    assert 5 < len(censored) < 40, "a tenth is expected"
    assert expected(spent) == pytest.approx(28.6 * 1024, rel=0.25)


@pytest.mark.slow
def test_where_the_first_rungs_say_nothing_asha_is_not_faster() -> None:
    """The control: the same ends, and noise before them."""
    draw = random.Random(5)
    curves = [
        (*(replace(each, loss=1000 + draw.random()) for each in curve[:4]), curve[4])
        for curve in made(1.0).curves
    ]
    cached = replace(made(1.0), curves=tuple(curves))
    found = search.measure(cached, tau=1.0, orders=ORDERS, workers=4)
    assert abs(found["plain"]["spearman"][0]) < 0.2
    assert found["plain"]["stopping"]["vs_random"]["speedup"] < 1.5


@pytest.mark.slow
def test_without_the_limit_the_memorizers_win_and_with_it_they_never_do() -> None:
    found = search.measure(made(0.9, memorizing=6), tau=1.0, orders=ORDERS, workers=4)
    assert found["over_limit"] == 6
    for form in FORMS:
        assert found["plain"][form]["winner"]["exposure_most"] == 9
        assert found["plain"][form]["winner"]["within"] < ORDERS
        for arm in ARMS[1:]:
            winner = found[arm][form]["winner"]
            assert winner["exposure_most"] == 1.5
            assert winner["within"] == winner["results"]
            assert winner["within_in_every_seed"] == (winner["results"] == ORDERS)
    assert found["plain"]["target"] < found["governed"]["target"]


def test_a_search_whose_limit_no_point_meets_says_so() -> None:
    with pytest.raises(CouldNotCheck, match="no search found"):
        search.measure(made(1.0), tau=-1.0, orders=2, workers=4)


class Told(Method):
    """Notes the objectives that it is told."""

    def __init__(self) -> None:
        self.objectives: list[float] = []

    def next(self) -> str | None:
        return None

    def goes_on(self, trial: str, said: TrialReport) -> bool:
        self.objectives.append(said.objective)
        return False


def test_a_quarter_of_the_places_is_for_low_loss_among_the_lowest_m() -> None:
    told = Told()
    method = LowestM(told, 2)
    draw = random.Random(0)
    reserved = []
    for number in range(400):
        loss, m = draw.random(), draw.random()
        method.goes_on(str(number), report(step=4, value=loss, memorization=m, tau=0.9))
        if told.objectives[-1] < -1:
            reserved.append((m, loss))
    # One in two goes on, and one place in four is reserved. Each is decided on arrival.
    assert len(reserved) == pytest.approx(50, abs=15)
    assert max(m for m, _ in reserved) < 0.65
    assert sorted(loss for _, loss in reserved)[len(reserved) // 2] < 0.3


def test_every_seed_has_all_points_in_an_order_of_its_own() -> None:
    found = search_replay.orders(3, 50)
    assert all(sorted(each) == list(range(50)) for each in found)
    assert len(set(found)) == 3
    assert found == search_replay.orders(3, 50)


def test_rank_correlation_gives_ties_the_mean_of_their_ranks() -> None:
    assert search.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert search.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(search.spearman([1, 1, 1], [1, 2, 3]))
    assert search.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    assert search.spearman([1, math.inf, math.inf], [1, 5, 6]) == pytest.approx(0.8660254)


# A population


@pytest.mark.slow
def test_a_population_takes_over_states_and_says_what_it_ends_with() -> None:
    sizes = replace(QUICK, steps=16, canaries=4, rates=(1e-6, 1e-2))
    space = Space(sizes=sizes, ranked=1)
    data = build(sizes, 3, docstrings(300))

    def trained(tau: float) -> Ended:
        made = Controller(space, data, seed=1, members=4, interval=4, tau=tau)
        assert len({each.config[RATE] for each in made.get_trials()}) == 4
        return made.run()

    found = trained(math.inf)
    assert found == trained(math.inf)
    assert found.exploits
    # Where a member takes over one that has not reported this time, it repeats these steps.
    assert 4 * 16 <= found.steps <= 4 * 16 + 4 * found.exploits
    assert found.loss < 6
    with pytest.raises(CouldNotCheck, match="no member"):
        trained(-100.0)


def test_a_state_that_is_taken_over_trains_on_as_the_other_would_have() -> None:
    sizes = replace(QUICK, steps=16, canaries=4)
    data = build(sizes, 3, docstrings(300))
    point = {RATE: 1e-2, DECAY: 0.1}
    ours, theirs = (Member(str(n), point, Space(sizes=sizes), data, 3) for n in range(2))
    ours.train(6)
    theirs.take_over(ours.state())
    for each in (ours, theirs):
        each.train(6)
    assert theirs.steps == 12
    both = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)


# The curves


def docstrings(count: int) -> list[str]:
    draw = random.Random(0)
    words = ["the", "of", "a", "row", "gives", "no", "error", "that", "returns", "each"]
    return [" ".join(draw.choices(words, k=60)) for _ in range(count)]


SMALL = Space(sizes=replace(QUICK, steps=256, canaries=4, rates=(1e-4, 1e-2)), ranked=2)


def test_a_curve_that_is_made_again_is_the_same(tmp_path: Path) -> None:
    path, said = tmp_path / "curves.jsonl", []
    texts = docstrings(300)
    make(path, SMALL, texts, seed=3, count=1, say=said.append)
    before = path.read_bytes()
    assert len(said) == 1
    make(path, SMALL, texts, seed=3, count=1, say=said.append)
    assert (path.read_bytes(), len(said)) == (before, 1)
    cached = read(path)
    assert cached.rungs == (1, 4, 16, 64, 256)
    assert search_cache.same_data(cached, SMALL, texts)
    assert not search_cache.same_data(cached, SMALL, texts[1:])
    found = train(SMALL, build(SMALL.sizes, 3, texts), search_cache.point(SMALL, 3, 0), 3, rungs=3)
    for ours, theirs in zip(found, cached.curves[0], strict=False):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.memorization == pytest.approx(theirs.memorization, abs=1e-4)
        assert math.isnan(ours.exposure)
    assert [math.isnan(each.exposure) for each in cached.curves[0]] == [True] * 3 + [False] * 2
    with pytest.raises(UsageError, match="made otherwise"):
        make(path, SMALL, texts, seed=4, count=1, say=said.append)


def test_a_loss_that_is_not_finite_is_kept_as_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "curves.jsonl"
    ends = (Measured(2.0, 0.1, 1.0), *(Measured(math.inf, math.nan, math.nan),) * 4)
    monkeypatch.setattr(search_cache, "train", lambda *_: ends)
    make(path, SMALL, docstrings(300), seed=3, count=1, say=lambda _: None)
    assert "NaN" not in path.read_text()
    [found] = read(path).curves
    assert found[0] == ends[0]
    assert math.isinf(found[1].loss)
    assert math.isnan(found[1].memorization)


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", '{"seed": 1}', '{"seed": 1, "rungs": [1], "data_sha256": ""}\n{"number": 1}'],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "curves.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a file of curves"):
        read(path)


@pytest.mark.slow
def test_the_curves_that_come_with_it_are_of_its_space_and_can_be_made_again() -> None:
    """Its data are those of one Python's library. With another, only the space is compared."""
    cached, space = read(), Space()
    head = json.loads(search_cache.FILE.read_text().splitlines()[0])
    assert cached.rungs == space.rungs
    assert cached.rungs[-1] == 256 * cached.rungs[0]
    assert DIVISOR == 4
    assert head["space"] == json.loads(json.dumps(search_cache.asdict(space)))
    assert len(cached.curves) >= 150
    assert cached.numbers[:2] == (0, 1)
    assert search_cache.FILE.stat().st_size < 2**20
    texts, _ = library()
    if not search_cache.same_data(cached, space, texts):
        pytest.skip(f"the curves were trained on the library of Python {head['python']}")
    data = build(space.sizes, cached.seed, texts)
    made = train(space, data, search_cache.point(space, cached.seed, 1), cached.seed, 3)
    for ours, theirs in zip(made, cached.curves[1], strict=False):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
        assert ours.memorization == pytest.approx(theirs.memorization, abs=0.05)


def test_the_command_prints_a_table_and_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    search.main(["--orders", "10"])
    *table, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    for arm in ARMS:
        for form in FORMS:
            found = told[arm][form]
            assert found["vs_random"]["speedup"] > (0 if arm == "limit_at_end" else 1)
            assert len(found["vs_random"]["interval"]) == 2
            assert set(found["winner"]) >= {"exposure_mean", "within_in_every_seed"}
    assert told["plain"]["spearman"][0] > 0.5
    assert sum(line.startswith("governed") for line in table) == 2
