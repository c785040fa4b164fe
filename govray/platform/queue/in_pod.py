"""What runs in the pods of a job on Kubernetes, beside Ray: its entry point, and the hooks before
pods are stopped.

The entry point makes the working directory, and becomes the job's command. What it needs lies in
a secret of the attempt. So no text of a submitter stands in a command line.

KubeRay stops no job before it deletes a cluster (v1.7.0, rayjob_controller.go, Suspending). The
kubelet stops all pods at once. So the head's hook tells the job to stop, and waits for its commit.
The workers' hook waits for that too. The pods' grace bounds both.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from govray.errors import GovrayError, InfrastructureFailed
from govray.platform.queue.job_folder import make_folder, with_variables
from govray.storage.place import place

FOLDER = Path("/govray/job")
"""Where the attempt's secret is mounted."""

ORDER = "order.json"
ENTRYPOINT = "python -m govray.platform.queue.in_pod start"
STOP = ("python", "-m", "govray.platform.queue.in_pod", "stop")
WAIT = ("python", "-m", "govray.platform.queue.in_pod", "wait")

_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray's own variable, with what a job's processes get (2.60, ``ray._private.worker``)."""

_LOOK_S = 0.5


def order(
    *,
    kind: str,
    archive: str | None,
    storage: str,
    working_dir: str | None,
    jobs: str,
    command: str,
    variables: dict[str, str],
) -> bytes:
    """What `start` is told. Paths are those of the image, or of volumes."""
    return json.dumps(locals()).encode()


def start(folder: Path = FOLDER) -> None:
    """Make the job's folder, and become its command. Raises `GovrayError`."""
    said = json.loads((folder / ORDER).read_bytes())
    try:
        work = make_folder(
            Path(tempfile.mkdtemp(prefix="govray-job-")) / "working_dir",
            kind=said["kind"],
            archive=said["archive"],
            storage=place(said["storage"]),
            working_dir=Path(said["working_dir"]) if said["working_dir"] else None,
            jobs=Path(said["jobs"]),
            files={
                each.name: each.read_bytes()
                for each in folder.iterdir()
                if each.name != ORDER and not each.name.startswith("..")  # the kubelet's own
            },
            where="the job's working directory",
        )
    except OSError as error:
        raise InfrastructureFailed(f"its working directory cannot be made: {error}") from None
    os.environ.update(said["variables"])
    os.environ[_JOB_CONFIG] = _for_workers(os.environ.get(_JOB_CONFIG), work, said["variables"])
    os.chdir(work)
    sys.stdout.flush()
    os.execvp("sh", ["sh", "-c", f"exec {said['command']}"])  # noqa: S606, S607


def stop(*, tell: bool) -> None:
    """Return when no job of this cluster runs, or nobody answers. With ``tell`` each is told to
    stop first, as `ray job stop` does."""
    from ray.job_submission import JobSubmissionClient

    host = os.environ.get("FQ_RAY_IP", "127.0.0.1")  # KubeRay gives it to workers
    os.environ.pop("RAY_ADDRESS", None)  # Ray would prefer it
    try:
        client = JobSubmissionClient(f"http://{host}:8265")
        while going := [each for each in client.list_jobs() if not each.status.is_terminal()]:
            for each in going if tell else ():
                if each.submission_id is not None:
                    client.stop_job(each.submission_id)
            tell = False
            time.sleep(_LOOK_S)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"govray: no job to wait for: {error}", file=sys.stderr)


def _for_workers(config: str | None, folder: Path, variables: dict[str, str]) -> str:
    """Ray's configuration of a job, whose workers get this folder and these variables too: one of
    them posts the commits."""
    found: dict[str, Any] = json.loads(config) if config else {}
    environment = with_variables(found.get("runtime_env") or {}, variables)
    return json.dumps({**found, "runtime_env": environment | {"working_dir": str(folder)}})


def main(words: list[str]) -> int:
    try:
        if words == ["start"]:
            start()
        elif words in (["stop"], ["wait"]):
            stop(tell=words == ["stop"])
        else:
            return 2
    except GovrayError as error:
        print(f"govray: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
