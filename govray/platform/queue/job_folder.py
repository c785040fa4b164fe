"""What a job gets besides its cluster: its working directory, and its variables.

The working directory is what was archived at submission. The submission's file and a file that says
who submitted it lie in it. A task needs no folder: what starts it is govray's own.

On Kubernetes a pod makes its folder itself (`in_pod`), so this module needs neither Ray nor store.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from govray.errors import Refused
from govray.governance.formats import canonical_json
from govray.governance.submission.code_archive import open_archive
from govray.governance.submission.pool_labels import POOL_LABELS
from govray.governance.submission.submission import Submission as Submitted
from govray.platform.queue.placement import Slot
from govray.platform.tasks.task_file import KINDS
from govray.storage.place import Place
from govray.traces import VARIABLE as TRACE

if TYPE_CHECKING:
    from govray.platform.store.tables import QueueEntry

CONFIG = "govray-submission.yaml"
FACTS = "govray-submission.json"

ENTRY_POINTS = ("task.py", "infer.py")
"""What starts a task, in ``jobs/``."""


def make_folder(
    folder: Path,
    *,
    kind: str,
    archive: str | None,
    storage: Place,
    working_dir: Path | None,
    jobs: Path | None,
    files: Mapping[str, bytes],
    where: str,
) -> Path:
    """Make a job's working directory, and return it.

    Args:
        archive: The digest of what was archived, below ``storage``.
        working_dir: What a run gets that was submitted without a working directory.
        jobs: govray's own entry points, which a task gets whose folder lacks them.
        files: The submission's file and facts, by name.

    Raises:
        Refused: There is no folder for it, or the folder has others by these names.
    """
    if archive is not None:
        open_archive(storage, archive, folder)
    elif working_dir is not None:
        _copy(working_dir, folder)
    elif kind in KINDS:
        folder.mkdir()
    else:
        raise Refused(
            "it was submitted without a working directory",
            where=where,
            do="Submit it with its folder, or name working_dir in queue.yaml",
        )
    if kind not in KINDS and not (folder / "jobs" / f"{kind}.py").is_file():
        raise Refused(
            f"its working directory has no jobs/{kind}.py, which starts it",
            where=where,
            do="Submit a folder of `govray init`, or name one as working_dir in queue.yaml",
        )
    if kind in KINDS and jobs is not None:
        (folder / "jobs").mkdir(exist_ok=True)
        for name in ENTRY_POINTS:
            if not (folder / "jobs" / name).exists():
                shutil.copyfile(jobs / name, folder / "jobs" / name)
    for name, data in files.items():
        # Written all the same it would be an error of the system, as if the storage were away.
        # That is tried for ever, while nothing behind it starts.
        if (folder / name).is_dir():
            raise Refused(
                f"its working directory has a folder {name}, the name of a file that the queue "
                "puts there",
                where=where,
                do="Rename the folder, and submit again",
            )
        (folder / name).write_bytes(data)
    return folder


def files(row: QueueEntry) -> dict[str, bytes]:
    """The files that the queue puts into a job's folder, by name."""
    return {CONFIG: row.config.encode(), FACTS: facts(row)}


def facts(row: QueueEntry) -> bytes:
    """The file that tells the job who submitted it."""
    names = ("id", "user", "project", "policy", "submitted", "archive")
    stated = {name: value for name in names if (value := getattr(row, name)) is not None}
    document = Submitted.from_json(stated, where=f"submission {row.id}")
    return canonical_json.encode(document.to_json())


def variables(row: QueueEntry, slot: Slot) -> dict[str, str]:
    """The span that the submission came in, for the job's own to lie below. With it go the labels
    of the nodes for the job's workers."""
    labels = json.dumps(dict(slot.labels)) if slot.labels else None
    given = {TRACE: row.trace, POOL_LABELS: labels}
    return {name: value for name, value in given.items() if value is not None}


def with_variables(environment: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Ray's environment of a job, with further variables."""
    found = {**(environment.get("env_vars") or {}), **given}
    return environment | ({"env_vars": found} if found else {})


def metadata(row: QueueEntry) -> dict[str, str]:
    """What Ray's dashboard shows with the job."""
    found = {
        "govray.submission": row.id,
        "govray.user": row.user,
        "govray.project": row.project,
        "govray.policy": row.policy,
    }
    return {name: value for name, value in found.items() if value is not None}


def from_anywhere(storage: Place) -> str:
    """The storage as a job names it, which runs in a folder of its own."""
    return str(storage.absolute() if isinstance(storage, Path) else storage)


def _copy(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise Refused(
            "the folder that working_dir names in queue.yaml is not there", where=str(source)
        )
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("runs", ".git", "__pycache__"))
