"""Submit an experiment as a Ray job: what `ray job submit -- python jobs/train.py` does."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from ray.job_submission import JobSubmissionClient

from govray.errors import Refused, UsageError
from govray.printable import holds_key

ENTRY = Path("jobs/train.py")

_LARGEST_KEY = 1 << 16  # bytes of a file


def submit(address: str, config: Path, folder: Path | None = None, *, new: bool = False) -> str:
    """Submit ``config`` with a deployment folder, by default this one. Returns the job's id.

    With ``new``, no unfinished run is resumed.

    No key is sent: the job reads ``attestation_key`` on the cluster's head node.

    Raises:
        Refused: A private key lies in the folder, all of which is sent.
        UsageError: The folder is not a deployment, the config is outside it, or
            no Ray dashboard answers at the address.
    """
    here = folder or Path.cwd()
    if not (here / ENTRY).is_file():
        raise UsageError(
            f"there is no {ENTRY} here", where=str(here), do="Run this in a folder of `govray init`"
        )
    try:
        relative = config.resolve().relative_to(here.resolve())
    except ValueError:
        raise UsageError(
            "the experiment lies outside the working directory that the job gets",
            where=str(config),
            do="Copy it into jobs/",
        ) from None
    refuse_keys(here)
    try:
        client = JobSubmissionClient(address)
        return client.submit_job(
            entrypoint=f"python {ENTRY} --config {shlex.quote(str(relative))}" + " --new" * new,
            runtime_env={"working_dir": str(here)},
        )
    except (ConnectionError, RuntimeError) as error:
        raise UsageError(
            f"the job was not accepted: {str(error).splitlines()[0]}",
            where=address,
            do="Give the dashboard's address, such as http://127.0.0.1:8265",
        ) from None


def refuse_keys(folder: Path) -> None:
    """Return if no file of the folder holds a private key.

    A cluster keeps what it is sent, readable for every job on it.

    Raises:
        Refused: One does. Names it.
    """
    found = (path for path in _files(folder) if _holds_key(path))
    if key := min(found, default=None):
        raise Refused(
            "a private key lies in the folder that the cluster is sent",
            where=str(key),
            do="Move it out of the folder; the job reads attestation_key on the head node",
        )


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


def _holds_key(path: Path) -> bool:
    try:
        small = path.is_file() and path.stat().st_size <= _LARGEST_KEY
        return small and holds_key(path.read_bytes())
    except OSError:
        return False  # what cannot be read is not sent either
