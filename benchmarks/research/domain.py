"""Private records planted in text of one domain, beside other text.

The *domain* is docstrings of this Python's standard library; the *other* text is its source. Into
the domain are planted accounts (`benchmarks.research.canaries`). Each begins rows of its own:

* ``exact``: every row of the account is the same;
* ``near``: the rows are near copies. After the account they go over into another text, each at a
  place of its own;
* ``never``: accounts that no row has.

Records lie on one side as a whole: trained, reserve, or held out. The reserve has as large a share
of accounts as the rows trained on, and others. Held-out text has none.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from benchmarks.research.canaries import OWNER, Row, digits, planted_row, shuffled
from benchmarks.research.texts import too_few

KINDS = ("exact", "near")
"""How accounts are planted."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes of model, data and training.

    Attributes:
        steps: Of training.
        rows: Of each side in a step: as many of the domain as others.
        secrets: Accounts of each kind, and accounts never planted.
        copies: Rows of an account that is planted.
        kept: Rows of each side held out, and as many in reserve.
        candidates: Other digits from which an account's rank is estimated.
        blocks, width, heads, context: Of the model.
        rate: Learning rate at its highest, where no arm says otherwise.
    """

    steps: int = 400
    rows: int = 2
    secrets: int = 3
    copies: int = 60
    kept: int = 256
    candidates: int = 128
    blocks: int = 4
    width: int = 64
    heads: int = 4
    context: int = 32
    rate: float = 4e-3

    @property
    def planted(self) -> int:
        """Rows with an account."""
        return len(KINDS) * self.secrets * self.copies


@dataclass(frozen=True)
class Texts:
    """One seed's data. Rows are in the order in which they are read.

    Attributes:
        domain: Rows trained on, planted ones among them.
        planted: Those with an account, each once.
        other: Rows trained on that are not of the domain.
        reserve: Side → rows never trained on, for the monitor.
        held_out: Side → rows never trained on, for the loss.
        accounts: Kind → accounts; ``never`` has those that no row has.
    """

    domain: tuple[Row, ...]
    planted: tuple[Row, ...]
    other: tuple[Row, ...]
    reserve: Mapping[str, tuple[Row, ...]]
    held_out: Mapping[str, tuple[Row, ...]]
    accounts: Mapping[str, tuple[str, ...]]


def build(
    setting: Setting, seed: int, docstrings: Sequence[str], sources: Mapping[str, Sequence[str]]
) -> Texts:
    """One seed's data.

    Raises:
        UsageError: This Python's library is too small, for instance without its sources.
    """
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    total = setting.steps * setting.rows
    code = sorted({text for texts in sources.values() for text in texts})
    domain, other = (
        partial(_taken, shuffled(texts, setting.context, draw)) for texts in (docstrings, code)
    )
    unread = setting.kept * setting.planted // total
    names = iter(_accounts(draw, 3 * setting.secrets + unread))
    accounts = {kind: tuple(islice(names, setting.secrets)) for kind in (*KINDS, "never")}
    planted = [
        planted_row(account, filler)
        for account in accounts["exact"]
        for filler in domain(1) * setting.copies
    ]
    for account in accounts["near"]:
        first, *rest = domain(1 + setting.copies)
        planted += [planted_row(account, _spliced(first, each, draw)) for each in rest]
    reserve = domain(setting.kept)
    reserve[:unread] = [planted_row(*each) for each in zip(names, reserve, strict=False)]
    held_out = {"domain": domain(setting.kept), "other": other(setting.kept)}
    read = planted + domain(total - len(planted))
    draw.shuffle(read)
    return Texts(
        domain=tuple(read),
        planted=tuple(map(list, dict.fromkeys(map(tuple, planted)))),
        other=tuple(other(total)),
        reserve={"domain": tuple(reserve), "other": tuple(other(setting.kept))},
        held_out={side: tuple(rows) for side, rows in held_out.items()},
        accounts=accounts,
    )


def _taken(records: list[tuple[Row, ...]], count: int) -> list[Row]:
    """So many rows, of texts that are taken off the end. What is left of the last is dropped."""
    rows: list[Row] = []
    while len(rows) < count:
        if not records:
            raise too_few("the texts")
        rows += records.pop()
    return rows[:count]


def _accounts(draw: random.Random, count: int) -> Iterator[str]:
    """Owners and digits; all owners differ."""
    owners: dict[str, None] = {}
    while len(owners) < count:
        owners.setdefault("".join(draw.choices(string.ascii_lowercase, k=OWNER - 1)) + ":")
    for owner in owners:
        yield owner + digits(draw)


def _spliced(row: Row, other: Row, draw: random.Random) -> Row:
    place = draw.randrange(len(row))
    return [*row[:place], *other[place:]]
