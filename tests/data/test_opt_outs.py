"""Snapshots of robots.txt, tdmrep.json and ai.txt: what they reserve, and what nobody knows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from govray.data.opt_outs.snapshot import (
    AI,
    ROBOTS,
    TDMREP,
    NotLookedAt,
    OptOutFilter,
    OptOuts,
    Reservation,
    read_opt_outs,
)
from govray.data.sources.quarantine import Quarantine
from govray.data.sources.record import SourceRecord
from govray.errors import Malformed, UsageError

AT = "2026-10-01T08:00:00Z"


def line(path: str = ROBOTS, *, host: str = "a.example", **more: Any) -> dict[str, Any]:
    return {"host": host, "path": path, "fetched": AT, "status": 200, "body": "", **more}


def snapshot(
    folder: Path, lines: Iterable[dict[str, Any] | str], agents: Iterable[str] = ("*",)
) -> OptOuts:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    (path := folder / "opt-outs.jsonl").write_text("\n".join(texts) + "\n")
    return read_opt_outs(path, tuple(agents))


def reserved(found: OptOuts, path: str) -> str | None:
    said = found.reservation(f"https://a.example{path}")
    return said.path if said else None


@pytest.mark.parametrize(
    ("body", "path", "expected"),
    [
        ("", "/x", False),
        ("User-agent: *\nDisallow:", "/x", False),
        ("User-agent: *\nDisallow: /", "/x", True),
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/c", True),
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", False),  # the longest rule counts
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf", True),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf?z", False),
        ("User-agent: other\nDisallow: /", "/x", False),
        ("User-agent: *\nAllow: /\nUser-agent: mine\nDisallow: /", "/x", True),  # one of two agents
        ("nonsense \x00 \n\n:::", "/x", True),  # what can't be understood reserves
        ("<html><p>Not here</p></html>", "/x", True),
        ("Sitemap: https://x.example/s.xml", "/x", False),
        ("\ufeffUser-agent: *\nDisallow: /", "/x", True),
        ("\u00ef\u00bb\u00bfUser-agent: *\nDisallow: /", "/x", True),  # a mark, read as Latin-1
        ("User-agent: mine\nCrawl-delay: 9\nUser-agent: b\nDisallow: /", "/x", True),
        ("User-agent: Mine/1.0\nDisallow: /", "/x", True),
        ("User agent: mine\nDissalow : /", "/x", True),
        ("User agent *\nDisallow /", "/x", True),
        ("User-agent: *\nDisallow /a:b", "/a:b", True),
        ("User-agent: other, Mine/2\nDisallow: /", "/x", True),
        ("Disallow: /", "/x", True),  # before any agent
        ("User-agent: *\nDisallow: /x/", "/a/../x/y", True),
        ("User-agent: *\nDisallow: /x/", "/a/%2E%2e/x/y", True),
        ("Content-Signal: search=yes, ai-train=no\nUser-agent: *\nAllow: /", "/x", True),
    ],
)
@pytest.mark.parametrize("file", [ROBOTS, AI])
def test_robots_and_ai_txt_are_read_as_rfc_9309_has_it(
    tmp_path: Path, file: str, body: str, path: str, expected: bool
) -> None:
    lines = [line(file, body=body)] + ([line(ROBOTS)] if file == AI else [])
    found = snapshot(tmp_path, lines, ("*", "mine"))
    assert (reserved(found, path) == file) == expected


@pytest.mark.parametrize(
    ("entries", "path", "expected"),
    [
        ([], "/x", False),
        ([{"location": "/", "tdm-reservation": 0}], "/x", False),
        ([{"location": "/", "tdm-reservation": 1, "tdm-policy": "https://p"}], "/x", True),
        ([{"location": "/", "tdm-reservation": "0"}], "/x", False),
        ([{"location": "/", "tdm-reservation": "1"}], "/x", True),
        ([{"location": "/", "tdm-reservation": True}], "/x", True),
        ([{"location": "/m/*", "tdm-reservation": 1}], "/x", False),
        ([{"location": "/m/*", "tdm-reservation": 1}], "/m/1", True),
        # Whatever the order is, one that reserves is enough.
        (
            [{"location": "/m/1", "tdm-reservation": 0}, {"location": "/m/", "tdm-reservation": 1}],
            "/m/1",
            True,
        ),
        ({"not": "a list"}, "/x", True),
        ([{"location": "/x"}], "/y", True),  # it cannot be read
        ([{"location": "/x\nAllow: /", "tdm-reservation": 1}], "/y", True),  # no second rule
        ([{"location": "x", "tdm-reservation": 1}], "/y", True),
    ],
)
def test_tdmrep_reserves_locations_and_all_if_it_cannot_be_read(
    tmp_path: Path, entries: object, path: str, expected: bool
) -> None:
    found = snapshot(tmp_path, [line(ROBOTS), line(TDMREP, body=json.dumps(entries))])
    assert (reserved(found, path) == TDMREP) == expected


def test_what_was_not_looked_at_is_no_no(tmp_path: Path) -> None:
    found = snapshot(tmp_path, [line(), line(AI, host="b.example")])
    assert found.reservation("http://A.example./x") is None  # one host, in whatever spelling
    for url in ("https://b.example/", "https://c.example/", "ftp://a.example/", "a.example/x", ""):
        with pytest.raises(NotLookedAt):
            found.reservation(url)
    with pytest.raises(NotLookedAt):
        found.reservation("https://[::1/")


def test_a_filter_leaves_out_what_is_reserved_and_what_is_unknown(tmp_path: Path) -> None:
    body = "User-agent: *\nDisallow: /private/"
    found = snapshot(tmp_path, [line(body=body)])
    urls = [
        ("https://a.example/1",),
        ("https://a.example/private/2",),
        ("https://b.example/3",),
        (),
    ]
    urls.append(("https://a.example/4", "https://a.example/private/4"))  # one of two is enough
    records = [
        SourceRecord(f"r#{n}", f"r, row {n}", b"x", {"url": each} if each else {})
        for n, each in enumerate(urls)
    ]
    kept = OptOutFilter(found, quarantine := Quarantine())
    assert [each.name for each in kept.of(records)] == ["r#0"]
    assert (kept.reserved, quarantine.records) == (2, 4)
    [first, *_] = quarantine.values
    assert (first.value, first.why) == ("a.example", str(Reservation(ROBOTS, AT)))
    # The control: a snapshot that reserves nothing keeps them.
    free = OptOutFilter(snapshot(tmp_path, [line()]), Quarantine())
    assert len(list(free.of(records))) == 3
    assert free.reserved == 0


def test_a_snapshot_is_whole(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="stands there twice"):
        snapshot(tmp_path, [line(), line()])
    (tmp_path / "empty").touch()
    with pytest.raises(Malformed):
        read_opt_outs(tmp_path / "empty", ("*",))
    with pytest.raises(UsageError, match="cannot be read"):
        read_opt_outs(tmp_path / "none", ("*",))
    with pytest.raises(UsageError, match="no user agent"):
        read_opt_outs(tmp_path / "empty", ())


def test_hostile_patterns_cost_little(tmp_path: Path) -> None:
    stars = "/" + "*a" * 200 + "*b$"
    found = snapshot(
        tmp_path,
        [
            line(body=f"User-agent: *\nDisallow: {stars}"),
            line(TDMREP, body=json.dumps([{"location": stars, "tdm-reservation": 1}])),
        ],
    )
    began = time.process_time()
    assert reserved(found, "/" + "a" * 2000) is None
    assert time.process_time() - began < 2
