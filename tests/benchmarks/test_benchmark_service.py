"""The service benchmark: its ledger is one, its arithmetic, and that the command runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.service import flat_queries, flatness, outcome, percentile, queries, told
from benchmarks.service_data import QUICK, entry, generated, write_ledger
from benchmarks.service_load import Answer, Client
from govray.errors import Damaged
from govray.store.tile_storage import LocalTileFolder
from govray.store.tiles import TileReader, write_tiles
from tests.support.tree import ROOT


def test_the_generated_ledger_is_the_one_that_the_store_would_write(tmp_path: Path) -> None:
    sizes = (1, 255, 256, 700, 66_000)
    roots = write_ledger(tmp_path / "log", sizes)
    for size in sizes:
        reader = TileReader(LocalTileFolder(tmp_path / "log"), size, roots[size])
        assert reader.entry(size - 1) == entry(size - 1)
        assert reader.root(size) == roots[size]
    for size in (1, 255, 700):
        folder = LocalTileFolder(tmp_path / str(size))
        assert write_tiles(folder, map(entry, range(size)), b"") == roots[size]
    with pytest.raises(Damaged):
        TileReader(LocalTileFolder(tmp_path / "log"), 700, roots[256]).inclusion(3)


def answer(seconds: float, *, began: float = 0.0, status: int = 200, wrong: str | None = None):
    return Answer(began, seconds, status, wrong, False)


def test_ratios_are_to_the_empty_handler() -> None:
    found = told(
        {
            "empty": [answer(n / 1000) for n in range(1, 101)],
            "empty within": [answer(n / 500) for n in range(1, 101)],
            "lineage 10": [answer(n / 500) for n in range(1, 101)],
            "lineage 20": [answer(n / 250) for n in range(1, 101)],
            **{f"{name} {size}": [answer(0.001)] for name in ("attestation", "inclusion")
               for size in (10, 20)},
        }
    )  # fmt: skip
    assert found["lineage 10"] == {
        "p50_ms": 102.0,
        "p99_ms": 200.0,
        "p50_vs_empty": 2.0,
        "p99_vs_empty": 2.0,
        "p50_vs_within": 1.0,
        "p99_vs_within": 1.0,
    }
    assert flatness(found, (10, 20))["lineage"] == {
        "10": {"p50": 1.0, "p99": 1.0},
        "20": {"p50": 2.0, "p99": 2.0},
    }
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_a_failure_is_in_flight_only_if_it_began_before_the_kill() -> None:
    answers = [
        answer(1.0, began=0.0),
        answer(1.0, began=9.5, status=502, wrong="status 502"),
        answer(1.0, began=10.1, status=502, wrong="status 502"),
        answer(1.0, began=10.1, status=0, wrong="status 0"),
        answer(1.0, began=3.0, wrong="other bytes"),
        answer(1.0, began=3.0, status=404, wrong="status 404"),
    ]
    found = outcome(answers, [10.0])
    assert (found["failed_in_flight"], found["failed_beyond"], found["wrong_answers"]) == (1, 2, 2)


def test_every_query_sees_a_wrong_answer(tmp_path: Path) -> None:
    data = generated(tmp_path, QUICK)
    assert generated(tmp_path, QUICK).folder == data.folder, "kept"
    for query in [*queries(data), *flat_queries(data)]:
        assert query.check(0, 500, b"") == "status 500"
        assert query.check(0, 200, b'{"path": [], "other": 1}') is not None, query.name


def test_a_closed_connection_is_opened_again_and_a_broken_answer_is_not() -> None:
    async def scene() -> list[tuple[int, bytes, bool]]:
        turns = iter(["close", "answer", "torn", "refuse"])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while (turn := next(turns, "refuse")) != "refuse":
                await reader.readuntil(b"\r\n\r\n")
                whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                writer.write(whole[:-1] if turn == "torn" else whole)
                await writer.drain()
                if turn in ("close", "torn"):
                    break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client(server.sockets[0].getsockname()[1], "token")
        found = []
        for _ in range(3):
            found.append((*await client.get("/"), client.reconnected))
        server.close()
        return found

    first, second, third = asyncio.run(scene())
    assert first == (200, b"ok", False)
    assert second == (200, b"ok", True)
    assert third[0] == 0


@pytest.mark.slow
def test_the_command_measures_and_ends_with_one_json_object(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.service", "--quick", "--servers", "uvicorn", "--data",
         str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert set(report) == {"uvicorn", "seconds"}
    measured = report["uvicorn"]
    assert measured["latency"]["empty"]["p99_vs_empty"] == 1.0
    assert set(measured["throughput"]) < set(measured["latency"])
    assert all(rate > 0 for rate in measured["throughput"].values())
    assert measured["samples"] == 6
    assert set(measured["flat"]) == {"lineage", "attestation", "inclusion"}
