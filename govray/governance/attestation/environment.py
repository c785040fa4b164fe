"""Where and with what code a run ran: everything besides its inputs that bytes depend on.

Equal inputs give equal bytes only where these agree: code, versions, threads, determinism
settings, hardware. So each run records one `Environment`, its attestation states it, and a
replay compares it with its own, by `differences`.

It holds no host name, path, user or network address. It is the recording party's word, about the
process that recorded it: rank 0's for a checkpoint, the driver's for a run's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from govray.governance.formats.bounds import Natural, Positive, ShortText
from govray.governance.formats.document import Digest, Document

CODE = frozenset({"codeDigest", "source.module", "source.digest"})
"""What makes it another computation; the rest may or may not change a bit."""


class SourceCode(Document):
    """The module that a run's model or training loop comes from.

    ``digest`` is over the source files of its top-level package, or its one file; what else it
    imports is fixed by ``commit`` alone. ``commit`` and ``dirty`` are absent where the files are
    in no git repository; ``dirty`` means that a tracked file was changed since.
    """

    module: ShortText
    digest: Digest
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")] | None = None
    dirty: bool | None = None


class EarlierCode(Document):
    """Code that a run's steps before ``step`` ran under; then it went on under other code.

    Bits can be compared up to ``step``, and from there on, and not across it.
    """

    step: Positive
    code_digest: Digest
    source: SourceCode | None = None


SETUP = "GOVRAY_JOB_SETUP"
"""Environment variable of a job, and of all its processes: a `Setup` in canonical JSON."""


class Setup(Document):
    """Digests of what a job was set up with, beside what its cluster has.

    ``image`` is that of the container image. ``pip`` is over the requirements, a line each, and
    ``uv_lock`` over the lock's bytes. Each is absent where its experiment names none.
    """

    image: Digest | None = None
    pip: Digest | None = None
    uv_lock: Digest | None = None


class Environment(Document):
    """Where a run (or a replay) ran: what has to agree for bytes to agree.

    ``packages`` are versions; on a GPU also of ``cuda``, ``cudnn``, ``nccl`` and ``nvidia-driver``.
    ``settings`` are torch's determinism and precision flags and the environment variables that
    thread pools and kernels read; ``threads`` are those of one worker's kernels. ``setup`` is
    absent of a run that no job with an ``environment`` section ran.
    """

    python: ShortText
    platform: ShortText
    processor: ShortText
    device: ShortText
    packages: dict[ShortText, ShortText]
    code_digest: Digest
    source: SourceCode | None = None
    seeds: dict[ShortText, Natural]
    threads: Positive
    settings: dict[ShortText, ShortText]
    setup: Setup | None = None


@dataclass(frozen=True)
class Difference:
    """One field in which two environments differ; ``None`` where it is absent."""

    name: str
    recorded: str | None
    here: str | None

    @property
    def is_code(self) -> bool:
        """Whether it makes equal bytes meaningless, not merely unlikely."""
        return self.name in CODE

    def __str__(self) -> str:
        return f"{self.name}: {self.recorded or 'absent'} then, {self.here or 'absent'} here"


def differences(recorded: Environment, here: Environment) -> tuple[Difference, ...]:
    """The fields in which they differ, sorted by name; nested ones as ``packages.torch``."""
    then, now = flat(recorded.to_json()), flat(here.to_json())
    return tuple(
        Difference(name, then.get(name), now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    )


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """What a JSON object holds, by dotted names, as text."""
    found: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found |= flat(inner, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(inner)
    return found
