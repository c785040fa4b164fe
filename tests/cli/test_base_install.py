"""The base install verifies: a fresh environment, `pip install .`, no extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.base_install import OUTSIDE, base_install
from tests.support.flipped import flip
from tests.support.tree import ROOT
from tests.support.world import POLICY

ABSENT = ("torch", "ray", "pyarrow", "pandas", "safetensors", "fastapi", "sqlmodel", "docx")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the base install."""
    return base_install(tmp_path_factory.mktemp("base"))


def govray_base(bin: Path, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [bin / "govray", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env=OUTSIDE | {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]},
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done


def test_nothing_heavy_is_in_it(base: Path) -> None:
    find = f"import importlib.util as u; print([m for m in {ABSENT!r} if u.find_spec(m)])"
    found = subprocess.run(
        [base / "python", "-c", find], capture_output=True, check=True, text=True
    )
    assert found.stdout.strip() == "[]"


def test_it_carries_the_licence_and_the_notice(base: Path) -> None:
    [told] = (base.parent / "lib").glob("python*/site-packages/govray-*.dist-info")
    for name in ("LICENSE", "NOTICE"):
        assert (told / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()


def test_it_verifies_within_three_seconds_and_sees_a_changed_byte(
    base: Path, model: Path, root: Path, at: str
) -> None:
    check = ("verify", model, "--trust-root", root, "--at", at)
    govray_base(base, *check)  # compiles the modules, once per installation
    before = os.times()
    done = govray_base(base, *check)
    after = os.times()
    assert done.stdout.startswith("VERIFIED ")
    # CPU time of that process: other tests share the machine.
    ran = after.children_user - before.children_user
    assert ran + after.children_system - before.children_system < 3
    flip(model / "model.safetensors")
    assert "step 4 (files)" in govray_base(base, *check, code=1).stderr


def test_it_signs_and_exports_and_a_verb_that_needs_an_extra_says_which(
    base: Path, model: Path, root: Path, at: str, tmp_path: Path
) -> None:
    check = ("--trust-root", root, "--at", at)
    (tmp_path / "policy.yaml").write_text(POLICY)
    govray_base(base, "keys", "new", "key.pem")
    govray_base(base, "sign", "policy.yaml", "--key", "key.pem")
    govray_base(base, "model", "export", "model-card", model, *check)  # imports every format
    done = govray_base(base, "report", "eu-summary", model, "--out", "s.docx", *check, code=3)
    assert "pip install 'govray[reports]'" in done.stderr
    (tmp_path / "corpora").mkdir()
    done = govray_base(base, "corpus", "ls", "corpora", code=3)
    assert "pip install 'govray[trace]'" in done.stderr
    asks = ("trace", tmp_path / "policy.yaml", "--model", model, *check)
    for more in ((), ("--records", tmp_path), ("--corpora", tmp_path / "corpora")):
        done = govray_base(base, *asks, *more, code=3)
        assert "pip install 'govray[trace]'" in done.stderr


def test_an_extra_is_added_to_the_govray_that_is_installed(base: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", base / "python", "install", "--no-index"]
    done = subprocess.run(
        [*pip, "--dry-run", "govray[reports]"], capture_output=True, text=True, timeout=60
    )
    assert "Requirement already satisfied: govray[reports]" in done.stdout
    assert "python-docx" in done.stderr  # the extra's own, which no index has here
    assert "for govray" not in done.stderr


def test_the_wheel_carries_the_deployment_and_the_migrations(base: Path, tmp_path: Path) -> None:
    govray_base(base, "init", "deployment")
    for name in ("cluster.yaml", "jobs/README.md", "policies/README.md"):
        copied = tmp_path / "deployment" / name
        assert copied.read_bytes() == (ROOT / name).read_bytes()

    def scripts(package: Path) -> set[str]:
        folder = package / "platform" / "store" / "migrations"
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {name for name in found if "__pycache__" not in name}

    [package] = base.parent.glob("lib/python*/site-packages/govray")
    assert scripts(package) == scripts(ROOT / "govray")
    assert "env.py" in scripts(package)
