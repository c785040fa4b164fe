"""What sites reserve: a dated snapshot of robots.txt, tdmrep.json and ai.txt, and what it says of a
URL.

A snapshot is JSON lines, one for each file that a crawler asked a host for::

    {"host": "news.example", "path": "/robots.txt", "fetched": "2026-10-01T08:00:00Z",
     "status": 200, "body": "User-agent: *\\nDisallow: /premium/"}

What a host says is read as its format has it:

* ``/robots.txt`` (RFC 9309) and ``/ai.txt``, which has the same form: what is disallowed to one of
  the agents is reserved. Lines of other fields separate no groups (section 2.2.4), and an agent is
  its product token, without a version. A status of 400 to 499 says that there is no such file, and
  nothing is reserved. Any other status than 200 to 299 reserves all (section 2.3.1.4).
* ``/.well-known/tdmrep.json`` (TDM Reservation Protocol, W3C Community Group): a location is
  reserved unless its ``tdm-reservation`` is 0, whatever other entries say of it.
* A URL is reserved if its path is, as it stands or without dot segments (RFC 3986 section 5.2.4).

What can't be understood reserves: a file of other lines alone reserves all.

A host of which the snapshot has no robots.txt was not looked at, and nothing is known of its URLs.
Nothing is fetched here. A reservation in the page itself or in its header is not seen.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from protego import Protego

from govray.data.sources.quarantine import Quarantine
from govray.data.sources.record import SourceRecord
from govray.errors import Malformed, UsageError
from govray.governance.formats.document import parse_time

ROBOTS, TDMREP, AI = "/robots.txt", "/.well-known/tdmrep.json", "/ai.txt"
PATHS = (ROBOTS, TDMREP, AI)
EVERYBODY = ("*",)
"""The agents whose rules count, if nobody names any."""
MOST_BYTES = 512 << 20
"""Of a snapshot, which is held in memory."""
LONGEST_BODY = 512 * 1024
"""Characters of a file. RFC 9309 section 2.5 has 500 KiB as what a parser reads at least."""
MOST_LOCATIONS = 10_000

_ALL = "User-agent: *\nDisallow: /"
_BYTE_ORDER_MARKS = ("\ufeff", "\u00ef\u00bb\u00bf")
"""As UTF-8 reads it, and as Latin-1 does."""
_AGENT = re.compile(r"user[- ]?agent", re.IGNORECASE)
_RULE = re.compile(r"dis\S*|d\S*allow\S*|allow", re.IGNORECASE)
"""Of fields. Whatever resembles ``disallow`` is one."""
_OTHER = re.compile(
    r"site-?maps?|host|(crawl|request|visit)[- ](delay|rate|time)|clean-param|content-signal",
    re.IGNORECASE,
)
_SPACED = re.compile(r"(user[- ]?agent|\S+)\s+(.*)", re.IGNORECASE)
"""A line whose field no colon ends."""
_NO_TRAINING = re.compile(r"content-signal\s*:.*\bai-train\s*=\s*no\b", re.IGNORECASE)
"""A line of Cloudflare's Content Signals Policy, which reserves the whole site."""
_NOT_RESERVED = (0, "0")
_LOCATION = re.compile(r"[/*][!-~]{0,2047}")
_FIELDS = {"host", "path", "fetched", "status", "body"}


@dataclass(frozen=True)
class Fetched:
    """One file as a host gave it. ``body`` is empty unless ``status`` is 200 to 299."""

    path: str
    fetched: str
    status: int
    body: str


@dataclass(frozen=True)
class Reservation:
    """That rights in a URL are reserved: by which file, of when."""

    path: str
    fetched: str

    def __str__(self) -> str:
        return f"rights reserved by {self.path} of {self.fetched}"


class NotLookedAt(Exception):
    """Nothing is known of a URL; the text says why."""


@dataclass(frozen=True)
class OptOuts:
    """A snapshot.

    Attributes:
        digest: Of the file's bytes, ``sha256:…``.
        hosts: Host → its files by path.
        agents: The user agents that count, of whom the data are for.
    """

    digest: str
    first: str
    last: str
    hosts: dict[str, dict[str, Fetched]] = field(repr=False)
    agents: tuple[str, ...]

    def reservation(self, url: str) -> Reservation | None:
        """What reserves rights in a URL; None: nothing does.
        Raises ``NotLookedAt``: it is no URL of the web, or the snapshot does not have its host."""
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").lower().rstrip(".")
        except ValueError:
            raise NotLookedAt("no URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise NotLookedAt("no URL of the web")
        files = self.hosts.get(host, {})
        if ROBOTS not in files:
            raise NotLookedAt(f"the snapshot of opt-outs has no robots.txt of {host[:200]}")
        for path in PATHS:
            if (found := files.get(path)) is not None and _reserves(found, parts, self.agents):
                return Reservation(path, found.fetched)
        return None


def read_opt_outs(path: Path, agents: Sequence[str]) -> OptOuts:
    if not agents or not all(each and each.isprintable() for each in agents):
        raise UsageError("no user agent is named", where="--opt-out-agent", do="Name one, or *")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"larger than {MOST_BYTES >> 20} MiB", where=str(path))
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=str(path)) from None
    hosts: dict[str, dict[str, Fetched]] = {}
    times: list[str] = []
    for number, line in enumerate(data.splitlines(), 1):
        host, found = _read_line(line, f"{path}, line {number}")
        files = hosts.setdefault(host, {})
        if found.path in files:
            raise Malformed(
                f"{host}{found.path} stands there twice", where=f"{path}, line {number}"
            )
        files[found.path] = found
        times.append(found.fetched)
    if not times:
        raise Malformed("a snapshot has a line for each file", where=str(path))
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    return OptOuts(digest, min(times), max(times), hosts, tuple(dict.fromkeys(agents)))


def _read_line(line: bytes, where: str) -> tuple[str, Fetched]:
    try:
        value: Any = json.loads(line)
        known = isinstance(value, dict) and set(value) <= _FIELDS
        host, path, status = value["host"], value["path"], value["status"]
        fetched, body = value["fetched"], value.get("body", "")
        parse_time(fetched)
    except (ValueError, KeyError, TypeError, RecursionError, Malformed):
        known = False
    if not known or not isinstance(host, str) or not host or host != host.lower().rstrip("."):
        raise Malformed(
            "no line of a snapshot",
            where=where,
            do='Write {"host": …, "path": "/robots.txt", "fetched": "2026-10-01T08:00:00Z", '
            '"status": 200, "body": …}, the host in lower case',
        )
    if path not in PATHS:
        raise Malformed(f"no such file: {path!r}", where=where, do=f"Known are {', '.join(PATHS)}")
    if type(status) is not int or not 100 <= status <= 599 or not isinstance(body, str):
        raise Malformed("status is an HTTP status, and body is text", where=where)
    if len(body) > LONGEST_BODY:
        raise Malformed(f"a body of more than {LONGEST_BODY} characters", where=where)
    found = Fetched(path, fetched, status, body if 200 <= status <= 299 else "")
    return host, found


def _reserves(found: Fetched, url: SplitResult, agents: tuple[str, ...]) -> bool:
    if 400 <= found.status <= 499:
        return False
    if not 200 <= found.status <= 299:
        return True
    if found.path == TDMREP:
        rules, agents = _rules(_as_robots(_unmarked(found.body))), EVERYBODY
    else:
        rules = _rules(_rule_lines(_unmarked(found.body)))
    return not all(rules.can_fetch(each, agent) for each in _spellings(url) for agent in agents)


def _spellings(url: SplitResult) -> tuple[str, ...]:
    """A URL as it stands, and without dot segments, encoded ones among them."""
    paths = {url.path, *(urljoin("/", path) for path in (url.path, unquote(url.path)))}
    return tuple(url._replace(path=path).geturl() for path in sorted(paths))


def _unmarked(body: str) -> str:
    for mark in _BYTE_ORDER_MARKS:
        body = body.removeprefix(mark)
    return body


@lru_cache(maxsize=4096)
def _rules(body: str) -> Protego:
    return Protego.parse(body)


@lru_cache(maxsize=4096)
def _rule_lines(body: str) -> str:
    """The lines of a robots.txt that name agents and paths.

    The parser lets a line of another field end a group, and looks for an agent with its version. It
    passes over rules before the first agent, which are everybody's here.
    """
    if _NO_TRAINING.search(body):
        return _ALL
    lines: list[str] = []
    unknown = False
    for line in body.splitlines():
        said = line.partition("#")[0].strip()
        field, _, value = (each.strip() for each in said.partition(":"))
        known = any(each.fullmatch(field) for each in (_AGENT, _RULE, _OTHER))
        if not known and (spaced := _SPACED.fullmatch(said)):
            field, value = spaced.groups()
        if _AGENT.fullmatch(field):
            agents = (each.split("/")[0].strip() or "*" for each in value.split(","))
            lines += (f"User-agent: {agent}" for agent in agents)
        elif _RULE.fullmatch(field):
            lines = lines or ["User-agent: *"]
            lines.append(f"{'Allow' if field.lower() == 'allow' else 'Disallow'}: {value}")
        elif field and not _OTHER.fullmatch(field):
            unknown = True
    return _ALL if unknown and not lines else "\n".join(lines)


@lru_cache(maxsize=4096)
def _as_robots(body: str) -> str:
    """What a tdmrep.json reserves, in the form of robots.txt, whose patterns it has.
    A file that is malformed, or says it in another way, reserves all."""
    try:
        value: Any = json.loads(body)
        reserved = [
            str(each["location"]) for each in value if each["tdm-reservation"] not in _NOT_RESERVED
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _ALL
    if len(reserved) > MOST_LOCATIONS or not all(_LOCATION.fullmatch(each) for each in reserved):
        return _ALL
    return "\n".join(["User-agent: *", *(f"Disallow: {each}" for each in reserved)])


@dataclass
class OptOutFilter:
    """Leaves out records whose rights are reserved, and those of which nothing is known.

    Attributes:
        quarantine: Counts what is left out, by host.
        reserved: How many of them are reserved.
    """

    snapshot: OptOuts
    quarantine: Quarantine
    reserved: int = 0

    def of(self, records: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
        for record in records:
            urls = record.stated.get("url", ())
            if not urls:
                self._leave(record, "", "no URL, so nobody can tell whether rights are reserved")
                continue
            for url in urls:
                try:
                    found = self.snapshot.reservation(url)
                except NotLookedAt as error:
                    self._leave(record, _host(url), str(error))
                    break
                if found is not None:
                    self.reserved += 1
                    self._leave(record, _host(url), str(found))
                    break
            else:
                yield record

    def _leave(self, record: SourceRecord, value: str, why: str) -> None:
        self.quarantine.put(record.where, "url", value, why)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
