"""``python -m benchmarks.service``: what a query costs, compared with an empty handler.

100 models, 1,000 corpora and a million indexed records are generated (`benchmarks.service_data`)
and kept in the folder of ``--data``. Requests go over loopback to plain uvicorn and to Ray Serve
with HAProxy. Latencies are measured with one request at
a time, throughput with eight. Each turn asks every query and the empty handler on the same server,
in rotating order. So a ratio compares requests close in time. A second empty handler is inside the
application, behind its layers and for a known caller. The time above that is the query's. Every
answer is checked.

``--mixed MINUTES`` asks all queries at once on Ray Serve while a replica is killed every minute. A
failed request counts as in flight if it began before the kill. Failures that began after it are
counted separately. A kept connection that turns out closed is opened again and the request
repeated, as HTTP clients do (RFC 9112, 9.3.1). That is counted, too.

The client shares the machine with the server. Without ``--mixed`` everything takes at most ten
minutes; one of these generates the data, once. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import positive, run
from benchmarks.service_app import READY
from benchmarks.service_data import QUICK, Data, Sizes, generated, new_token
from benchmarks.service_load import Answer, Client, Query, at_once, one_by_one
from govray.errors import CouldNotCheck, InfrastructureFailed
from govray.platform.store.store_secret import KEY_ENV, key_file

EMPTY = "empty"
WITHIN = "empty within"
"""The same behind the application's own layers, for a known caller."""

SPREAD = 64
"""How many different things a query asks about, if there are that many."""

WARM_UP = 2
"""Turns before the first that counts."""

LATENCIES_S = 150.0
"""How long measuring one server's latencies may take."""

CLIENTS = 8
REPLICAS = 2
KILL_EVERY_S = 60.0

ROOT = Path(__file__).parents[1]
AS_DEPLOYED = ["sh", "-c", '. serve/cluster.sh && exec "$@"', "sh"]
"""Put before a command's words: it runs in the environment that `serve/` is deployed in."""


def queries(data: Data) -> list[Query]:
    """The queries, both empty handlers first."""
    models, corpora, records = (
        range(min(count, SPREAD))
        for count in (data.sizes.models, data.sizes.corpora, data.sizes.records)
    )

    def by_model(name: str, path: str, body: Callable[[int], bytes]) -> Query:
        paths = [path.format(digest=data.digest(n)) for n in models]
        return Query(name, paths, lambda n, status, got: _same(status, got, body(n)))

    return [
        Query(EMPTY, ["/empty"], _exactly(b'{"ok":true}')),
        Query(WITHIN, ["/v1/empty"], _exactly(b'{"ok":true}')),
        by_model("lineage", "/v1/attestations/{digest}/lineage", data.lineage),
        by_model("attestation", "/v1/attestations/{digest}", data.envelope),
        Query(
            "corpus",
            [f"/v1/corpora/corpus-{n}" for n in corpora],
            lambda n, status, body: _names(status, body, f"corpus-{n}"),
        ),
        Query(
            "record",
            [f"/v1/records/{data.record(n)}?proofs=0" for n in records],
            lambda n, status, body: _names(status, body, f"corpus-{n % data.sizes.corpora}"),
        ),
    ]


def _exactly(expected: bytes) -> Any:
    return lambda _, status, body: _same(status, body, expected)


def _same(status: int, body: bytes, expected: bytes) -> str | None:
    if status != 200:
        return f"status {status}"
    return None if body == expected else "other bytes"


def _names(status: int, body: bytes, text: str) -> str | None:
    if status != 200:
        return f"status {status}"
    return None if text.encode() in body.replace(b'": ', b'":') else f"without {text}"


# The servers


@contextlib.contextmanager
def server(kind: str, data: Data) -> Iterator[int]:
    """A running server of ``uvicorn`` or ``serve``; its port.

    Raises:
        InfrastructureFailed: It did not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", **os.environ}
    environment[KEY_ENV] = str(key_file(data.url))
    words = [sys.executable, "-m", "benchmarks.service_app", kind, data.url, str(port)]
    words += [str(REPLICAS)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603
            [*AS_DEPLOYED, *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not any(line.strip() == READY for line in process.stdout):
                log.seek(0)
                said = log.read().decode(errors="replace").strip().splitlines()
                raise InfrastructureFailed(
                    f"the server did not start: {said[-1] if said else 'it said nothing'}",
                    where=kind,
                )
            yield port
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# What was measured


def percentile(seconds: Sequence[float], share: float) -> float:
    """The ``share`` quantile of ``seconds`` (nearest rank)."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def told(answers: dict[str, list[Answer]]) -> dict[str, dict[str, float]]:
    """p50 and p99 of each query in milliseconds, and as ratios of the two empty handlers'."""
    found: dict[str, dict[str, float]] = {}
    for name, of in answers.items():
        seconds = [each.seconds for each in of]
        found[name] = {"p50_ms": 1e3 * percentile(seconds, 0.5)}
        found[name]["p99_ms"] = 1e3 * percentile(seconds, 0.99)
    for beside, base in (("empty", found[EMPTY]), ("within", found[WITHIN])):
        base = dict(base)
        for of in found.values():
            for share in ("p50", "p99"):
                of[f"{share}_vs_{beside}"] = of[f"{share}_ms"] / base[f"{share}_ms"]
    return {name: {key: round(value, 3) for key, value in of.items()} for name, of in found.items()}


def refuse_wrong(kind: str, answers: Sequence[Answer]) -> None:
    """Raises:
    CouldNotCheck: An answer was wrong: times of wrong answers say nothing.
    """
    wrong = [each.wrong for each in answers if each.wrong]
    if wrong:
        raise CouldNotCheck(f"{len(wrong)} of {len(answers)} answers: {wrong[0]}", where=kind)


async def measured(
    kind: str, port: int, token: str, data: Data, *, requests: int, turns: int, seconds: float
) -> dict[str, Any]:
    """Latencies and throughput on one server."""
    asked = queries(data)
    for warm in (True, False):
        number = WARM_UP if warm else turns
        answers = await one_by_one(port, token, asked, requests, number, LATENCIES_S)
        refuse_wrong(kind, [each for of in answers.values() for each in of])
    latencies = told(answers)
    throughput = {}
    for query in asked:
        came = await at_once(port, token, [query], CLIENTS, seconds)
        refuse_wrong(kind, came)
        throughput[query.name] = round(len(came) / seconds, 1)
    return {
        "samples": len(answers[EMPTY]),
        "latency": latencies,
        "throughput": throughput,
    }


async def mixed(
    port: int, token: str, data: Data, *, seconds: float, kill_every: float
) -> dict[str, Any]:
    """All queries at once while replicas are killed. Returns the failures, and when they began."""
    asked = [each for each in queries(data) if each.name not in (EMPTY, WITHIN)]
    kills: list[float] = []

    async def killing() -> None:
        began = time.monotonic()
        for number in range(int(seconds // kill_every)):
            # In the middle of each interval, so that a kill's effect shows before the end.
            await asyncio.sleep(began + (number + 0.5) * kill_every - time.monotonic())
            client = Client(port, token)
            _, body = await client.get("/pid")
            await client.close()
            kills.append(time.monotonic())
            os.kill(json.loads(body)["pid"], signal.SIGKILL)

    answers, _ = await asyncio.gather(at_once(port, token, asked, CLIENTS, seconds), killing())
    return outcome(answers, kills)


def outcome(answers: Sequence[Answer], kills: Sequence[float]) -> dict[str, Any]:
    """Counts of a mixed load. See the module for what is in flight."""
    failed = [each for each in answers if each.status == 0 or each.status >= 500]
    in_flight = [
        each
        for each in failed
        if any(each.began <= at <= each.began + each.seconds for at in kills)
    ]
    return {
        "requests": len(answers),
        "kills": len(kills),
        "wrong_answers": sum(
            each.wrong is not None and each.status != 0 and each.status < 500 for each in answers
        ),
        "failed_in_flight": len(in_flight),
        "failed_beyond": len(failed) - len(in_flight),
        "reconnected": sum(each.reconnected for each in answers),
        "beyond": sorted({each.wrong or "" for each in failed if each not in in_flight}),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print a table and one JSON object.

    Raises:
        CouldNotCheck: An answer was wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Little data, few requests: seconds.")
    parser.add_argument("--data", type=Path, default=Path(".benchmark-data"), metavar="FOLDER",
                        help="Where the generated data are kept (about 1 GB).")  # fmt: skip
    parser.add_argument("--servers", default="uvicorn,serve", help="uvicorn, serve, or both.")
    parser.add_argument("--mixed", type=positive, metavar="MINUTES",
                        help="Only the mixed load on Ray Serve, for so long.")  # fmt: skip
    given = parser.parse_args(words)
    kinds = given.servers.split(",")
    if unknown := [each for each in kinds if each not in ("uvicorn", "serve")]:
        parser.error(f"{unknown[0]!r} is none of uvicorn, serve")
    sizes = QUICK if given.quick else Sizes()
    began = time.monotonic()
    print(f"data: {sizes}", file=sys.stderr, flush=True)
    data = generated(given.data.resolve(), sizes)
    token = new_token(data.url)
    print(f"data ready after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    report: dict[str, Any] = {}
    if given.mixed:
        seconds = 12.0 if given.quick else 60.0 * given.mixed
        every = 10.0 if given.quick else KILL_EVERY_S
        with server("serve", data) as port:
            report["mixed"] = asyncio.run(
                mixed(port, token, data, seconds=seconds, kill_every=every)
            )
        print(report["mixed"])
    else:
        requests, turns, seconds = (2, 3, 0.2) if given.quick else (20, 100, 4.0)
        for kind in kinds:
            with server(kind, data) as port:
                report[kind] = asyncio.run(
                    measured(
                        kind, port, token, data, requests=requests, turns=turns, seconds=seconds
                    )
                )
            show(kind, report[kind])
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report))


def show(kind: str, report: dict[str, Any]) -> None:
    """A table for people. ``x`` is relative to the empty handler, ``w`` to the inner one."""
    print(f"{kind:<22} {'p50 ms':>8} {'p99 ms':>8} {'p50 x':>6} {'p99 x':>6} {'p50 w':>6} "
          f"{'p99 w':>6} {'req/s':>8}")  # fmt: skip
    for name, of in report["latency"].items():
        ratios = (of[f"{s}_vs_{base}"] for base in ("empty", "within") for s in ("p50", "p99"))
        print(
            f"  {name:<20} {of['p50_ms']:>8.3f} {of['p99_ms']:>8.3f} "
            + " ".join(f"{ratio:>6.2f}" for ratio in ratios)
            + f" {report['throughput'].get(name, ''):>8}"
        )


if __name__ == "__main__":
    sys.exit(run(main))
