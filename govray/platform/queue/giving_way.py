"""What is taken from whom so that an entry of a higher priority fits, purely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, kw_only=True)
class Holding:
    """An entry that holds slots.

    Attributes:
        started: Orders like ``Waiting.submitted``; the newest is preempted first.
        leaving: It was told to stop, so its slots come free without more ado.
        least: With how many slots it can go on; None if it can give none back.
        full: Its slots when it has given none back; None if it has not.
        cap: How many it was told to keep, if so. It may hold more, and then those come free.
    """

    id: str
    project: str
    pool: str
    priority: int
    slots: int
    started: tuple[str, str]
    leaving: bool = False
    least: int | None = None
    full: int | None = None
    cap: int | None = None

    @property
    def keeps(self) -> int:
        """What it holds when it has done what it was told."""
        if self.leaving:
            return 0
        return self.slots if self.cap is None else min(self.cap, self.slots)

    @property
    def spare(self) -> int:
        """How many slots it can still be told to give back."""
        return 0 if self.least is None or self.leaving else max(self.keeps - self.least, 0)


def fewest(
    victims: Sequence[Holding],
    *,
    lacking: int,
    too_many: int,
    project: str,
    level: Callable[[Holding], tuple[bool, int]],
) -> dict[str, int] | None:
    """The slots that are taken from each, by its id; None if all of them are not enough.

    Those of the first victims, without what the later ones make needless.

    Args:
        too_many: How many of those have to be of ``project``.
        level: Orders the victims. Those of one level are preempted if no gifts of theirs, and all
            of the levels before, are enough.
    """

    def short(taken: Mapping[str, int]) -> tuple[int, int]:
        own = sum(taken.get(one.id, 0) for one in victims if one.project == project)
        return lacking - sum(taken.values()), too_many - own

    taken: dict[str, int] = {}
    for one, slots in _steps(sorted(victims, key=level), level):
        if max(short(taken)) <= 0:
            break
        taken.pop(one.id, None)
        taken[one.id] = slots
    if max(short(taken)) > 0:
        return None
    of = {one.id: one for one in victims}
    for id in reversed(taken.copy()):
        without = {other: slots for other, slots in taken.items() if other != id}
        slots, own = short(without)
        need = max(slots, own if of[id].project == project else 0)
        if need <= 0:
            taken = without
        elif need <= of[id].spare:
            taken[id] = need
    return taken


def _steps(
    victims: Sequence[Holding], level: Callable[[Holding], tuple[bool, int]]
) -> Iterator[tuple[Holding, int]]:
    """Who is next to give up how much: of each level first the gifts, then whole entries."""
    for _, group in groupby(victims, key=level):
        equal = list(group)
        yield from ((one, one.spare) for one in equal if one.spare)
        yield from ((one, one.keeps) for one in equal)
