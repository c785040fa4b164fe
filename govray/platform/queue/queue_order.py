"""Who is started next, and who is stopped for it: of what waits and what holds slots, purely.

Pools are independent. In each, the next entry is the first by these rules:

1. Higher priority comes first.
2. Among equals, the project comes first that holds least: its slots in the pool ÷ its share.
3. Then the entry that was submitted first.

The next entry is the head of its pool. What follows it waits until it has started, however small.
So a large entry is never starved by small ones. There is one exception. An entry that its project's
limit keeps back steps aside, and with it all later ones of its project: others use what it cannot.

If the head does not fit, entries of lower priority give way to it. The lowest priority goes first,
then the newest start, and none without need. Equal priority never gives way. Where the limit of the
entry's own project is in the way, entries of that project are the first to go.

An entry that can go on with fewer slots gives some back, no more than are needed. Among entries of
one priority that comes first. If it is not enough, they are preempted: stopped, to come back to the
queue. Slots count as free when they have been given back, not when they are asked for.

Entries that gave slots back get them again when they are free. Entries that wait with its priority
or a higher one go before it, and those with a lower one behind it.

An entry larger than its pool or its project's limit is refused: it would wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from govray.platform.queue.giving_way import Holding, fewest
from govray.platform.store import pools


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """An entry that waits. ``submitted`` orders: a time, and a name that makes it unique.
    ``ready``: False until its next try is due. Then it takes no part."""

    id: str
    project: str
    pool: str
    priority: int
    slots: int
    submitted: tuple[str, str]
    ready: bool = True


@dataclass(frozen=True, kw_only=True)
class ProjectLimit:
    """What a project may hold in a pool.

    Attributes:
        share: Its weight beside other projects; above zero.
        max_slots: The most that it holds in one pool; None: what the pool has.
        in_pool: The same for single pools, by name.
    """

    share: float = 1.0
    max_slots: int | None = None
    in_pool: Mapping[str, int] = field(default_factory=dict)

    def most(self, pool: str) -> int | None:
        """The most that it may hold in this pool; None if only the pool limits it."""
        return self.in_pool.get(pool, self.max_slots)


@dataclass(frozen=True, kw_only=True)
class SlotLimits:
    """The slots of each pool, and what projects may hold; ``others`` is for those not named."""

    pools: Mapping[str, int]
    projects: Mapping[str, ProjectLimit] = field(default_factory=dict)
    others: ProjectLimit = field(default_factory=ProjectLimit)

    def project(self, name: str) -> ProjectLimit:
        return self.projects.get(name, self.others)


@dataclass(frozen=True)
class Gift:
    """What an entry keeps, and who waits for what it gives back."""

    keeps: int
    to: str


@dataclass(frozen=True, kw_only=True)
class QueueDecision:
    """What follows, by the entries' ids.

    Attributes:
        start: To start, in this order.
        preempt: To stop, so that they come back to the queue.
        shrink: To give slots back and go on with the others.
        grow: To hold so many slots from now on, more than it was told to keep.
        order: What goes on waiting, in order, by pool.
    """

    start: tuple[str, ...] = ()
    preempt: tuple[str, ...] = ()
    shrink: Mapping[str, Gift] = field(default_factory=dict)
    grow: Mapping[str, int] = field(default_factory=dict)
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def decide(
    waiting: Iterable[Waiting], holding: Iterable[Holding], limits: SlotLimits
) -> QueueDecision:
    """What to start, and who gives way or gets slots again, of all pools. What can `never` start
    takes no part."""
    lines: dict[str, list[Waiting]] = {}
    for each in waiting:
        if never(each.pool, each.project, each.slots, limits) is None:
            lines.setdefault(each.pool, []).append(each)
    held: dict[str, list[Holding]] = {}
    for one in holding:
        held.setdefault(one.pool, []).append(one)
    # Holders of slots of a pool that is gone go on.
    parts = [
        _Pool(name, lines.get(name, []), held.get(name, []), limits)
        for name in sorted(limits.pools.keys() & (lines.keys() | held.keys()))
    ]
    for pool in parts:
        pool.decide()
    return QueueDecision(
        start=tuple(id for pool in parts for id in pool.start),
        preempt=tuple(id for pool in parts for id in pool.preempt),
        shrink={id: gift for pool in parts for id, gift in pool.shrink.items()},
        grow={id: slots for pool in parts for id, slots in pool.grow.items()},
        order={pool.name: tuple(pool.order) for pool in parts if pool.name in lines},
    )


def never(pool: str, project: str, slots: int, limits: SlotLimits) -> str | None:
    """Why such an entry could never start, or None if it can."""
    return pools.never(pool, project, slots, limits.pools, limits.project(project).most(pool))


class _Pool:
    def __init__(
        self, name: str, line: list[Waiting], held: Sequence[Holding], limits: SlotLimits
    ) -> None:
        self.name = name
        self._line = line
        self._held = held
        self._limits = limits
        self._free = limits.pools[name] - sum(each.slots for each in held)
        self._of: dict[str, int] = {}
        for each in held:
            self._of[each.project] = self._of.get(each.project, 0) + each.slots
        self._growing = sorted(
            (one for one in held if one.cap is not None and not one.leaving),
            key=lambda one: (-one.priority, one.started),
        )
        self._head: Waiting | None = None
        self._aside: set[str] = set()
        self._due_later = False
        self.start: list[str] = []
        self.preempt: list[str] = []
        self.shrink: dict[str, Gift] = {}
        self.grow: dict[str, int] = {}
        self.order: list[str] = []

    def decide(self) -> None:
        for each in self._by_turns():
            takes_part = each.ready and self._head is None and each.project not in self._aside
            if takes_part and self._over_limit(each) <= 0 and each.slots <= self._free:
                self._hold(each.project, each.slots)
                self.start.append(each.id)
                continue
            self.order.append(each.id)
            if not each.ready:
                self._due_later = True
            elif takes_part and (self._give_way(each) or self._over_limit(each) <= 0):
                self._head = each
            elif takes_part:
                self._aside.add(each.project)

    def _by_turns(self) -> Iterable[Waiting]:
        """The line in order. What was told to start counts as held for who is next. What waits
        counts too from there on, so that positions tell the turns to come."""
        lines: dict[str, deque[Waiting]] = {}
        for each in sorted(self._line, key=lambda one: (-one.priority, one.submitted)):
            lines.setdefault(each.project, deque()).append(each)
        turns: dict[str, int] = dict.fromkeys(lines, 0)

        def turn(project: str) -> tuple[int, float, tuple[str, str]]:
            first = lines[project][0]
            held = self._of.get(project, 0) + turns[project]
            return -first.priority, held / self._limits.project(project).share, first.submitted

        while lines:
            self._grow_above(max(line[0].priority for line in lines.values()))
            project = min(lines, key=turn)
            each = lines[project].popleft()
            if not lines[project]:
                del lines[project]
            before = len(self.start)
            yield each
            if each.ready and len(self.start) == before:
                turns[project] += each.slots
        self._grow_above(None)

    def _grow_above(self, priority: int | None) -> None:
        """Give slots again to those of a higher priority than this, or to all."""
        while self._growing and (priority is None or self._growing[0].priority > priority):
            one = self._growing.pop(0)
            # All that wait with its priority or a higher one have had their turn.
            if self._head is None and not self._due_later and one.project not in self._aside:
                self._grow(one)

    def _grow(self, one: Holding) -> None:
        most = self._limits.project(one.project).most(self.name)
        room = max(self._free, 0)
        if most is not None:
            room = min(room, max(most - self._of[one.project], 0))
        slots = min(one.full or one.slots, one.slots + room)
        if slots > one.keeps:
            self.grow[one.id] = slots
            self._hold(one.project, max(slots - one.slots, 0))

    def _hold(self, project: str, slots: int) -> None:
        self._free -= slots
        self._of[project] = self._of.get(project, 0) + slots

    def _over_limit(self, each: Waiting) -> int:
        """How many slots too many its project would hold with it; at most zero if none."""
        most = self._limits.project(each.project).most(self.name)
        return self._of.get(each.project, 0) + each.slots - most if most is not None else 0

    def _give_way(self, each: Waiting) -> bool:
        """Whether it fits once others have gone or given slots back, as lower ones are now told."""
        coming = {one.id: one.slots - one.keeps for one in self._held}
        too_many = self._over_limit(each) - self._sum(coming, each.project)
        victims = sorted(
            (one for one in self._held if not one.leaving and one.priority < each.priority),
            key=lambda one: (-one.priority, one.started),
            reverse=True,
        )
        own = each.project if too_many > 0 else None
        taken = fewest(
            victims,
            lacking=each.slots - self._free - self._sum(coming),
            too_many=too_many,
            project=each.project,
            level=lambda one: (own is not None and one.project != own, one.priority),
        )
        if taken is None:
            return False
        for one in victims:
            if taken.get(one.id) == one.keeps:
                self.preempt.append(one.id)
            elif one.id in taken:
                self.shrink[one.id] = Gift(one.keeps - taken[one.id], each.id)
        return True

    def _sum(self, slots: Mapping[str, int], project: str | None = None) -> int:
        return sum(slots[one.id] for one in self._held if project in (None, one.project))
