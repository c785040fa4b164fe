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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data

from govray.data.corpus import (
    Built,
    Leaves,
    PartsWriter,
    check_name,
    check_vacant,
    disk_errors,
    new_secret,
)
from govray.data.prepared.ray_failures import ray_failures_named
from govray.data.sources import reader
from govray.data.sources.columns import ColumnMapping
from govray.data.sources.objects import RecordSource
from govray.data.sources.quarantine import RecordFilter, one_corpus
from govray.data.sources.record import SourceRecord
from govray.data.sources.split import SplitCorpus, check_count, clear, corpus_name, nothing_left
from govray.data.sources.terms import RecordTerms, TermsReader
from govray.errors import GovrayError
from govray.governance.formats.row_schema import RowSchema
from govray.governance.policy.credential import Normalisation
from govray.storage.atomic_file import make_folder
from govray.storage.staged_folder import staged_folder

TASK_BYTES = 32 << 20
"""Bytes of objects that one task reads, compressed as they are; a larger object has its own."""


@dataclass(frozen=True)
class Reading:
    """How every object is read, as for `reader.read` and `RecordFilter`."""

    columns: ColumnMapping
    limit: int | None = None
    normalisation: tuple[Normalisation, ...] = ()
    schema: RowSchema | None = None
    refuse_flaws: bool = False
    only_split: str | None = None


@dataclass
class CorpusPiece:
    """What one task wrote of one corpus.

    Attributes:
        terms: The corpus's; None if all records are to be one.
        leaves: Hashes of the records' leaves, 32 bytes each.
        first, last: Names of records.
        bytes: Of all records.
        languages: That the records state.
    """

    terms: RecordTerms | None
    files: list[Path]
    leaves: bytes
    first: str
    last: str
    bytes: int
    languages: set[str]


@dataclass
class TaskResult:
    """What one task found: the pieces, what it left out, and why it ended early, if it did."""

    pieces: list[CorpusPiece]
    selection: RecordFilter
    error: GovrayError | None = None


def split(
    out: Path,
    name: str,
    source: RecordSource,
    reading: Reading,
    terms: TermsReader,
    selection: RecordFilter,
    *,
    check: Callable[[str, RecordTerms], object] = lambda corpus, terms: None,
) -> tuple[SplitCorpus, ...]:
    """As `govray.data.sources.split.split`, with the same roots for the same secrets."""
    check_name(name)
    with _merged(out, name, source, reading, terms, selection) as merged:

        def corpus_of(piece: CorpusPiece, stack: ExitStack) -> GrowingCorpus:
            found = piece.terms
            assert found is not None
            check_count(len(merged.corpora), name)
            target = out / corpus_name(name, found, terms.defaults)
            check(target.name, found)
            return merged.begin(target, found, stack)

        merged.take_all(corpus_of)
        if not merged.corpora:
            raise nothing_left(name, selection.quarantine)
    made = {terms: each for terms, each in merged.corpora.items() if terms is not None}
    return tuple(
        SplitCorpus(each, made[each].parts, made[each].target, made[each].languages)
        for each in sorted(made)
    )


def build(
    out: Path,
    name: str,
    source: RecordSource,
    reading: Reading,
    selection: RecordFilter,
    languages: set[str],
) -> Built:
    """As `govray.data.corpus.build` of all records that are taken; collects their languages."""
    check_name(name)
    check_vacant(out / name)
    with _merged(out, name, source, reading, None, selection) as merged:
        merged.take_all(lambda piece, stack: merged.begin(out / name, None, stack))
        if not merged.corpora:
            raise nothing_left(name, selection.quarantine)
    languages |= merged.corpora[None].languages
    return merged.corpora[None].parts.built(out / name)


@dataclass
class GrowingCorpus:
    """One corpus, whose parts come from the tasks; ``target`` is where it will lie."""

    target: Path
    parts: PartsWriter
    languages: set[str] = field(default_factory=set)


class Merger:
    """Takes tasks' results in order; its corpora appear together."""

    def __init__(
        self,
        results: Iterable[TaskResult],
        secret: bytes,
        selection: RecordFilter,
        stack: ExitStack,
    ) -> None:
        self.corpora: dict[RecordTerms | None, GrowingCorpus] = {}
        self._results, self._secret, self._stack = results, secret, stack
        self._selection = selection

    def begin(self, target: Path, terms: RecordTerms | None, stack: ExitStack) -> GrowingCorpus:
        check_vacant(target)
        folder = stack.enter_context(staged_folder(target))
        secret = secret_of(self._secret, terms)
        return GrowingCorpus(target, PartsWriter(folder, target.name, secret))

    def take_all(self, begin: Callable[[CorpusPiece, ExitStack], GrowingCorpus]) -> None:
        """Take all results; ``begin`` makes the corpus of a piece, the first of its terms."""
        for result in self._results:
            self._selection.merge(result.selection)
            if result.error is not None:
                raise result.error
            for piece in result.pieces:
                if piece.terms not in self.corpora:
                    self.corpora[piece.terms] = begin(piece, self._stack)
                corpus = self.corpora[piece.terms]
                corpus.parts.adopt(piece.files, piece.leaves, piece.first, piece.last, piece.bytes)
                corpus.languages |= piece.languages


@contextmanager
def _merged(
    out: Path,
    name: str,
    source: RecordSource,
    reading: Reading,
    terms: TermsReader | None,
    selection: RecordFilter,
) -> Iterator[Merger]:
    with ExitStack() as stack, disk_errors(out):
        make_folder(out)
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{name}.parts.", dir=out))
        ).resolve()
        secret = new_secret()
        task = Task(reading, terms, scratch, secret)
        yield Merger(_results(source, task), secret, selection, stack)
        source.check_unchanged()


def secret_of(secret: bytes, terms: RecordTerms | None) -> bytes:
    """The secret of one corpus, which tasks and driver derive from one that nobody keeps."""
    return hmac.digest(secret, repr(terms).encode(), "sha256")


def _results(source: RecordSource, task: Task) -> Iterator[TaskResult]:
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
class Task:
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
        reading = self.reading
        selection = RecordFilter(refuse_flaws=reading.refuse_flaws, only_split=reading.only_split)
        corpora: dict[RecordTerms | None, tuple[PartsWriter, Leaves, CorpusPiece]] = {}
        error = None
        try:
            with disk_errors(folder):
                for record, found in self._sorted(source, selection):
                    if found not in corpora:
                        corpora[found] = self._begin(folder / f"{len(corpora):03}", found, record)
                    parts, _, piece = corpora[found]
                    parts.add(record.name, record.content)
                    piece.languages.update(record.stated.get("language", ()))
                    piece.last = record.name
                    piece.bytes += len(record.content)
                for parts, leaves, piece in corpora.values():
                    parts.flush()
                    piece.leaves = bytes(leaves.hashes)
                    piece.files = parts.files
        except GovrayError as raised:
            # An error is a result: Ray would retry what is raised and wrap it in a traceback.
            error = raised
        return TaskResult([piece for _, _, piece in corpora.values()], selection, error)

    def _begin(
        self, folder: Path, terms: RecordTerms | None, first: SourceRecord
    ) -> tuple[PartsWriter, Leaves, CorpusPiece]:
        make_folder(folder)
        leaves = Leaves()
        # The driver writes the secret, once.
        parts = PartsWriter(folder, "corpus", secret_of(self.secret, terms), leaves=leaves)
        return parts, leaves, CorpusPiece(terms, [], b"", first.name, first.name, 0, set())

    def _sorted(
        self, source: RecordSource, selection: RecordFilter
    ) -> Iterator[tuple[SourceRecord, RecordTerms | None]]:
        """The records that are taken, each with its corpus's terms."""
        reading = self.reading
        found = reader.read(
            source,
            reading.columns,
            limit=reading.limit,
            normalisation=reading.normalisation,
            schema=reading.schema,
            seen=selection.columns,
            whole=False,
        )
        records = selection.of(found)
        if self.terms is not None:
            yield from clear(records, self.terms, selection.quarantine)
            return
        for record in records:
            for _ in one_corpus([record], set()):
                yield record, None
