"""Who is started next, and who is stopped for it: of what waits and what holds slots, purely.

Pools are independent. In each, the next entry is the first by these rules:

1. Higher priority comes first.
2. Among equals, the project comes first that holds least: its slots in the pool ÷ its share.
3. Then the entry that was submitted first.

The next entry is the head of its pool. What follows it waits until it has started, however small.
So a large entry is never starved by small ones. There is one exception. An entry that its project's
limit keeps back steps aside, and with it all later ones of its project: others use what it cannot.

If the head does not fit, entries of lower priority are preempted for it. The lowest priority goes
first, then the newest start, and none without need. Equal priority is never preempted. Where the
limit of the entry's own project is in the way, entries of that project are the first to go.

An entry larger than its pool or its project's limit is refused: it would wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """An entry that waits. ``submitted`` orders: a time, and a name that makes it unique.

    Attributes:
        ready: False until its next try is due. Then it takes no part.
    """

    id: str
    project: str
    pool: str
    priority: int
    slots: int
    submitted: tuple[str, str]
    ready: bool = True


@dataclass(frozen=True, kw_only=True)
class Holding:
    """An entry that holds slots.

    Attributes:
        started: Orders like ``Waiting.submitted``; the newest is preempted first.
        leaving: It was told to stop, so its slots come free without more ado.
    """

    id: str
    project: str
    pool: str
    priority: int
    slots: int
    started: tuple[str, str]
    leaving: bool = False


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
        """What this project may hold."""
        return self.projects.get(name, self.others)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows, by the entries' ids.

    Attributes:
        start: To start, in this order.
        preempt: To stop, so that they come back to the queue.
        refuse: What can never start → why.
        order: What goes on waiting, in order, by pool.
        waits: What goes on waiting → why.
    """

    start: tuple[str, ...] = ()
    preempt: tuple[str, ...] = ()
    refuse: Mapping[str, str] = field(default_factory=dict)
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)


def decide(waiting: Iterable[Waiting], holding: Iterable[Holding], limits: SlotLimits) -> Decision:
    """What to start and what to preempt now, of all pools."""
    refuse: dict[str, str] = {}
    lines: dict[str, list[Waiting]] = {}
    for each in waiting:
        if why := never(each.pool, each.project, each.slots, limits):
            refuse[each.id] = why
        else:
            lines.setdefault(each.pool, []).append(each)
    held = list(holding)
    pools = [
        _Pool(name, line, [each for each in held if each.pool == name], limits)
        for name, line in sorted(lines.items())
    ]
    for pool in pools:
        pool.decide()
    return Decision(
        start=tuple(id for pool in pools for id in pool.start),
        preempt=tuple(id for pool in pools for id in pool.preempt),
        refuse=refuse,
        order={pool.name: tuple(pool.order) for pool in pools},
        waits={id: why for pool in pools for id, why in pool.waits.items()},
    )


def never(pool: str, project: str, slots: int, limits: SlotLimits) -> str | None:
    """Why such an entry could never start, or None if it can."""
    size = limits.pools.get(pool)
    if size is None:
        known = ", ".join(sorted(limits.pools))
        return f"there is no pool {pool!r}; there are: {known}"
    if slots > size:
        return f"it needs {slots} slots, and pool {pool!r} has {size}"
    most = limits.project(project).most(pool)
    if most is not None and slots > most:
        return f"it needs {slots} slots, and project {project!r} may hold {most} in pool {pool!r}"
    return None


def position(id: str, decision: Decision) -> int | None:
    """The place of a waiting entry in its pool's line, from 1; None if it does not wait."""
    for line in decision.order.values():
        if id in line:
            return line.index(id) + 1
    return None


class _Pool:
    """One pool while its line is walked."""

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
        self.start: list[str] = []
        self.preempt: list[str] = []
        self.order: list[str] = []
        self.waits: dict[str, str] = {}

    def decide(self) -> None:
        aside: set[str] = set()
        head: Waiting | None = None
        for each in self._by_turns():
            if not each.ready:
                self._wait(each, "its next try is not due yet")
            elif head is not None:
                self._wait(each, f"behind {head.id}")
            elif each.project in aside:
                self._wait(each, f"behind others of {each.project!r}, which is at its limit")
            elif self._over_limit(each) <= 0 and each.slots <= self._free:
                self._free -= each.slots
                self._of[each.project] = self._of.get(each.project, 0) + each.slots
                self.start.append(each.id)
            else:
                if self._give_way(each) or self._over_limit(each) <= 0:
                    head = each
                else:
                    aside.add(each.project)
                self._wait(each, self._why(each))

    def _by_turns(self) -> Iterable[Waiting]:
        """The line in order. What was told to start counts as held for who is next.

        What waits counts too from there on, so that positions tell the turns to come.
        """
        lines: dict[str, deque[Waiting]] = {}
        for each in sorted(self._line, key=lambda one: (-one.priority, one.submitted)):
            lines.setdefault(each.project, deque()).append(each)
        turns: dict[str, int] = dict.fromkeys(lines, 0)

        def turn(project: str) -> tuple[int, float, tuple[str, str]]:
            first = lines[project][0]
            held = self._of.get(project, 0) + turns[project]
            return -first.priority, held / self._limits.project(project).share, first.submitted

        while lines:
            project = min(lines, key=turn)
            each = lines[project].popleft()
            if not lines[project]:
                del lines[project]
            before = len(self.start)
            yield each
            if each.ready and len(self.start) == before:
                turns[project] += each.slots

    def _over_limit(self, each: Waiting) -> int:
        """How many slots too many its project would hold with it; at most zero if none."""
        most = self._limits.project(each.project).most(self.name)
        return self._of.get(each.project, 0) + each.slots - most if most is not None else 0

    def _give_way(self, each: Waiting) -> bool:
        """Whether it fits once some have gone: those that leave, and lower ones, now preempted."""
        leaving = [one for one in self._held if one.leaving]
        victims = sorted(
            (one for one in self._held if not one.leaving and one.priority < each.priority),
            key=lambda one: (-one.priority, one.started),
            reverse=True,
        )
        chosen = _fewest(
            victims,
            enough=lambda gone: (
                self._over_limit(each) <= _slots(gone + leaving, each.project)
                and each.slots - self._free <= _slots(gone + leaving)
            ),
            own=each.project if self._over_limit(each) > _slots(leaving, each.project) else None,
        )
        if chosen is None:
            return False
        self.preempt.extend(one.id for one in chosen)
        return True

    def _wait(self, each: Waiting, why: str) -> None:
        self.order.append(each.id)
        self.waits[each.id] = why

    def _why(self, each: Waiting) -> str:
        if self._over_limit(each) > 0:
            most = self._limits.project(each.project).most(self.name)
            return f"project {each.project!r} may hold {most} slots in pool {self.name!r}"
        return f"it needs {each.slots} slots, and {max(self._free, 0)} are free"


def _slots(entries: Sequence[Holding], project: str | None = None) -> int:
    return sum(one.slots for one in entries if project in (None, one.project))


def _fewest(
    victims: Sequence[Holding],
    *,
    enough: Callable[[list[Holding]], bool],
    own: str | None,
) -> list[Holding] | None:
    """The first victims that are enough, without those that the others make needless.

    Args:
        own: The project whose entries are taken first, for its limit is in the way.
    """
    taken: list[Holding] = []
    for one in sorted(victims, key=lambda one: one.project != own) if own else victims:
        if enough(taken):
            break
        taken.append(one)
    if not enough(taken):
        return None
    for one in reversed(taken.copy()):
        rest = [other for other in taken if other is not one]
        if enough(rest):
            taken = rest
    return taken
