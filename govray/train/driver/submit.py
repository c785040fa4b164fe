"""Submit an experiment as a Ray job: what `ray job submit -- python jobs/train.py` does.

Where the storage of the runs can be reached from here, the working directory is archived there
first (`govray.governance.submission.code_archive`). The job then gets that very archive.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray.job_submission import JobSubmissionClient

from govray.errors import Refused, UsageError
from govray.governance.submission.code_archive import archive_folder, archive_place
from govray.printable import holds_key
from govray.storage.place import Place, place
from govray.train.driver.job_environment import runtime_env
from govray.train.driver.job_metadata import EXPERIMENT
from govray.train.inputs.experiment_config import Experiment

ENTRY = Path("jobs/train.py")

_LARGEST_KEY = 1 << 16  # bytes of a file


@dataclass(frozen=True)
class SubmittedJob:
    """A job that a cluster took.
    ``archive``: digest of the working directory that it gets, if that was archived."""

    id: str
    archive: str | None


def submit(
    address: str,
    config: Path,
    folder: Path | None = None,
    *,
    new: bool = False,
    experiment: Experiment | None = None,
) -> SubmittedJob:
    """Submit an experiment with its working directory.

    No key is sent: the job reads ``attestation_key`` on the cluster's head node.

    Args:
        config: The experiment's file, which lies in the working directory.
        folder: The working directory; by default what the experiment says, or else this one.
        new: Resume no unfinished run.
        experiment: What the file holds; says what the job runs in, and where its runs lie.

    Raises:
        Refused: A private key lies in the folder, all of which is sent. Or Ray does not combine
            what the experiment's environment asks for.
        UsageError: The folder is not a deployment, the config is outside it, or
            no Ray dashboard answers at the address.
    """
    environment = experiment.environment if experiment else None
    own = environment.working_dir if environment else None
    here = folder or (Path(own) if own else Path.cwd())
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
    entrypoint = f"python {ENTRY} --config {shlex.quote(str(relative))}" + " --new" * new
    if environment is not None and environment.image is not None:
        job = _submit(address, entrypoint, runtime_env(environment, None), experiment)
        return SubmittedJob(job, None)
    asked = runtime_env(environment, str(here))
    storage = place(experiment.storage_path) if experiment else None
    if storage is None or not reachable(storage):
        return SubmittedJob(_submit(address, entrypoint, asked, experiment), None)
    digest = archive_folder(here, storage)
    with TemporaryDirectory(prefix="govray-") as name:
        archive = Path(name) / "working_dir.zip"
        archive.write_bytes(archive_place(storage, digest).read_bytes())
        asked["working_dir"] = str(archive)
        job = _submit(address, f"{entrypoint} --archive {digest}", asked, experiment)
    return SubmittedJob(job, digest)


def reachable(storage: Place) -> bool:
    """Whether runs of a cluster lie at a place that this machine reaches too.

    A relative path counts from the job's own working directory. An absolute one is a share if it,
    or the folder above it, is here.
    """
    if not isinstance(storage, Path):
        return True
    return storage.is_absolute() and (storage.is_dir() or storage.parent.is_dir())


def _submit(
    address: str, entrypoint: str, asked: dict[str, Any], experiment: Experiment | None
) -> str:
    # The run that the job begins adds the rest.
    shown = {EXPERIMENT: experiment.name} if experiment else {}
    try:
        client = JobSubmissionClient(address)
        return client.submit_job(entrypoint=entrypoint, runtime_env=asked, metadata=shown)
    except (ConnectionError, RuntimeError) as error:
        raise UsageError(
            f"the job was not accepted: {str(error).splitlines()[0]}",
            where=address,
            do="Give the dashboard's address, such as http://127.0.0.1:8265",
        ) from None


def refuse_keys(folder: Path) -> None:
    """Return if no file of the folder holds a private key.
    A cluster keeps what it is sent, readable for every job on it."""
    found = (path for path in _files(folder) if _holds_key(path))
    if key := min(found, default=None):
        raise Refused(
            "a private key lies in the folder that the cluster is sent",
            where=str(key),
            do="Move it out of the folder; the job reads attestation_key on the head node",
        )


def _files(folder: Path) -> Iterator[Path]:
    for above, _, names in os.walk(folder):
        yield from (Path(above) / name for name in names)


def _holds_key(path: Path) -> bool:
    try:
        small = path.is_file() and path.stat().st_size <= _LARGEST_KEY
        return small and holds_key(path.read_bytes())
    except OSError:
        return False  # what cannot be read is not sent either
