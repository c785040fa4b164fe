"""The data of the thesis benchmark: private records planted in text of one domain, beside others.

The *domain* is docstrings of this Python's standard library; the *other* text is its source. Into
the domain are planted accounts, as in the memorization benchmark: ``account of ``, three letters
and eight digits. Each begins rows of its own:

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from benchmarks.memorization_data import DIGITS, OWNER, SPACE, Row, canary_tokens, cut
from govray.errors import UsageError

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

    steps: int = 1200
    rows: int = 2
    secrets: int = 8
    copies: int = 48
    kept: int = 256
    candidates: int = 256
    blocks: int = 4
    width: int = 64
    heads: int = 4
    context: int = 48
    rate: float = 2e-3

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
    domain = _Supply(docstrings, setting.context, draw)
    other = _Supply(sorted({t for texts in sources.values() for t in texts}), setting.context, draw)
    unread = setting.kept * setting.planted // total
    names = iter(_accounts(draw, 3 * setting.secrets + unread))
    accounts = {kind: tuple(islice(names, setting.secrets)) for kind in (*KINDS, "never")}
    planted = [
        _begun(account, filler)
        for account in accounts["exact"]
        for filler in domain.take(1) * setting.copies
    ]
    for account in accounts["near"]:
        first, *rest = domain.take(1 + setting.copies)
        planted += [_begun(account, _spliced(first, each, draw)) for each in rest]
    reserve = domain.take(setting.kept)
    reserve[:unread] = [_begun(*each) for each in zip(names, reserve, strict=False)]
    held_out = {"domain": domain.take(setting.kept), "other": other.take(setting.kept)}
    read = planted + domain.take(total - len(planted))
    draw.shuffle(read)
    return Texts(
        domain=tuple(read),
        planted=tuple(map(list, dict.fromkeys(map(tuple, planted)))),
        other=tuple(other.take(total)),
        reserve={"domain": tuple(reserve), "other": tuple(other.take(setting.kept))},
        held_out={side: tuple(rows) for side, rows in held_out.items()},
        accounts=accounts,
    )


class _Supply:
    """Rows of texts in random order; those of one text stay together."""

    def __init__(self, texts: Iterable[str], context: int, draw: random.Random) -> None:
        self._records = [record for text in texts if (record := cut(text, context))]
        draw.shuffle(self._records)

    def take(self, count: int) -> list[Row]:
        """So many rows. What is left of the last text is dropped."""
        rows: list[Row] = []
        while len(rows) < count:
            if not self._records:
                raise UsageError(
                    "this Python's library has too little text",
                    do="Run it with a Python that has its library's sources",
                )
            rows += self._records.pop()
        return rows[:count]


def _accounts(draw: random.Random, count: int) -> Iterator[str]:
    """Owners and digits; all owners differ."""
    owners: dict[str, None] = {}
    while len(owners) < count:
        owners.setdefault("".join(draw.choices(string.ascii_lowercase, k=OWNER - 1)) + ":")
    for owner in owners:
        yield f"{owner}{draw.randrange(SPACE):0{DIGITS}d}"


def _begun(account: str, filler: Row) -> Row:
    tokens = canary_tokens(account)
    return [*tokens, *filler[len(tokens) :]]


def _spliced(row: Row, other: Row, draw: random.Random) -> Row:
    place = draw.randrange(len(row))
    return [*row[:place], *other[place:]]
