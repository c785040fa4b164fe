"""The parser: a process for each run, without key and network, that reads what a submitter wrote.

It does one of three tasks (`tasks.py`), and ends. It says what a staged run states of itself, and
whether a model would verify under a signature to come, or verifies. It runs govray's own code
alone: no entrypoint, no pickle, no torch.

What it answers is a submitter's word, for hostile bytes may have taken it over. The signer compares
it with the register. A refusal quotes no bytes of a file, and is bounded and printable.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import govray
from govray.errors import CouldNotCheck, GovrayError, InfrastructureFailed, Malformed, Refused
from govray.governance.formats import canonical_json
from govray.platform.attestor.confinement import ParserLimits, confine, end_with_parent
from govray.printable import printable

LONGEST = 64 << 20
"""Bytes of an answer, as of every document that the signer reads."""
_SAID = 300
MORE = "Raise limits.seconds in attestor.yaml if a run of this size is meant"

_KINDS: Mapping[str, type[GovrayError]] = {
    "CouldNotCheck": CouldNotCheck,
    "InfrastructureFailed": InfrastructureFailed,
}
ONE_THREAD = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's jemalloc
}
"""Variables by which what the parser imports starts no thread: `confine` refuses one."""


def code_folders() -> list[Path]:
    """Where the code lies that a process of this interpreter imports: the parser may read it."""
    # One that this account may not look into holds no code for it.
    code = {Path(each) for each in sys.path if each and os.path.isdir(each)}
    return sorted(code | {Path(sys.prefix), Path(sys.base_prefix), Path(govray.__file__).parent})


def refuse_readable(secret: Path, folders: Sequence[Path]) -> None:
    """Refuse a file with a secret that lies where the parser may read: below these folders, or
    beside code that it imports."""
    real = secret.resolve()
    for folder in (*folders, *code_folders()):
        if real.is_relative_to(folder.resolve()):
            raise Refused(
                f"the parser, which reads hostile files, may read all below {folder}",
                where=str(secret),
                do="Move the file to a folder of its own, such as /etc/govray",
            )


def confined(limits: ParserLimits) -> Callable[..., Any]:
    """`ask` with these limits: what an `Attestor` calls."""
    return partial(ask, limits=limits)


def ask(
    task: str,
    *,
    read: tuple[Path, ...],
    write: Path,
    within: float,
    limits: ParserLimits,
    **given: Any,
) -> Any:
    """The parser's answer to one task.

    Args:
        read: Folders that it may read.
        write: The folder that it may write.
        within: Seconds by the clock: a process that sleeps takes no processor time.
        given: The task's arguments, as JSON.

    Raises:
        Refused: What the parser refuses, in bounded words; or reading took too much time.
        InfrastructureFailed: It died, or answered nothing that can be read.
    """
    request = {
        "task": task,
        "read": [str(each) for each in read],
        "write": str(write),
        "limits": asdict(limits),
        "given": given,
    }
    place = write / f"{task}.answer"
    process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own module
        [sys.executable, "-I", "-m", "govray.platform.attestor.parser", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=write,
        env={"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": str(write)} | ONE_THREAD,
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(request).encode(), timeout=within)
        late = process.returncode == -signal.SIGXCPU
    except subprocess.TimeoutExpired:
        late = True
    finally:
        _end(process)
    if late:
        raise Refused("reading it takes more time than the parser has", where="parser", do=MORE)
    return _read(place, process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it started: it writes no more, and its folder is ours again."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(place: Path, code: int) -> Any:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(LONGEST + 1)
        return taken(canonical_json.parse(data, limit=LONGEST, where="parser"))
    except (OSError, Malformed, ValueError):
        how = f"signal {-code}" if code < 0 else f"code {code}"
        raise InfrastructureFailed(
            f"the parser ended without an answer ({how})",
            where="parser",
            do="Look at limits in attestor.yaml: it may need more memory or time",
        ) from None


def taken(answer: Any) -> Any:
    """What an `answer` has found.

    Raises:
        GovrayError: The refusal that it is, in bounded and printable words.
        ValueError: It is no answer.
    """
    match answer:
        case {"found": found}:
            return found
        case {"refused": {"what": str(what), **more}}:
            said = {"what": what} | {name: more.get(name) for name in ("where", "do")}
            words = {name: printable(str(each))[:_SAID] for name, each in said.items() if each}
            kind = _KINDS.get(str(more.get("kind")), Refused)
            raise kind(words.pop("what", "refused"), **words)
    raise ValueError("no answer")


def answer(task: Callable[[], Any]) -> dict[str, Any]:
    """Do a task; what it found, or why it is refused."""
    try:
        return {"found": task()}
    except GovrayError as error:
        said = {"what": error.what, "where": error.where, "do": error.do}
        return {"refused": {"kind": type(error).__name__} | said}
    except OSError as error:
        # `regular_file` raises the first two. Others are of the disk, and not of what was read.
        of_file = error.errno in (errno.EFBIG, errno.ENXIO)
        kind = "Refused" if of_file else "InfrastructureFailed"
        return {"refused": {"kind": kind, "what": f"{error.strerror}"}}
    except MemoryError:
        return {"refused": {"what": "reading it takes more memory than the parser has"}}
    except Exception as error:  # of some reader, at something that nobody foresaw
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return {"refused": {"what": f"it cannot be read: {type(error).__name__} at {place}"}}


def main() -> None:
    """Do the task that standard input names; the answer goes into the file that is named."""
    place = Path(sys.argv[1])
    end_with_parent()
    request = json.load(sys.stdin)
    from govray.platform.attestor import tasks  # with all that it needs, before the doors close

    nowhere = os.open(os.devnull, os.O_WRONLY)
    confine(
        read=[*(Path(each) for each in request["read"]), *code_folders()],
        write=[Path(request["write"])],
        limits=ParserLimits(**request["limits"]),
    )
    os.dup2(nowhere, sys.stderr.fileno())  # a log is no place for what hostile files can say
    found = answer(partial(tasks.TASKS[request["task"]], **request["given"]))
    place.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
