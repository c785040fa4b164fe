"""The pages whose commands train: each block runs in a shell as it stands there, in order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
import torch
from safetensors.torch import load_file

from govray.engine.vit import VisionTransformer
from tests.support.forked_workers import Forked
from tests.support.page_commands import section
from tests.support.tree import ROOT

# A slow machine takes three times what a quick one does.
pytestmark = pytest.mark.timeout(1200)

TUTORIAL, CORPORA, ROWS = "docs/tutorial.md", "docs/corpora.md", "docs/rows.md"
VALIDATION = "docs/validation.md"


def address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def shell(
    forked: Forked,
    commands: str,
    home: Path,
    folder: str = "my-deployment",
    *,
    imported: Sequence[Path] = (),
) -> str:
    """What commands print that run on the tests' cluster, with folders to import from."""
    path = f"{forked.govray.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    python = os.pathsep.join(map(str, (ROOT, *imported)))
    variables = {"HOME": str(home), "PATH": path, "PYTHONPATH": python, "RAY_ADDRESS": address()}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=home / folder, env=os.environ | variables,
        capture_output=True, text=True, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.story
def test_the_tutorial_and_a_mixed_table_end_in_verified_models(
    tmp_path: Path, cluster: None, forked: Forked
) -> None:
    shell(forked, section(TUTORIAL, "1"), tmp_path, ".")
    # One shell for each page: variables of one section are used in the next.
    commands = "".join(section(TUTORIAL, number) for number in "234567")
    told = shell(forked, commands, tmp_path)
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 2
    assert "IDENTICAL" in told
    assert "adapter:any-corpus" in told
    made = tmp_path / "my-deployment"
    signed = {path.name for name in ("data", "policies") for path in (made / name).rglob("*.dsse*")}
    assert signed == {"credential.dsse.json", "licences.dsse.json"}
    assert (made / "policies" / "root.json").is_file()

    headings = ("One licence", "A licence for each", "Sign", "The same", "Train")
    told = shell(forked, "".join(section(CORPORA, each) for each in headings), tmp_path)
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 1
    [model] = (made / "runs").glob("web-*/model")
    credentials = (model / "governance" / "credentials.jsonl").read_bytes().splitlines()
    assert len(credentials) == 7


@pytest.mark.story
def test_the_readme_s_script_runs_as_it_stands(
    tmp_path: Path, cluster: None, forked: Forked
) -> None:
    told = shell(forked, section("README.md", "A whole script"), tmp_path, ".")
    assert len(re.findall(r"^VERIFIED runs/first-.*/model ", told, re.M)) == 1
    assert "acme-notes 1 (exclusion counted)" in told


@pytest.mark.story
def test_a_run_that_is_judged_ends_early(tmp_path: Path, cluster: None, forked: Forked) -> None:
    shell(forked, section(TUTORIAL, "1"), tmp_path, ".")
    commands = "".join(section(TUTORIAL, number) for number in "234")
    told = shell(forked, commands + section(VALIDATION, "Try it"), tmp_path)
    assert re.search(r"Ended early, after (\d+) of 200 steps: validation/accuracy got no", told)
    assert re.search(r"^step +size +committed +loss +validation/accuracy ", told, re.M)
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 1
    assert re.search(r"selected +by early stopping, after \d+ steps: validation/accuracy", told)


def deployment(
    forked: Forked, home: Path, heading: str, imported: Sequence[Path] = ()
) -> tuple[str, Path]:
    """What a section of the page on rows prints in a new deployment, and the model that it made."""
    shell(forked, section(TUTORIAL, "1"), home, ".")
    told = shell(
        forked, section(TUTORIAL, "2") + section(TUTORIAL, "4") + section(ROWS, heading),
        home, imported=imported,
    )  # fmt: skip
    [model] = (home / "my-deployment" / "runs").glob("[cd]*-*/model")
    return told, model


@pytest.mark.story
def test_a_llama_trains_on_conversations(tmp_path: Path, cluster: None, forked: Forked) -> None:
    told, model = deployment(forked, tmp_path, "Conversations")
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 2
    summary, full = told.split("VERIFIED")[1:]
    assert "targets    bounded" in summary
    assert "tokens, loss targets and rows follow" in full
    assert "bounded" not in full
    leaves = [json.loads(line) for line in (model / "governance/ledger.jsonl").open()]
    steps = [leaf for leaf in leaves if "corpora" in leaf]
    assert len(steps) == 200
    uses = [leaf["corpora"]["questions"] for leaf in steps]
    assert all(0 <= use["targets"] < use["rows"] * 128 for use in uses)


@pytest.mark.story
def test_a_vit_trains_on_images_that_a_package_ships(
    tmp_path: Path, cluster: None, forked: Forked
) -> None:
    told, model = deployment(forked, tmp_path, "Images", [shipped_digits(tmp_path)])
    assert len(re.findall(r"^VERIFIED .*/model ", told, re.M)) == 1
    assert "lab-digits 1 (exclusion counted)" in told
    made = json.loads((model / "govray.json").read_bytes())
    vit = VisionTransformer(**made["hyperparameters"]).eval()
    vit.load_state_dict(load_file(model / "model.safetensors"))

    def accuracy(source: str) -> float:
        table = pq.read_table(tmp_path / "my-deployment" / "sources" / f"{source}.parquet")
        pixels = torch.frombuffer(
            bytearray(b"".join(table["image"].to_pylist())), dtype=torch.uint8
        )
        with torch.no_grad():
            found = vit(pixels.view(-1, 1, 8, 8)).argmax(dim=1)
        return (found == torch.tensor(table["label"].to_pylist())).float().mean().item()

    # The second corpus reached the adapter alone, so the base model never learned from it.
    assert accuracy("digits") > 0.97
    assert accuracy("lab-digits") > 0.8


def shipped_digits(folder: Path) -> Path:
    """A folder to import scikit-learn from: this environment's, or its wheel without dependencies.

    It is no extra for development: the demo trains on all packages that are installed.
    """
    if found := find_spec("sklearn"):
        return Path(str(found.origin)).parents[1]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    target = folder / "packages"
    done = subprocess.run(
        [*command, "--target", str(target), "scikit-learn"], capture_output=True, text=True
    )
    if done.returncode and "CI" not in os.environ:
        pytest.skip("scikit-learn is neither installed nor to be had")
    assert done.returncode == 0, done.stderr
    return target
