"""Who is next: the rules one by one, and what holds of every queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.platform.queue.giving_way import Holding
from govray.platform.queue.queue_order import (
    ProjectLimit,
    QueueDecision,
    SlotLimits,
    Waiting,
    decide,
    never,
)

FOUR = SlotLimits(pools={"default": 4})


def waits(id: str, *, project: str = "a", priority: int = 0, slots: int = 1) -> Waiting:
    return Waiting(
        id=id,
        project=project,
        pool="default",
        priority=priority,
        slots=slots,
        submitted=("", id),
    )


def holds(
    id: str,
    *,
    project: str = "a",
    priority: int = 0,
    slots: int = 1,
    leaving: bool = False,
    least: int | None = None,
    full: int | None = None,
    cap: int | None = None,
) -> Holding:
    return Holding(
        id=id,
        project=project,
        pool="default",
        priority=priority,
        slots=slots,
        started=("", id),
        leaving=leaving,
        least=least,
        full=full,
        cap=cap,
    )


def test_among_equals_the_project_that_holds_least_comes_first() -> None:
    line = [waits("1"), waits("2"), waits("3", project="b"), waits("4", project="b")]
    assert decide(line, [], FOUR).start == ("1", "3", "2", "4")
    held = [holds("0", slots=2)]
    assert decide(line, held, FOUR).start == ("3", "4")


def test_a_large_head_is_not_overtaken_by_small_ones() -> None:
    held = [holds("0", slots=2)]
    found = decide([waits("1", slots=3), waits("2"), waits("3", project="b")], held, FOUR)
    # The other project holds less, so it is before the head. What is behind the head waits.
    assert found.start == ("3",)
    assert found.order == {"default": ("1", "2")}


def test_who_is_at_its_limit_steps_aside_with_all_of_its_project() -> None:
    limits = replace(FOUR, projects={"a": ProjectLimit(max_slots=2)})
    line = [waits("1", slots=2), waits("2"), waits("3", project="b", slots=3)]
    found = decide(line, [holds("0")], limits)
    assert found.start == ("3",)
    assert found.order == {"default": ("1", "2")}
    # The control: without the limit they start.
    assert decide(line[:2], [holds("0")], FOUR).start == ("1", "2")


def test_the_lowest_then_the_newest_is_preempted_and_none_without_need() -> None:
    held = [holds("1", priority=1), holds("2"), holds("3"), holds("4", priority=1)]
    assert decide([waits("9", priority=2)], held, FOUR).preempt == ("3",)
    assert decide([waits("9", priority=2, slots=3)], held, FOUR).preempt == ("3", "2", "4")


def test_slots_come_again_when_nothing_of_its_priority_waits() -> None:
    small = holds("1", slots=1, least=1, full=4, cap=1)
    assert decide([], [small], FOUR).grow == {"1": 4}
    assert decide([], [small, holds("8", slots=2)], FOUR).grow == {"1": 2}
    assert decide([], [small, holds("8", slots=3)], FOUR).grow == {}
    # Nobody needs what was not given back yet.
    assert decide([], [replace(small, slots=4)], FOUR).grow == {"1": 4}


def test_who_waits_with_its_priority_goes_before_it_and_lower_ones_behind_it() -> None:
    small = holds("1", project="b", slots=1, least=1, full=4, cap=1)
    found = decide([waits("9", slots=2)], [small], FOUR)
    assert (found.start, found.grow) == (("9",), {"1": 2})
    found = decide([waits("9", priority=-1, slots=2)], [small], FOUR)
    assert (found.start, found.grow) == ((), {"1": 4})
    held = [small, holds("8", slots=1, priority=9)]
    for priority, grown in ((0, {}), (7, {}), (-1, {"1": 3})):
        found = decide([waits("9", priority=priority, slots=4)], held, FOUR)
        assert (found.start, found.grow) == ((), grown), priority


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (waits("1", slots=5), "it needs 5 slots, and pool 'default' has 4"),
        (
            waits("1", project="b", slots=3),
            "it needs 3 slots, and project 'b' may hold 2 in pool 'default'",
        ),
        (
            replace(waits("1"), pool="gpus"),
            "there is no pool 'gpus'; there are: default",
        ),
    ],
)
def test_what_can_never_start_is_refused_and_is_in_nobody_s_way(entry: Waiting, why: str) -> None:
    limits = replace(FOUR, projects={"b": ProjectLimit(max_slots=2)})
    found = decide([entry, waits("2")], [], limits)
    assert never(entry.pool, entry.project, entry.slots, limits) == why
    assert (found.start, found.order) == (("2",), {"default": ()})


Queue = tuple[list[Waiting], list[Holding], SlotLimits]
PROJECTS = ("a", "b", "c")
POOLS = {"default": 6, "gpu": 3}
SLOTS = st.integers(1, 7)
PRIORITY = st.integers(0, 3)


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    """A queue whose holders are within the limits, as every pass leaves it."""
    limits = SlotLimits(
        pools=POOLS,
        projects={
            name: ProjectLimit(
                share=draw(st.sampled_from([0.5, 1.0, 3.0])),
                max_slots=draw(st.none() | st.integers(1, 6)),
            )
            for name in draw(st.sets(st.sampled_from(PROJECTS)))
        },
    )
    line = [
        Waiting(
            id=f"w{i}",
            project=draw(st.sampled_from(PROJECTS)),
            pool=draw(st.sampled_from([*POOLS, "none"])),
            priority=draw(PRIORITY),
            slots=draw(SLOTS),
            submitted=(draw(st.sampled_from("xy")), f"w{i}"),
            ready=draw(st.sampled_from([True, True, True, False])),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    held: list[Holding] = []
    for i in range(draw(st.integers(0, 6))):
        one = Holding(
            id=f"h{i}",
            project=draw(st.sampled_from(PROJECTS)),
            pool=draw(st.sampled_from([*POOLS])),
            priority=draw(PRIORITY),
            slots=draw(st.integers(1, 3)),
            started=(draw(st.sampled_from("xy")), f"h{i}"),
            leaving=draw(st.sampled_from([False, False, True])),
        )
        if draw(st.booleans()):
            one = elastic(draw, one)
        if within(limits, [*held, one]):
            held.append(one)
    return line, held, limits


def elastic(draw: st.DrawFn, one: Holding) -> Holding:
    """The same, which has given something back, is about to, or may be told to."""
    least = draw(st.integers(1, one.slots))
    full = one.slots + draw(st.integers(0, 2))
    told = full > one.slots or draw(st.booleans())
    cap = draw(st.integers(least, one.slots)) if told else None
    return replace(one, least=least, full=full, cap=cap)


Entry = Waiting | Holding


def within(limits: SlotLimits, entries: Sequence[Entry]) -> bool:
    return all(
        sum(one.slots for one in entries if one.pool == pool) <= size
        for pool, size in limits.pools.items()
    ) and all(
        (most := limits.project(project).most(pool)) is None
        or sum(one.slots for one in entries if (one.pool, one.project) == (pool, project)) <= most
        for pool in limits.pools
        for project in PROJECTS
    )


def left(found: QueueDecision) -> set[str]:
    """What goes on waiting."""
    return {id for line in found.order.values() for id in line}


def after(line: list[Waiting], held: list[Holding], found: QueueDecision) -> list[Entry]:
    """Who holds slots when the pass is done."""
    grown = [replace(one, slots=found.grow.get(one.id, one.slots)) for one in held]
    return [*grown, *(one for one in line if one.id in found.start)]


def settled(line: list[Waiting], held: list[Holding], found: QueueDecision) -> list[Entry]:
    """Who holds slots when all have gone and given back as they were told."""
    return [
        replace(one, slots=found.shrink[one.id].keeps if one.id in found.shrink else one.keeps)
        if isinstance(one, Holding) and one.id not in found.grow
        else one
        for one in after(line, held, found)
        if one.id not in found.preempt and not (isinstance(one, Holding) and one.leaving)
    ]


@given(queues())
def test_slots_and_limits_are_never_exceeded(queue: Queue) -> None:
    line, held, limits = queue
    assert within(limits, after(line, held, decide(line, held, limits)))


@given(queues())
def test_no_lower_priority_starts_while_a_higher_one_that_fits_waits(queue: Queue) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    now = after(line, held, found)
    started = [one for one in line if one.id in found.start]
    for one in line:
        if one.id not in left(found) or not one.ready:
            continue
        lower = [
            other for other in started if other.pool == one.pool and other.priority < one.priority
        ]
        # In place of the lower ones that started, it would still not fit.
        assert not lower or not within(limits, [*(e for e in now if e not in lower), one])


@given(queues())
def test_only_strictly_lower_priorities_give_way_and_each_slot_is_needed(queue: Queue) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    rest = settled(line, held, found)
    for pool in POOLS:
        # For each, what would be left if a little less were taken from it.
        less = {
            one.id: replace(one, slots=found.shrink[one.id].keeps + 1)
            if one.id in found.shrink
            else replace(one, slots=one.keeps - one.spare or one.keeps)
            for one in held
            if one.pool == pool and (one.id in found.shrink or one.id in found.preempt)
        }
        if not less:
            continue
        assert not any(one.leaving for one in less.values())
        assert [
            one
            for one in line
            if one.pool == pool
            and one.ready
            and one.id in left(found)
            and all(one.priority > victim.priority for victim in less.values())
            and all(gift.to == one.id for id, gift in found.shrink.items() if id in less)
            and within(limits, [*rest, one])
            and not any(
                within(limits, [*(e for e in rest if e.id != id), spared, one])
                for id, spared in less.items()
            )
        ]


@given(queues())
def test_nobody_is_told_to_keep_less_than_its_least_or_to_hold_more_than_it_asked_for(
    queue: Queue,
) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    by_id = {one.id: one for one in held}
    assert not {*found.shrink} & {*found.grow, *found.preempt}
    for id, gift in found.shrink.items():
        one = by_id[id]
        assert one.least is not None
        assert one.least <= gift.keeps < one.keeps
    for id, slots in found.grow.items():
        one = by_id[id]
        assert one.cap is not None
        assert one.full is not None
        assert max(one.cap, one.slots - 1) < slots <= one.full


@given(queues())
def test_nothing_comes_again_before_what_waits_with_as_high_a_priority(queue: Queue) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    for one in held:
        if one.id not in found.grow:
            continue
        for other in line:
            if other.id not in left(found) or other.pool != one.pool:
                continue
            if other.priority < one.priority:
                continue
            # It waits for its project's limit, whatever others hold.
            alone = [e for e in after(line, held, found) if e.project == other.project]
            assert other.project != one.project
            assert not within(limits, [*alone, other])


@given(queues())
def test_a_pass_after_a_pass_takes_nothing_back(queue: Queue) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    told = told_so(line, held, found)
    again = decide([one for one in line if one.id in left(found)], told, limits)
    assert not {*found.shrink} & {*again.grow}
    assert not {*found.grow} & {*again.shrink}
    if not found.start:
        assert (again.start, again.preempt, again.shrink, again.grow) == ((), (), {}, {})


def told_so(line: list[Waiting], held: list[Holding], found: QueueDecision) -> list[Holding]:
    """Who holds slots after the pass, before any of them has done what it was told."""
    return [
        *(
            replace(
                one,
                leaving=one.leaving or one.id in found.preempt,
                slots=found.grow.get(one.id, one.slots),
                full=one.full or one.slots,
                cap=found.shrink[one.id].keeps
                if one.id in found.shrink
                else found.grow.get(one.id, one.cap),
            )
            for one in held
        ),
        *(
            Holding(
                id=one.id,
                project=one.project,
                pool=one.pool,
                priority=one.priority,
                slots=one.slots,
                started=("z", one.id),
            )
            for one in line
            if one.id in found.start
        ),
    ]


@given(queues())
def test_slots_are_left_unused_only_behind_a_head_or_a_limit(queue: Queue) -> None:
    """What fits and does not start has somebody before it who waits, in the pool or project."""
    line, held, limits = queue
    found = decide(line, held, limits)
    now = after(line, held, found)
    for order in found.order.values():
        ready = [one for id in order for one in line if one.id == id and one.ready]
        for place, one in enumerate(ready):
            if within(limits, [*now, one]):
                assert place > 0


def test_a_share_of_two_gets_twice_as_much() -> None:
    limits = replace(FOUR, pools={"default": 6}, projects={"b": ProjectLimit(share=2)})
    line = [waits(f"a{i}") for i in range(6)] + [waits(f"b{i}", project="b") for i in range(6)]
    started = decide(line, [], limits).start
    assert sorted(each[0] for each in started) == ["a", "a", "b", "b", "b", "b"]
