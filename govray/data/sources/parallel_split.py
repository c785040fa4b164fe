"""Corpora built by several processes, with Ray Data: the roots of one process.

Each task reads some objects that follow each other, in the order of the source. It writes the parts
of each corpus that it finds records for, and returns their leaves. The driver takes the parts in
order under their final names, and makes the root. Parts end where a task does. Which objects a task
reads follows from the source alone, not from how many tasks run at a time.

Ray Data holds back tasks that are ahead of the driver. Tasks write below the folder of corpora,
which all nodes share. Pickle is used between the driver and its own tasks only, never on what lies
on storage.
"""

from __future__ import annotations

import hmac
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data

from govray.data.corpus import (
    Leaves,
    PartsWriter,
    check_name,
    check_vacant,
    disk_errors,
    new_secret,
)
from govray.data.prepared.ray_failures import ray_failures_named
from govray.data.sources.objects import RecordSource
from govray.data.sources.quarantine import RecordFilter, one_corpus
from govray.data.sources.reader import Reading
from govray.data.sources.record import SourceRecord
from govray.data.sources.split import (
    Check,
    NewCorpora,
    SplitCorpus,
    clear,
    write_records,
)
from govray.data.sources.terms import RecordTerms, TermsReader
from govray.errors import GovrayError
from govray.storage.atomic_file import make_folder

TASK_BYTES = 32 << 20
"""Bytes of objects that one task reads, compressed as they are; a larger object has its own."""


@dataclass
class TaskResult:
    """What one task wrote of each corpus, what it left out, and why it ended early, if it did."""

    corpora: dict[RecordTerms | None, SplitCorpus]
    selection: RecordFilter
    error: GovrayError | None = None


def split(
    out: Path,
    name: str,
    source: RecordSource,
    reading: Reading,
    terms: TermsReader | None,
    selection: RecordFilter,
    *,
    check: Check = lambda corpus, terms: None,
) -> tuple[SplitCorpus, ...]:
    """As `govray.data.sources.split.split`; without ``terms`` all records are one corpus.
    ``selection`` counts what is left out."""
    check_name(name)
    if terms is None:
        check_vacant(out / name)
    with ExitStack() as staged, disk_errors(out):
        make_folder(out)
        scratch = tempfile.TemporaryDirectory(prefix=f".{name}.parts.", dir=out)
        folder = Path(staged.enter_context(scratch)).resolve()
        new = NewCorpora(out, name, terms.defaults if terms else {}, check, staged)
        task = SplitTask(reading, terms, folder, new_secret())
        for result in _results(source, task):
            selection.merge(result.selection)
            if result.error is not None:
                raise result.error
            for found, part in result.corpora.items():
                corpus = new.corpora.get(found) or new.begin(found, secret_of(task.secret, found))
                corpus.parts.adopt(part.parts)
                corpus.languages |= part.languages
        made = new.sorted(selection.quarantine)
        source.check_unchanged()
        return made


def secret_of(secret: bytes, terms: RecordTerms | None) -> bytes:
    """The secret of one corpus, which tasks and driver derive from one that nobody keeps."""
    return hmac.digest(secret, repr(terms).encode(), "sha256")


def _results(source: RecordSource, task: SplitTask) -> Iterator[TaskResult]:
    items = [
        {"number": number, "source": pickle.dumps(bundle)}
        for number, bundle in enumerate(bundles(source))
    ]
    dataset = ray.data.from_items(items, override_num_blocks=max(1, len(items))).map_batches(
        task, batch_size=1, batch_format="pyarrow", num_cpus=1
    )
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    batches: Iterable[Any] = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    with ray_failures_named("reading the source"):
        for batch in batches:
            for data in batch.column("result").to_pylist():
                yield pickle.loads(data)  # noqa: S301  made by our own task


def bundles(source: RecordSource) -> Iterator[RecordSource]:
    """The objects of each task, in order."""
    begin = size = 0
    for number, found in enumerate(source.objects, 1):
        size += found.stamp.size
        if size >= TASK_BYTES or number == len(source.objects):
            yield replace(source, objects=source.objects[begin:number], left_out=())
            begin, size = number, 0


@dataclass(frozen=True)
class SplitTask:
    """The work on some objects; travels to Ray Data's tasks."""

    reading: Reading
    terms: TermsReader | None
    scratch: Path
    secret: bytes

    def __call__(self, batch: pa.Table) -> pa.Table:
        """For ``map_batches``: numbered, pickled sources in, pickled results out."""
        results = []
        for row in batch.to_pylist():
            source: Any = pickle.loads(row["source"])  # noqa: S301  made by our own driver
            results.append(pickle.dumps(self.run(source, self.scratch / f"{row['number']:06}")))
        return pa.table({"result": pa.array(results, type=pa.large_binary())})

    def run(self, source: RecordSource, folder: Path) -> TaskResult:
        """Write the parts of some objects below a folder."""
        selection = self.reading.filter()
        numbers = count()

        def begin(terms: RecordTerms | None) -> SplitCorpus:
            here = folder / f"{next(numbers):03}"
            make_folder(here)
            # The driver writes the secret, once.
            secret = secret_of(self.secret, terms)
            return SplitCorpus(terms, PartsWriter(here, "corpus", secret, leaves=Leaves()), here)

        try:
            with disk_errors(folder):
                return TaskResult(write_records(self._sorted(source, selection), begin), selection)
        except GovrayError as error:
            # An error is a result: Ray would retry what is raised and wrap it in a traceback.
            return TaskResult({}, selection, error)

    def _sorted(
        self, source: RecordSource, selection: RecordFilter
    ) -> Iterator[tuple[SourceRecord, RecordTerms | None]]:
        """The records that are taken, each with its corpus's terms."""
        records = self.reading.records(source, selection, whole=False)
        if self.terms is not None:
            yield from clear(records, self.terms, selection.quarantine)
            return
        for record in records:
            for _ in one_corpus([record], set()):
                yield record, None
