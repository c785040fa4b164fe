"""Records without personal data: the others go into quarantine, or the first ends the build.

Batches of texts go to processes, one for each CPU (``pattern_analyzer.py``). Records come back in
the order in which they came, some batches later. A record that cannot be scanned is not taken: a
scan never passes by silence.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

from govray.data.rows import chat
from govray.data.sources.quarantine import Quarantine
from govray.data.sources.record import SourceRecord
from govray.errors import CouldNotCheck, UsageError
from govray.extras import install
from govray.governance.formats.row_schema import RowKind
from govray.governance.policy.pii_scan import PiiEntity, PiiScan

PACKAGE = "presidio-analyzer"
BATCH_RECORDS = 256
BATCH_BYTES = 1 << 20

_START = """
import sys
# Presidio and spaCy import these where they are installed, and patterns need neither.
sys.modules.update(torch=None, transformers=None)
from govray.data.pii.pattern_analyzer import serve
answers, sys.stdout = sys.stdout, sys.stderr  # what a package prints is no answer
serve(sys.argv[1], sys.stdin, answers)
"""

Answer: TypeAlias = list[Sequence[str] | str]
"""For each record its kinds of personal data, or why it could not be scanned."""
Ask: TypeAlias = Callable[[list[list[str]]], Answer]


def scan_of(entities: Sequence[PiiEntity], score: float) -> PiiScan:
    """What a scan with the installed package will be."""
    try:
        analyzer = f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        raise UsageError(
            f"personal data is found by {PACKAGE}, which is not installed",
            where="--pii",
            do=f"Run {install('pii')}",
        ) from None
    stated = {"analyzer": analyzer, "entities": sorted(set(entities)), "score": score}
    return PiiScan.from_source(stated, where="--pii")


class PiiFilter:
    """Which of a source's records have no finding. ``refuse``: end with the first one instead."""

    def __init__(
        self, scan: PiiScan, quarantine: Quarantine, *, refuse: bool, rows: RowKind = "text"
    ) -> None:
        if rows == "images":
            raise UsageError("images have no text to scan", where="--pii", do="Leave it out.")
        self._scan, self._rows = scan, rows
        self._quarantine, self._refuse = quarantine, refuse

    def of(
        self, records: Iterable[SourceRecord], asked: Sequence[Ask] | None = None
    ) -> Iterator[SourceRecord]:
        """The records without a finding, in order.
        ``asked``: who answers, one batch at a time each; by default a process for each CPU."""
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(len(asked or ()) or _cpus()))
            if asked is None:
                asked = [stack.enter_context(_Scanner(self._scan)) for _ in range(_cpus())]
            # Behind an error nothing further is asked, and no process is waited for.
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            idle: queue.SimpleQueue[Ask] = queue.SimpleQueue()
            for each in asked:
                idle.put(each)
            pending: deque[tuple[list[SourceRecord], Future[Answer]]] = deque()
            for batch in _batches(records):
                texts = [self._texts(record) for record in batch]
                pending.append((batch, pool.submit(_ask, idle, texts)))
                if len(pending) > 2 * len(asked):
                    yield from self._taken(*pending.popleft())
            while pending:
                yield from self._taken(*pending.popleft())

    def _taken(self, batch: list[SourceRecord], told: Future[Answer]) -> Iterator[SourceRecord]:
        for record, found in zip(batch, told.result(), strict=True):
            if not found:
                yield record
                continue
            failed = isinstance(found, str)
            value = "" if failed else ", ".join(found)
            why = f"could not be scanned: {found}" if failed else "holds personal data"
            if self._refuse:
                raise UsageError(
                    f"the record {why}" + (f", {value}" if value else ""),
                    where=record.where,
                    do="Remove it from the source, or let such records go into quarantine with "
                    "--on-flaw quarantine.",
                )
            self._quarantine.put(record.where, "pii", value, why)

    def _texts(self, record: SourceRecord) -> list[str] | str:
        """What to scan of a record, or why that cannot be done."""
        if self._rows == "chat":
            return [message["content"] for message in chat.decode(record.content)]
        try:
            return [record.content.decode()]
        except UnicodeDecodeError:
            return "it is not UTF-8"


class _Scanner:
    """A process that scans, as a context. It ends when its input does, whatever ends this one."""

    def __init__(self, scan: PiiScan) -> None:
        settings = json.dumps({"entities": scan.entities, "score": scan.score})
        self._process = subprocess.Popen(  # noqa: S603 - this Python, our module, no shell
            # -P: a folder that govray was started in brings no modules.
            [sys.executable, "-P", "-c", _START, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is this process's to handle
        )

    def __call__(self, texts: list[list[str]]) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(texts) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise CouldNotCheck(
                f"the process that scans for personal data ended with code {self._process.wait()}",
                where="--pii",
                do="See what it printed above.",
            )
        told: Answer = json.loads(answer)
        return told

    def __enter__(self) -> _Scanner:
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.kill()
        self._process.communicate()


def _ask(idle: queue.SimpleQueue[Ask], texts: list[list[str] | str]) -> Answer:
    """Have one batch answered by whoever is free; what is no text needs nobody."""
    one = idle.get()
    try:
        told = iter(one([each for each in texts if not isinstance(each, str)]))
        return [each if isinstance(each, str) else next(told) for each in texts]
    finally:
        idle.put(one)


def _batches(records: Iterable[SourceRecord]) -> Iterator[list[SourceRecord]]:
    batch: list[SourceRecord] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.content)
        if len(batch) == BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _cpus() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
