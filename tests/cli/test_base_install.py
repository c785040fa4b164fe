"""The base install verifies: a fresh environment, `pip install .`, no extras.

Slow, because pip builds and installs for real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import write_key
from tests.support.tree import ROOT
from tests.support.world import POLICY, World

ABSENT = ("torch", "ray", "pyarrow", "pandas", "safetensors", "fastapi", "sqlmodel", "docx")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the base install."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    words = ["install", "--quiet", ROOT]
    subprocess.run([*pip_of(folder / "bin"), *words], check=True, timeout=500)
    return folder / "bin"


def pip_of(bin: Path) -> list[object]:
    """The pip of these tests, at work in that environment: a second copy takes seconds to make."""
    return [sys.executable, "-m", "pip", "--python", bin / "python", "--disable-pip-version-check"]


# Nothing of this process's own paths may leak in.
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


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
    listed = subprocess.run(
        [*pip_of(base), "list", "--format=json"], capture_output=True, check=True, timeout=60
    )
    installed = {each["name"].lower() for each in json.loads(listed.stdout)}
    assert "govray" in installed
    assert installed.isdisjoint(ABSENT)
    find = f"import importlib.util as u; print([m for m in {ABSENT!r} if u.find_spec(m)])"
    found = subprocess.run(
        [base / "python", "-c", find], capture_output=True, check=True, text=True
    )
    assert found.stdout.strip() == "[]"


def test_it_verifies_a_model_within_three_seconds(
    base: Path, untouched: Path, root: Path, at: str
) -> None:
    check = ("verify", untouched, "--trust-root", root, "--at", at)
    govray_base(base, *check)  # compiles the modules, once per installation
    before = os.times()
    done = govray_base(base, *check)
    after = os.times()
    assert done.stdout.startswith("VERIFIED ")
    # CPU time of that process: other tests share the machine.
    ran = after.children_user - before.children_user
    assert ran + after.children_system - before.children_system < 3


def test_a_changed_byte_fails_there_too(base: Path, model: Path, root: Path, at: str) -> None:
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "model.safetensors").write_bytes(data)
    done = govray_base(base, "verify", model, "--trust-root", root, "--at", at, code=1)
    assert "step 4 (files)" in done.stderr


def test_keys_sign_show_export_policy_schema_and_adapters_work_without_extras(
    base: Path, world: World, model: Path, root: Path, tmp_path: Path, at: str
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    govray_base(base, "keys", "new", "key.pem")
    govray_base(base, "sign", "policy.yaml", "--key", "key.pem")
    govray_base(base, "show", "policy.dsse.json")
    govray_base(base, "policy", "lint", "policy.yaml")
    govray_base(base, "policy", "explain", "policy.yaml", "--license", "MIT")
    for kind in ("policy", "credential", "experiment"):
        govray_base(base, "schema", kind)
    key = write_key(tmp_path / "operator.pem", world.keys.operator)
    check = ("--trust-root", root, "--at", at)
    govray_base(base, "export", "model-card", model, *check)  # imports every format
    govray_base(base, "adapter", "remove", model, "acme", "--key", key, *check)
    assert "removed    adapter acme" in govray_base(base, "verify", model, *check).stdout


def test_reports_are_drafted_without_extras_but_for_docx(
    base: Path, untouched: Path, root: Path, at: str, tmp_path: Path
) -> None:
    check = ("--trust-root", root, "--at", at)
    for verb in ("eu-summary", "annex-xi"):
        govray_base(base, "report", verb, untouched, "--out", f"{verb}.html", *check)
    done = govray_base(base, "report", "eu-summary", untouched, "--out", "s.docx", *check, code=3)
    assert "pip install 'govray[reports]'" in done.stderr


def test_a_verb_that_needs_an_extra_says_which(base: Path, tmp_path: Path) -> None:
    (tmp_path / "corpora").mkdir()
    done = govray_base(base, "corpus", "ls", "corpora", code=3)
    assert "pip install 'govray[train]'" in done.stderr


def test_the_wheel_carries_the_deployment(base: Path, tmp_path: Path) -> None:
    govray_base(base, "init", "deployment")
    for name in ("cluster.yaml", "jobs/README.md", "policies/licences.yaml"):
        copied = tmp_path / "deployment" / name
        assert copied.read_bytes() == (ROOT / name).read_bytes()


def test_the_wheel_carries_the_migrations(base: Path) -> None:
    def scripts(package: Path) -> set[str]:
        folder = package / "store" / "migrations"
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {name for name in found if "__pycache__" not in name}

    [package] = base.parent.glob("lib/python*/site-packages/govray")
    assert scripts(package) == scripts(ROOT / "govray")
    assert "env.py" in scripts(package)
