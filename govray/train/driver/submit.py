"""Submit an experiment as a Ray job: what `ray job submit -- python jobs/train.py` does."""

from __future__ import annotations

import shlex
from pathlib import Path

from ray.job_submission import JobSubmissionClient

from govray.errors import UsageError

ENTRY = Path("jobs/train.py")


def submit(address: str, config: Path, folder: Path | None = None, *, new: bool = False) -> str:
    """Submit ``config`` with a deployment folder, by default this one. Returns the job's id.

    With ``new``, no unfinished run is resumed.

    No key is sent: the job reads ``attestation_key`` on the cluster's head node.

    Raises:
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
