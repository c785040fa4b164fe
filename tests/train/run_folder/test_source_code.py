"""Which code trained: digests and git state, with real repositories."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from govray.train.run_folder import environment_probe
from govray.train.run_folder.environment_probe import environment_here
from govray.train.run_folder.source_code import git_state, source_of


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A committed repository with a module of its own and an ignored folder, importable."""
    folder = tmp_path / "repository"
    (folder / "ignored").mkdir(parents=True)
    (folder / "replayed_model.py").write_text("class Model: ...\n")
    (folder / ".gitignore").write_text("ignored/\n__pycache__/\n")
    (folder / "ignored" / "installed_model.py").write_text("class Model: ...\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("replayed_model", None)


def no_loop(config: dict[str, object]) -> None:
    """Stands where a loop is asked for and an entrypoint decides."""


def test_the_source_of_an_entrypoint_has_its_commit_and_its_digest(repository: Path) -> None:
    import replayed_model  # noqa: F401

    before = source_of(no_loop, "replayed_model:Model")
    assert before is not None
    assert before.module == "replayed_model"
    assert before.dirty is False
    assert before.commit is not None
    (repository / "runs.txt").write_text("an output, not tracked")
    assert source_of(no_loop, "replayed_model:Model") == before
    (repository / ".gitignore").write_text("changed")
    dirty = source_of(no_loop, "replayed_model:Model")
    assert dirty == before.model_copy(update={"dirty": True})
    (repository / "replayed_model.py").write_text("class Model: x = 1\n")
    edited = source_of(no_loop, "replayed_model:Model")
    assert edited is not None
    assert edited.digest != before.digest
    assert str(repository) not in str(edited.to_json())


def test_an_ignored_file_is_no_part_of_the_repository_around_it(
    repository: Path, tmp_path: Path
) -> None:
    assert git_state(repository / "ignored" / "installed_model.py") == (None, None)
    outside = tmp_path / "plain.py"
    outside.write_text("")
    assert git_state(outside) == (None, None)


def test_settings_that_move_bits_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = environment_here(seed=1, threads=1, source=None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.use_deterministic_algorithms(True)
    try:
        after = environment_here(seed=1, threads=1, source=None)
    finally:
        torch.use_deterministic_algorithms(False)
    assert after.settings["env.OMP_NUM_THREADS"] == "3"
    assert after.settings["torch.deterministicAlgorithms"] == "on"
    assert before.settings["torch.deterministicAlgorithms"] == "off"


SAID = "NVRM version: NVIDIA UNIX{} Kernel Module{}  570.124.06  Wed Feb 26 02:03:40 UTC 2026\nGCC"


@pytest.mark.parametrize("form", [(" x86_64", ""), (" Open", " for x86_64")], ids=["own", "open"])
def test_what_runs_kernels_on_a_gpu_is_recorded_and_what_is_absent_is_not(
    form: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    names = {"cuda", "cudnn", "nccl", "nvidia-driver"}
    plain = environment_here(seed=1, threads=1, source=None).packages
    assert {"transformers", "tokenizers"} <= plain.keys()
    assert torch.cuda.is_available() or not names & plain.keys()
    driver = tmp_path / "version"
    driver.write_text(SAID.format(*form))
    monkeypatch.setattr(environment_probe, "DRIVER", driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    found = environment_here(seed=1, threads=1, source=None).packages
    assert {name: found[name] for name in names} == {
        "cuda": "12.8", "cudnn": "91002", "nccl": "2.27.3", "nvidia-driver": "570.124.06"
    }  # fmt: skip
    assert environment_here(seed=1, threads=1, source=None, device="cpu").packages == plain
    driver.unlink()
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    found = environment_here(seed=1, threads=1, source=None).packages
    assert names & found.keys() == {"cuda"}
    assert "None" not in found.values()
