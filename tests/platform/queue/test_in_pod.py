"""What runs in the pods of a job on Kubernetes: the entry point, and what tells a job to stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from govray.governance.submission.code_archive import archive_folder
from govray.platform.queue import in_pod
from tests.support.tree import ROOT

SHOWS = """
import json, os
from pathlib import Path
files = sorted(each.name for each in Path().iterdir())
config = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
print(json.dumps([files, os.environ["WORD"], config, os.getcwd()]))
"""
START = """
import sys
from pathlib import Path
from govray.platform.queue import in_pod
in_pod.start.__defaults__ = (Path(sys.argv[1]),)
sys.exit(in_pod.main(["start"]))
"""


def mounted(tmp_path: Path, *, kind: str = "train", **changes: object) -> Path:
    """A secret as the kubelet mounts it: links into a folder of its own."""
    code = tmp_path / "code"
    (code / "jobs").mkdir(parents=True)
    (code / "jobs" / "train.py").write_text(SHOWS)
    storage = tmp_path / "runs"
    storage.mkdir()
    given = {
        "kind": kind,
        "archive": archive_folder(code, storage),
        "storage": str(storage),
        "working_dir": None,
        "jobs": str(ROOT / "jobs"),
        "command": "python jobs/train.py",
        "variables": {"WORD": "a; $(b)"},
    }
    (data := tmp_path / "job" / "..data").mkdir(parents=True)
    for name, text in (
        ("order.json", json.dumps(given | changes)),
        ("govray-submission.yaml", "a: 1"),
    ):
        (data / name).write_text(text)
        (tmp_path / "job" / name).symlink_to(f"..data/{name}")
    return tmp_path / "job"


def started(folder: Path) -> subprocess.CompletedProcess[str]:
    config = json.dumps({"runtime_env": {"env_vars": {"A": "1"}}, "metadata": {"b": "2"}})
    return subprocess.run(
        [sys.executable, "-c", START, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"RAY_JOB_CONFIG_JSON_ENV_VAR": config},
        check=False,
    )


def test_the_command_runs_in_the_archived_folder_and_workers_get_it_too(tmp_path: Path) -> None:
    done = started(mounted(tmp_path))
    assert done.returncode == 0, done.stderr
    files, word, config, folder = json.loads(done.stdout)
    assert files == ["govray-submission.yaml", "jobs"]
    assert word == "a; $(b)"
    variables = {"A": "1", "WORD": "a; $(b)"}
    assert config["runtime_env"] == {"env_vars": variables, "working_dir": folder}
    assert config["metadata"] == {"b": "2"}


@pytest.mark.parametrize("archive", ["sha256:" + "0" * 64, None])
def test_what_cannot_be_made_is_said_as_drivers_do(tmp_path: Path, archive: str | None) -> None:
    done = started(mounted(tmp_path, archive=archive))
    assert done.returncode not in (0, -9)
    assert done.stderr.startswith("govray: ")


def test_hooks_end_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FQ_RAY_IP", "127.0.0.2")
    assert in_pod.main(["wait"]) == 0
    assert in_pod.main(["other"]) == 2
