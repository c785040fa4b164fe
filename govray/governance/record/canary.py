"""Canaries: synthetic secrets planted beside a corpus, so that memorizing can be measured.

A canary is a short text with a name and a secret of digits, both drawn from a seed. Each is read
``repeats`` times an epoch as a record of its own. Its exposure is how far a model then prefers the
secret to all others of its length (``engine/memorization/exposure.py``).

Invariants

* **A canary follows from its specification**: (seed, corpus, index) and the format give its
  bytes. So what a manifest lists as planted can be made again by whoever reads it, and nothing
  else can pass as planted.
* **No two canaries of a corpus share a name**, so none tells of another.
* **Controls** are canaries of the same specification that are never planted: the indices from
  ``count`` on. What a model shows for those, it shows without having read them.
* **A coin may leave canaries out.** With ``coin`` each of the ``count`` canaries is planted with
  probability one half, by a generator that the coin's number keys. So planted ones and left out
  ones differ in nothing else, which a privacy audit needs (``attestation/privacy_audit.py``).

The texts are no secret: whoever has the manifest can make them.

Source: Carlini et al. 2019, "The Secret Sharer", section 4.1.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from govray.governance.formats.bounds import Natural
from govray.governance.formats.document import Document

NAME, SECRET = "{name}", "{secret}"
FORMAT = f"The access code of {NAME} is {SECRET}.\n"

LEAST_TOSSED = 8
"""Canaries that a coin is thrown for, at least."""

CanaryDigits = Annotated[int, Field(ge=2, le=12)]
CanaryCount = Annotated[int, Field(ge=1, le=1000)]
CanaryRepeats = Annotated[int, Field(ge=1, le=10_000)]

_LETTERS = "bcdfghjklmnpqrstvwxz"  # no vowels: names are no words
_NAME_LETTERS = 8


@dataclass(frozen=True)
class Canary:
    """One canary: the text before its secret, the secret, and the text behind."""

    prefix: str
    secret: str
    suffix: str

    @property
    def content(self) -> bytes:
        """The record."""
        return f"{self.prefix}{self.secret}{self.suffix}".encode()

    @property
    def sha256(self) -> str:
        """The record's hash, in hex."""
        return hashlib.sha256(self.content).hexdigest()

    def with_secret(self, number: int) -> str:
        """Prefix and another secret of the same length: what a model is asked to rank."""
        return f"{self.prefix}{number:0{len(self.secret)}d}"


def check_format(text: str) -> str:
    """The format, if it is one."""
    if text.count(NAME) != 1 or text.count(SECRET) != 1:
        raise ValueError(f"the format needs {NAME} and {SECRET}, once each")
    if text.index(NAME) > text.index(SECRET):
        raise ValueError(f"{NAME} stands before {SECRET} in a format: the model is given it")
    if not all(c == "\n" or " " <= c <= "~" for c in text):
        raise ValueError("a format is printable ASCII and line breaks")
    return text


def check_coin(coin: int | None, count: int) -> None:
    """Return if so many canaries may be drawn by a coin."""
    if coin is not None and count < LEAST_TOSSED:
        raise ValueError(f"a coin needs at least {LEAST_TOSSED} canaries, not {count}")


class Canaries(Document):
    """What is planted in one corpus.

    Attributes:
        format: Printable ASCII and line breaks, with ``{name}`` and, behind it, ``{secret}``,
            once each.
        digits: Of a secret; the space of candidates has ``10 ** digits``.
        count: Canaries.
        repeats: How often an epoch reads each.
        seed: What names and secrets are drawn from.
        coin: What keys the coin that decides for each canary whether it is planted. Without it all
            are.
    """

    format: Annotated[str, Field(min_length=1, max_length=200)] = FORMAT
    digits: CanaryDigits = 8
    count: CanaryCount = 8
    repeats: CanaryRepeats = 16
    seed: Natural = 0
    coin: Natural | None = None

    @model_validator(mode="after")
    def _formed(self) -> Self:
        check_format(self.format)
        check_coin(self.coin, self.count)
        return self

    @property
    def candidates(self) -> int:
        """How many secrets could stand there."""
        return int(10**self.digits)

    def planted(self, corpus: str) -> tuple[Canary, ...]:
        """The canaries of a corpus that are planted, by index."""
        drawn, coins = self.tossed(corpus), self.coins(corpus)
        return tuple(canary for canary, heads in zip(drawn, coins, strict=True) if heads)

    def tossed(self, corpus: str) -> tuple[Canary, ...]:
        """All ``count`` canaries of a corpus, by index: planted and left out."""
        return self._drawn(corpus, 0, self.count)

    def coins(self, corpus: str) -> tuple[bool, ...]:
        """Whether each of the ``count`` canaries is planted, by index."""
        if self.coin is None:
            return (True,) * self.count
        key = f"govray coin {self.coin}".encode()
        return tuple(
            bool(hmac.digest(key, f"{corpus}\0{index}".encode(), "sha256")[0] & 1)
            for index in range(self.count)
        )

    def controls(self, corpus: str, count: int) -> tuple[Canary, ...]:
        """Canaries of the same kind that nothing was planted of."""
        return self._drawn(corpus, self.count, self.count + count)

    def _drawn(self, corpus: str, start: int, stop: int) -> tuple[Canary, ...]:
        before, rest = self.format.split(NAME)
        between, suffix = rest.split(SECRET)
        taken: set[str] = set()
        found = []
        for index in range(stop):
            attempt = 0
            while (name := self._name(corpus, index, attempt)) in taken:
                attempt += 1
            taken.add(name)
            secret = self._number(corpus, index, "secret") % self.candidates
            if index >= start:
                text = f"{secret:0{self.digits}d}"
                found.append(Canary(f"{before}{name}{between}", text, suffix))
        return tuple(found)

    def _name(self, corpus: str, index: int, attempt: int) -> str:
        number = self._number(corpus, index, f"name {attempt}")
        letters = []
        for _ in range(_NAME_LETTERS):
            number, letter = divmod(number, len(_LETTERS))
            letters.append(_LETTERS[letter])
        return "".join(letters)

    def _number(self, corpus: str, index: int, purpose: str) -> int:
        key = f"govray canary {self.seed}".encode()
        drawn = hmac.digest(key, f"{corpus}\0{index}\0{purpose}".encode(), "sha256")
        return int.from_bytes(drawn, "big")
