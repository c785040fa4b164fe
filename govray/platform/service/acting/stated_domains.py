"""Which domains an issuer says that a corpus came from, compared with one that somebody asks about.

Records carry no URL, so this is all that is known of where a record was fetched. A credential's
description has the largest domains at least, and the corpus's own URL. What is not listed there is
not known: it is not absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from govray.errors import UsageError
from govray.governance.policy.corpus_description import CorpusDescription

LONGEST = 2000
"""Characters of an address that is asked about."""

_AUTHORITY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?//")
_DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]")


@dataclass(frozen=True)
class StatedDomain:
    """A domain that a description lists. ``size``: how much of the corpus came from there; None of
    the corpus's own URL."""

    domain: str
    size: int | None = None
    unit: str | None = None


def domain_of(text: str) -> str:
    """The domain of a URL, or a domain by itself, as descriptions write it."""
    given = text.strip()
    try:
        host = urlsplit(given if _AUTHORITY.match(given) else f"//{given}").hostname or ""
        # IDNA 2003, as the standard library has it; descriptions have the ASCII form.
        found = host.rstrip(".").encode("idna").decode("ascii").lower()
    except ValueError:
        found = ""
    if len(given) > LONGEST or not _DOMAIN.fullmatch(found) or len(found) > 253:
        raise UsageError(
            f"{given[:80]!r} is no URL and no domain",
            where="sources",
            do="Write https://example.org/page, or example.org",
        )
    return found


def stated_domains(description: CorpusDescription | None, domain: str) -> Iterator[StatedDomain]:
    """What a description lists of ``domain``: itself, domains below it, and those above it. A
    domain above is listed for all that lies below it, so it may hold what is asked about."""
    if description is None:
        return
    if description.domains is not None:
        for listed, size in description.domains.sizes.items():
            if related(listed, domain):
                yield StatedDomain(listed, size, description.domains.unit)
    if description.url is not None:
        try:
            own = domain_of(description.url)
        except UsageError:  # a bucket's name, for example
            return
        if related(own, domain):
            yield StatedDomain(own)


def states_domains(description: CorpusDescription | None) -> bool:
    """Whether a description says anything of where its records came from."""
    return description is not None and not (description.domains is None and description.url is None)


def related(listed: str, asked: str) -> bool:
    """Whether two domains are one, or one lies below the other."""
    return listed == asked or listed.endswith(f".{asked}") or asked.endswith(f".{listed}")
