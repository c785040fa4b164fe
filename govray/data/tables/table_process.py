"""A process of bounded memory in which tables are decoded: 500 bytes of Parquet may decode to 5 GB.

Sizes that a file states of itself bound nothing, for whoever wrote it wrote those too. So the
system refuses the memory (``RLIMIT_DATA``), whatever asks for it. A batch that does not fit is
tried again with fewer rows, and one row that does not fit ends the table. A decoder that dies takes
nobody with it.

One process serves table after table, and ends when its input does. It answers in frames: a letter,
a length, and bytes. Nothing of them is unpickled.

Source: setrlimit(2), which since Linux 4.7 counts private mappings as data.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from govray.data.corpus import first_line
from govray.data.sources.objects import Format, SourceObject
from govray.errors import GovrayError, InfrastructureFailed, Malformed, UsageError

BYTES = 1 << 30
"""Data of the process, beside eight of the largest record: a writer's page may be this large."""
_RECORDS = 8
_MESSAGE = 64 << 20
"""Of a batch with more bytes, rows are sent one by one."""
_ROWS = (256, 8, 1)
"""How many rows are decoded at once; texts may be megabytes each."""

_FRAME = struct.Struct(">cQ")
_SCHEMA, _BATCH, _END, _NO_MEMORY, _FAILED = b"S", b"B", b".", b"M", b"E"
_KINDS: dict[str, type[GovrayError]] = {
    kind.__name__: kind for kind in (InfrastructureFailed, Malformed, UsageError)
}
_START = f"import sys; from {__name__} import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"


class _NoMemoryError(Exception):
    """The process has not the memory for what was asked of it."""


def schema_of(found: SourceObject, format: Format, limit: int) -> pa.Schema:
    """The columns of a table. ``limit`` is the size of the largest record, in bytes.

    Raises:
        Exception: pyarrow's or the storage's; it cannot be read, is cut short or takes too much.
    """
    try:
        [schema] = _answers(found, format, None, 0, limit)
    except _NoMemoryError:
        raise _too_large(limit) from None
    return pa.ipc.read_schema(pa.BufferReader(schema))


def batches(
    found: SourceObject, format: Format, columns: Sequence[str], limit: int
) -> Iterator[pa.RecordBatch]:
    """All rows of a table, in batches of one row or of bounded size.

    Raises:
        Exception: As `schema_of`.
    """
    sent = 0
    for rows in _ROWS:
        skip = sent
        try:
            for data in _answers(found, format, columns, rows, limit):
                with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
                    for batch in stream:
                        skipped = min(skip, batch.num_rows)
                        skip -= skipped
                        sent += batch.num_rows - skipped
                        if skipped < batch.num_rows:
                            yield batch.slice(skipped)
            return
        except _NoMemoryError:
            continue  # rows that were given are passed over
    raise _too_large(limit)


def _too_large(limit: int) -> Exception:
    return pa.ArrowInvalid(f"it takes more than {_most(limit) >> 20} MiB of memory to decode")


def _most(limit: int) -> int:
    return BYTES + _RECORDS * limit


def _answers(
    found: SourceObject, format: Format, columns: Sequence[str] | None, rows: int, limit: int
) -> Iterator[bytes]:
    process = _Process.take(limit)
    whole = False
    try:
        for kind, data in process.ask((found, format, columns, rows)):
            if kind == _NO_MEMORY:
                raise _NoMemoryError
            if kind == _FAILED:
                whole = True
                raise _error(data)
            yield data
        whole = True
    finally:
        process.give_back(whole=whole)


def _error(data: bytes) -> Exception:
    said = json.loads(data)
    if kind := _KINDS.get(said["kind"]):
        return kind(said["what"], where=said["where"], do=said["do"])
    return pa.ArrowInvalid(said["what"])


class _Process:
    """One process, asked one thing at a time."""

    _idle: ClassVar[list[_Process]] = []

    def __init__(self, limit: int) -> None:
        self._like = self._now(limit)
        # The system's allocator reserves no more than it is asked for. It gives back what is freed
        # if large pieces are mapped: glibc raises that size as it goes unless it is set.
        environ = os.environ | {
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "MALLOC_ARENA_MAX": "1",
            "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
        }
        self._process = subprocess.Popen(  # noqa: S603 - this Python, our module, no shell
            # -P: a folder that govray was started in brings no modules.
            [sys.executable, "-P", "-c", _START, str(_most(limit))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # of a decoder that dies
            env=environ,
            start_new_session=True,  # Ctrl-C is this process's to handle
        )

    @classmethod
    def take(cls, limit: int) -> _Process:
        """The one that waits, if it would be started the same today; else a new one."""
        while cls._idle:
            idle = cls._idle.pop()
            if idle._like == cls._now(limit) and idle._process.poll() is None:
                return idle
            if idle._like[0] == os.getpid():  # else this process is a fork of whose it is
                idle._end()
        return cls(limit)

    @staticmethod
    def _now(limit: int) -> tuple[object, ...]:
        """What a process is started with, and by whom."""
        return os.getpid(), _most(limit), dict(os.environ)

    def give_back(self, *, whole: bool) -> None:
        """Keep it for the next table, or end one that has not answered to the end."""
        if whole and not self._idle:
            self._idle.append(self)
        else:
            self._end()

    def ask(self, request: object) -> Iterator[tuple[bytes, bytes]]:
        """The frames of one answer, without the last."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            data = pickle.dumps(request)
            self._process.stdin.write(_FRAME.pack(b"?", len(data)) + data)
            self._process.stdin.flush()
            while (frame := _read(self._process.stdout))[0] != _END:
                yield frame
        except (OSError, EOFError):
            raise _NoMemoryError from None  # it died, of which that is the usual reason

    def _end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not sent is nobody's
                pipe.close()  # type: ignore[union-attr]
        self._process.wait()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer one request after another, until the last; the process is started for this."""
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    while True:
        try:
            _, data = _read(requests)
        except EOFError:
            return
        for kind, content in _answer(*pickle.loads(data)):  # noqa: S301 - our parent's
            answers.write(_FRAME.pack(kind, len(content)))
            answers.write(content)
        answers.write(_FRAME.pack(_END, 0))
        answers.flush()


def _answer(
    found: SourceObject, format: Format, columns: Sequence[str] | None, rows: int
) -> Iterator[tuple[bytes, bytes | pa.Buffer]]:
    try:
        if columns is None:
            yield _SCHEMA, decoded_schema(found, format).serialize()
            return
        for batch in decoded_batches(found, format, columns, rows):
            step = 1 if batch.nbytes > _MESSAGE else max(1, batch.num_rows)
            for start in range(0, batch.num_rows, step):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as stream:
                    stream.write_batch(batch.slice(start, step))
                yield _BATCH, sink.getvalue()
    except MemoryError:
        yield _NO_MEMORY, b""
    except GovrayError as error:
        said = {"what": error.what, "where": error.where, "do": error.do}
        yield _FAILED, json.dumps({"kind": type(error).__name__} | said).encode()
    except Exception as error:  # a decoder's: any, of a file that somebody made for it
        yield _FAILED, json.dumps({"kind": "", "what": first_line(error)}).encode()


def _read(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """One frame.

    Raises:
        EOFError: The other end is gone.
    """
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    kind, size = _FRAME.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return kind, data


_BUFFER = 1 << 20  # bytes read ahead of each column
_STREAM_END = bytes.fromhex("ffffffff00000000")


def decoded_schema(found: SourceObject, format: Format) -> pa.Schema:
    """The columns. The file is read, not mapped: one that is cut short meanwhile would kill us.

    Raises:
        Exception: pyarrow's or the storage's; the table cannot be read, or is cut short.
    """
    with found.open() as file:
        if format == "parquet":
            return pq.read_schema(file)
        _check_end(file)
        return _arrow(file).schema


def decoded_batches(
    found: SourceObject, format: Format, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """All rows, at most ``rows`` in a batch.

    Raises:
        Exception: As `decoded_schema`; or there is not the memory for a batch.
    """
    if format == "parquet":
        with (
            found.open() as file,
            pq.ParquetFile(
                file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            ) as table,
        ):
            yield from table.iter_batches(batch_size=rows, columns=[*columns], use_threads=False)
        return
    with found.open() as file, _arrow(file) as reader:
        streamed = isinstance(reader, pa.RecordBatchStreamReader)
        stored = (
            reader if streamed else (reader.get_batch(i) for i in range(reader.num_record_batches))
        )
        for batch in stored:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _arrow(file: pa.NativeFile) -> Any:
    magic = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if magic == b"ARROW1" else pa.ipc.open_stream(file)


def _check_end(file: pa.NativeFile) -> None:
    """Demand the end mark: a stream that is cut between two batches looks complete to pyarrow."""
    size = file.size()
    magic = file.read(6)
    file.seek(max(0, size - len(_STREAM_END)))
    if magic != b"ARROW1" and file.read() != _STREAM_END:
        raise pa.ArrowInvalid("the stream has no end mark")
    file.seek(0)
