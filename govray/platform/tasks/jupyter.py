"""The one program behind notebooks, shells and TensorBoard: a Jupyter server.

It does what all three need, so none of it is ours. It demands a token before every answer and
knows the time of last use. It has kernels and web terminals (jupyter_server_terminals), and
TensorBoard behind the same token (jupyter-server-proxy). JupyterHub would bring users, a database
and a proxy in Node.js besides, all of which the service has.

Only files of this task count: a user's own ``~/.jupyter`` could open what is closed here.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from govray.errors import UsageError
from govray.extras import install
from govray.platform.tasks.task_file import NotebookTask, ShellTask, TensorBoardTask, Watched
from govray.printable import without_keys
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

_MODULES = {
    "notebook": ("jupyterlab", "ipykernel"),
    "shell": ("notebook", "jupyter_server_terminals"),
    "tensorboard": ("jupyter_server_proxy", "tensorboard"),
}
_LANDING = {"notebook": "lab", "shell": "terminals/1", "tensorboard": "tensorboard/"}
_EXTENSIONS = {
    "notebook": ("jupyterlab", "jupyter_server_terminals"),
    "shell": ("notebook", "jupyter_server_terminals"),
    "tensorboard": ("jupyter_server_proxy",),
}
_EVENTS = "tensorboard"
"""The folder of a run that has TensorBoard's files, as the run's callback names it."""

TRANSCRIPTS = "transcripts"

ORPHANED_SECONDS = 600
"""How long after its idle time a server goes on that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """How to start a task's program. ``landing``: the path that shows it, below the task's own.
    ``files``: the configuration, by name; its folder is the program's alone."""

    argv: tuple[str, ...]
    landing: str
    files: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str]


def jupyter_program(
    task: Watched,
    *,
    id: str,
    storage: Place,
    work: Path,
    private: Path,
    listen: str,
    token: str,
) -> Program:
    """The Jupyter server of ``task``.

    Args:
        work: The folder that people see and that is kept.
        private: A folder for configuration and runtime files, of mode 0700.
        listen: The IP address to answer at.
    """
    missing = [each for each in _MODULES[task.kind] if find_spec(each) is None]
    if missing:
        raise UsageError(
            f"a {task.kind} needs {' and '.join(missing)}, which this Python does not have",
            do=f"Run {install('notebook')} on the nodes",
        )
    server: dict[str, Any] = {
        "ip": listen,
        "port": 0,
        "base_url": f"/tasks/{id}/",
        "root_dir": str(work),
        "open_browser": False,
        "allow_root": True,  # in a container the user often is
        "allow_remote_access": True,  # the proxy names it by its IP address
        "allow_unauthenticated_access": False,
        "quit_button": False,
        "terminals_enabled": task.kind != "tensorboard",
        "jpserver_extensions": dict.fromkeys(_EXTENSIONS[task.kind], True),
        # Should the process that watches it be killed, the server ends by itself. The watcher
        # has to be first, or nobody could tell this from a failure.
        "shutdown_no_activity_timeout": _seconds(task) + ORPHANED_SECONDS,
    }
    rest: dict[str, Any] = {
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": "", "allow_password_change": False},
        # Sockets in the private folder: who else is on the node reads no kernel's messages.
        "KernelManager": {"transport": "ipc"},
        "MappingKernelManager": {"cull_idle_timeout": _seconds(task), "cull_connected": True},
        "TerminalManager": {"cull_inactive_timeout": _seconds(task)},
        # Neither packages nor news from the network.
        "LabApp": {
            "extension_manager": "readonly",
            "news_url": None,
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        },
    }
    if isinstance(task, ShellTask | NotebookTask):
        server["terminado_settings"] = {"shell_command": _recorded_shell(work / TRANSCRIPTS)}
    if isinstance(task, TensorBoardTask):
        rest["ServerProxy"] = {"servers": {"tensorboard": _tensorboard(task, storage)}}
    return Program(
        argv=(sys.executable, "-m", "jupyterlab" if task.kind == "notebook" else "jupyter_server"),
        landing=_LANDING[task.kind],
        files={"jupyter_server_config.json": json.dumps({"ServerApp": server, **rest})},
        environment={
            "JUPYTER_CONFIG_DIR": str(private),
            "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
            "JUPYTER_CONFIG_PATH": "",
            "JUPYTER_NO_CONFIG": "",
            "HISTFILE": str(work / TRANSCRIPTS / "history"),
        },
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment less private keys: a notebook is anybody's code. Credentials of storage stay,
    since code that reads data needs them."""
    return {
        name: value
        for name, value in environment.items()
        if name not in ("GOVRAY_KEY", "JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE")
        and value == without_keys(value)
    }


def _seconds(task: Watched) -> int:
    return max(1, round(task.idle_minutes * 60))


def _recorded_shell(folder: Path) -> list[str]:
    """A shell whose every character is kept (script(1) of util-linux), a file for each. Raises
    `UsageError`: there is no script(1)."""
    if shutil.which("script") is None:
        raise UsageError(
            "a shell's transcript needs script(1), which this node does not have",
            do="Install util-linux on the nodes",
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f'"{folder}/$(date -u +%Y%m%dT%H%M%SZ)-$$.log"'
    return ["/bin/sh", "-c", f"exec script -q -f {name}"]


def _tensorboard(task: TensorBoardTask, storage: Place) -> dict[str, Any]:
    if isinstance(storage, BucketPath):
        raise UsageError(
            "TensorBoard reads runs in a folder, and this storage is a bucket",
            where=str(storage),
            do="Copy the runs' folders `tensorboard` to a disk, and name that as the storage",
        )
    root = storage.resolve()
    if task.runs:
        spec = ",".join(f"{name}:{root / name / _EVENTS}" for name in task.runs)
        where = ["--logdir_spec", spec]
    else:
        where = ["--logdir", str(root)]
    return {
        "command": [
            sys.executable,
            "-m",
            "tensorboard.main",
            *where,
            "--host=127.0.0.1",
            "--port={port}",
            "--path_prefix={base_url}tensorboard",
            "--load_fast=false",
        ],
        "absolute_url": True,
        "timeout": 60,
    }
