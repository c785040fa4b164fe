"""Who is next: the rules one by one, and what holds of every queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.reconciler.queue_order import (
    Decision,
    Holding,
    ProjectLimit,
    SlotLimits,
    Waiting,
    decide,
    position,
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
    id: str, *, project: str = "a", priority: int = 0, slots: int = 1, leaving: bool = False
) -> Holding:
    return Holding(
        id=id,
        project=project,
        pool="default",
        priority=priority,
        slots=slots,
        started=("", id),
        leaving=leaving,
    )


# Order


def test_priority_comes_before_order() -> None:
    line = [waits("1"), waits("2", priority=5), waits("3", priority=1)]
    assert decide(line, [], FOUR).start == ("2", "3", "1")


def test_among_equals_the_project_that_holds_least_comes_first() -> None:
    line = [waits("1"), waits("2"), waits("3", project="b"), waits("4", project="b")]
    assert decide(line, [], FOUR).start == ("1", "3", "2", "4")
    held = [holds("0", slots=2)]
    assert decide(line, held, FOUR).start == ("3", "4")


def test_a_share_of_two_gets_twice_as_much() -> None:
    limits = replace(FOUR, pools={"default": 6}, projects={"b": ProjectLimit(share=2)})
    line = [waits(f"a{i}") for i in range(6)] + [waits(f"b{i}", project="b") for i in range(6)]
    started = decide(line, [], limits).start
    assert sorted(each[0] for each in started) == ["a", "a", "b", "b", "b", "b"]


def test_a_large_head_is_not_overtaken_by_small_ones() -> None:
    held = [holds("0", slots=2)]
    found = decide([waits("1", slots=3), waits("2"), waits("3", project="b")], held, FOUR)
    # The other project holds less, so it is before the head. What is behind the head waits.
    assert found.start == ("3",)
    assert found.waits == {"1": "it needs 3 slots, and 1 are free", "2": "behind 1"}
    assert [position(each, found) for each in ("1", "2", "3")] == [1, 2, None]


def test_who_is_at_its_limit_steps_aside_with_all_of_its_project() -> None:
    limits = replace(FOUR, projects={"a": ProjectLimit(max_slots=2)})
    line = [waits("1", slots=2), waits("2"), waits("3", project="b", slots=3)]
    found = decide(line, [holds("0")], limits)
    assert found.start == ("3",)
    assert found.waits == {
        "1": "project 'a' may hold 2 slots in pool 'default'",
        "2": "behind others of 'a', which is at its limit",
    }
    # The control: without the limit they start.
    assert decide(line[:2], [holds("0")], FOUR).start == ("1", "2")


def test_a_limit_of_one_pool_is_not_that_of_another() -> None:
    limit = ProjectLimit(max_slots=4, in_pool={"gpu": 1})
    assert (limit.most("default"), limit.most("gpu")) == (4, 1)


def test_who_is_not_due_yet_is_in_nobody_s_way() -> None:
    line = [replace(waits("1", priority=9, slots=4), ready=False), waits("2", slots=4)]
    found = decide(line, [holds("0", slots=0)], FOUR)
    assert (found.start, found.preempt) == (("2",), ())
    assert found.waits == {"1": "its next try is not due yet"}


# Preemption


def test_the_lowest_then_the_newest_is_preempted_and_none_without_need() -> None:
    held = [holds("1", priority=1), holds("2"), holds("3"), holds("4", priority=1)]
    assert decide([waits("9", priority=2)], held, FOUR).preempt == ("3",)
    assert decide([waits("9", priority=2, slots=3)], held, FOUR).preempt == ("3", "2", "4")


def test_a_small_victim_is_spared_where_a_large_one_is_needed_anyway() -> None:
    held = [holds("1", slots=3), holds("2", slots=1)]
    assert decide([waits("9", priority=1, slots=3)], held, FOUR).preempt == ("1",)


def test_equal_priority_is_never_preempted() -> None:
    held = [holds("1", slots=4, priority=3)]
    assert decide([waits("9", priority=3)], held, FOUR).preempt == ()
    assert decide([waits("9", priority=4)], held, FOUR).preempt == ("1",)


def test_nobody_is_preempted_in_vain() -> None:
    held = [holds("1", slots=3, priority=9), holds("2")]
    assert decide([waits("9", priority=5, slots=2)], held, FOUR).preempt == ()


def test_what_leaves_already_is_waited_for() -> None:
    held = [holds("1", slots=2, leaving=True), holds("2", slots=2)]
    found = decide([waits("8", priority=1, slots=2), waits("9", project="b")], held, FOUR)
    assert (found.start, found.preempt) == ((), ())
    # The control: were it not leaving, one would be told to.
    held = [replace(each, leaving=False) for each in held]
    assert decide([waits("8", priority=1, slots=2)], held, FOUR).preempt == ("2",)


def test_where_the_project_s_limit_is_in_the_way_its_own_entries_go() -> None:
    limits = replace(FOUR, projects={"a": ProjectLimit(max_slots=2)})
    held = [holds("1", slots=2), holds("2", project="b")]
    assert decide([waits("9", priority=1)], held, limits).preempt == ("1",)


# Refusal


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
    assert found.refuse == {"1": why}
    assert found.start == ("2",)


# Whatever the queue


PROJECTS = ("a", "b", "c")
POOLS = {"default": 6, "gpu": 3}
SLOTS = st.integers(1, 7)
PRIORITY = st.integers(0, 3)


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Waiting], list[Holding], SlotLimits]:
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
            leaving=draw(st.booleans()),
        )
        if within(limits, [*held, one]):
            held.append(one)
    return line, held, limits


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


def after(line: list[Waiting], held: list[Holding], found: Decision) -> list[Entry]:
    """Who holds slots when the pass is done."""
    return [*held, *(one for one in line if one.id in found.start)]


@given(queues())
def test_slots_and_limits_are_never_exceeded(
    queue: tuple[list[Waiting], list[Holding], SlotLimits],
) -> None:
    line, held, limits = queue
    assert within(limits, after(line, held, decide(line, held, limits)))


@given(queues())
def test_every_entry_starts_or_waits_or_is_refused(
    queue: tuple[list[Waiting], list[Holding], SlotLimits],
) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    ids = [*found.start, *found.refuse, *(id for order in found.order.values() for id in order)]
    assert sorted(ids) == sorted(one.id for one in line)
    assert set(found.waits) == {id for order in found.order.values() for id in order}
    places = [position(id, found) for id in found.waits]
    assert all(place is not None and place >= 1 for place in places)


@given(queues())
def test_no_lower_priority_starts_while_a_higher_one_that_fits_waits(
    queue: tuple[list[Waiting], list[Holding], SlotLimits],
) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    now = after(line, held, found)
    started = [one for one in line if one.id in found.start]
    for one in line:
        if one.id not in found.waits or not one.ready:
            continue
        lower = [
            other for other in started if other.pool == one.pool and other.priority < one.priority
        ]
        # In place of the lower ones that started, it would still not fit.
        assert not lower or not within(limits, [*(e for e in now if e not in lower), one])


@given(queues())
def test_only_strictly_lower_priorities_are_preempted_and_each_is_needed(
    queue: tuple[list[Waiting], list[Holding], SlotLimits],
) -> None:
    line, held, limits = queue
    found = decide(line, held, limits)
    by_id = {one.id: one for one in held}
    for pool in POOLS:
        gone = [by_id[id] for id in found.preempt if by_id[id].pool == pool]
        if not gone:
            continue
        assert not any(one.leaving for one in gone)
        [gainer] = [
            one
            for one in line
            if one.pool == pool
            and one.id in found.waits
            and one.ready
            and found.waits[one.id].startswith(("it needs", "project"))
            and all(one.priority > victim.priority for victim in gone)
            and _fits_without(line, held, limits, found, one, gone)
            and not any(
                _fits_without(line, held, limits, found, one, [v for v in gone if v is not spared])
                for spared in gone
            )
        ][:1]
        assert gainer.slots <= POOLS[pool]


def _fits_without(
    line: list[Waiting],
    held: list[Holding],
    limits: SlotLimits,
    found: Decision,
    one: Waiting,
    gone: list[Holding],
) -> bool:
    left = [e for e in after(line, held, found) if e not in gone]
    left = [e for e in left if not (isinstance(e, Holding) and e.leaving)]
    return within(limits, [*left, one])


@given(queues(), st.randoms(use_true_random=False))
def test_the_order_in_which_entries_are_read_changes_nothing(
    queue: tuple[list[Waiting], list[Holding], SlotLimits], random: object
) -> None:
    line, held, limits = queue
    mixed, others = line.copy(), held.copy()
    random.shuffle(mixed)  # type: ignore[attr-defined]
    random.shuffle(others)  # type: ignore[attr-defined]
    assert decide(line, held, limits) == decide(mixed, others, limits)


@given(queues())
def test_slots_are_left_unused_only_behind_a_head_or_a_limit(
    queue: tuple[list[Waiting], list[Holding], SlotLimits],
) -> None:
    """What fits and does not start has somebody before it who waits, in the pool or project."""
    line, held, limits = queue
    found = decide(line, held, limits)
    now = after(line, held, found)
    for order in found.order.values():
        ready = [one for id in order for one in line if one.id == id and one.ready]
        for place, one in enumerate(ready):
            if within(limits, [*now, one]):
                assert place > 0


@given(queues())
def test_passes_come_to_rest(queue: tuple[list[Waiting], list[Holding], SlotLimits]) -> None:
    """What was decided, done, and what leaves gone: nobody that runs is told to go for ever."""
    line, held, limits = queue
    for _ in range(40):
        found = decide(line, held, limits)
        if not found.start and not found.preempt and not any(one.leaving for one in held):
            break
        started = [
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
        ]
        back = [one for one in held if one.id in found.preempt]
        held = [one for one in held if not one.leaving and one not in back] + started
        line = [one for one in line if one.id not in found.start and one.id not in found.refuse]
        line += [
            Waiting(
                id=one.id,
                project=one.project,
                pool=one.pool,
                priority=one.priority,
                slots=one.slots,
                submitted=one.started,
            )
            for one in back
        ]
    else:
        raise AssertionError("entries are started and stopped without end")
