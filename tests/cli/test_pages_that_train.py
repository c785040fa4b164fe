"""Every page's commands, in order, in one fresh folder: they reach what the page says.

A page runs in a shell of its own, in the folder that the tutorial's sections 1 to 6 leave; README
and tutorial begin in an empty one. `page_commands` says what is compared. What can't run here
stands in `LEFT` with the reason, and what another test runs in `ELSEWHERE`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pyarrow.parquet as pq
import pytest
import ray
import torch
from safetensors.torch import load_file

from govray.engine.vit import VisionTransformer
from tests.support.forked_workers import Forked
from tests.support.page_commands import blocks, faults, files, lines, missing, script, section
from tests.support.tree import ROOT

pytestmark = pytest.mark.timeout(1200)

TUTORIAL = "docs/tutorial.md"
GLOBS = ("README.md", "docs/*.md", "*/README.md")
FRESH = ("README.md", TUTORIAL)
"""Pages that begin in an empty folder."""

NAMES = {
    "RUN": "runs/first-*",
    "ROOT": "policies/root.json",
    "root.json": "policies/root.json",
    "operator.pem": "../govray-keys/operator.pem",
}
"""What a page's word stands for in the tutorial's folder; ``MODEL`` is a copy of the model."""

SERVED = """
govray sign policies/promotion.yaml --key ~/govray-keys/compliance.pem
govray store index runs --trust-root ROOT
govray serve --no-auth --storage runs --trust-root ROOT
export GOVRAY_SERVER=http://127.0.0.1:8585
TOKEN=$(govray token new --user ada --role admin --scope write)
DIGEST=$(govray attestation ls --json | grep -om 1 'sha256:[0-9a-f]*' | head -n 1)
"""
"""A service with the run and its model, for pages that ask one."""

WALKED = {
    "docs/acting.md": SERVED
    + """
    submitted=$(govray --server $GOVRAY_SERVER train jobs/train.yaml)
    ID=${submitted%% *}
    ln -s . govray-demo
    """,
    "docs/checkpoints.md": "",
    "docs/corpora.md": "",
    "docs/evidence.md": "ln -s MODEL GPT",
    "docs/experiment-file.md": "",
    "docs/jax.md": "",
    "docs/memorization.md": """
    govray replay RUN --without acme-notes
    ln -s RUN/replays/replay-* WITHOUT
    """,
    "docs/own-loop.md": "",
    "docs/policies.md": "",
    "docs/replay.md": "",
    "docs/search.md": "",
    "docs/verifying.md": """
    cp sources/notes/7.txt text.txt
    govray corpus open data/corpora/acme-notes text.txt --out text.opening.json
    """,
    "docs/watching.md": SERVED,
}
"""Pages that go on from there → what their readers have besides."""

PROJECT = "govray workspace new research; govray project new vision --workspace research\n"
"""What is deleted; from then on each submission names a project."""

RUN_ID = "first-?"
"""Stands for the run's name."""

SAID = {
    "docs/acting.md": {
        "govray --server https://govray.example runs delete gpt-0": PROJECT
        + "govray runs delete gpt-0",
        "https://govray.example": "$GOVRAY_SERVER",
        "s-20261124-090000-9f86d081": "$ID",
        "gpt-0": RUN_ID,
        "DIGEST": "$DIGEST",
    },
    "docs/watching.md": {
        "w-0123456789ab": "$(govray webhook ls --json | grep -o 'w-[0-9a-f]*' | head -n 1)",
        "runs/RUN/": f"runs/{RUN_ID}/",
        "govray runs logs": "GOVRAY_SERVER= govray runs logs",
    },
}
"""Page → its example of a name → the one that a reader has."""

LEFT: Mapping[str, Mapping[str, str]] = {
    "docs/acting.md": {
        "govray login": "a provider: tests/cli/test_remote_verbs.py",
        "govray --server https://govray.example experiments delete": "no search",
    },
    "docs/checkpoints.md": {"pytest ": "it takes an hour"},
    "docs/corpora.md": {
        "govray corpus build s3:": "a bucket: tests/cli/test_docs_commands.py",
    },
    "docs/memorization.md": {
        "govray policy calibrate": "a run that was monitored: tests/cli/test_policy_verbs.py",
    },
    "docs/replay.md": {
        "govray replay RUN --key auditor.pem": "a root with a witness: tests/train/replay",
    },
    "docs/search.md": {
        "GOVRAY_KEY=operator.pem govray tune": "tests/tune/test_search_on_cluster.py"
    },
    "docs/watching.md": {
        "govray alerts run": "it does not end",
        "govray webhook resend": "nothing was sent",
        "govray webhook test": "no receiver",
    },
}
"""Page → the beginning of a command that is left out, and why."""

ENDS: Mapping[str, Mapping[str, int]] = {
    "docs/evidence.md": {"python case-7/verify_evidence.py": 3},
}
"""Page → the beginning of a command → the exit code that the page says."""

INSTALLS = ("pip install",)
"""Of every page: they would change the environment that the tests run in."""

ELSEWHERE = {
    "deploy/README.md": "tests/cli/test_deployment_files.py",
    "docs/architecture.md": "tests/test_tour.py",
    "docs/attestor.md": "tests/platform/test_accounts.py",
    "docs/cases.md": "tests/platform/service/acting/test_case_file.py",
    "docs/cluster.md": "tests/platform/test_units.py",
    "docs/inference.md": "tests/cli/test_admission_policy.py",
    "docs/keys-and-trust.md": "tests/cli/test_signing_verbs.py",
    "docs/queue.md": "tests/platform/test_restore.py",
    "docs/quickstart.md": "tests/cli/test_docs_commands.py",
    "docs/registry.md": "tests/cli/test_registry_page.py",
    "docs/service.md": "tests/platform/service/test_service_page.py",
    "docs/training-modes.md": "tests/train/driver/test_scaling_policy.py",
}
"""Page → the test that runs its commands, or most of them, in a world of its own."""


@dataclass(frozen=True)
class Shell:
    """Runs commands as a person with this home; servers that they start end with them."""

    home: Path
    port: int
    variables: Mapping[str, str]

    def __call__(self, commands: str, folder: str = "") -> str:
        here = self.home / folder
        here.mkdir(parents=True, exist_ok=True)
        commands = commands.replace(":8585", f":{self.port}")
        told = self.home.with_name("told")
        with told.open("w") as output:
            begun = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", commands],
                cwd=here, env=os.environ | self.variables, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            code = begun.wait(timeout=1100)
        finally:
            with suppress(ProcessLookupError):  # servers that it left
                os.killpg(begun.pid, signal.SIGKILL)
        assert code == 0, told.read_text()
        return told.read_text()


@pytest.fixture(scope="module")
def shell(cluster: None, forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        free_port = int(taken.getsockname()[1])
    home = tmp_path_factory.mktemp("pages") / "home"
    tools = home.parent / "bin"
    tools.mkdir()
    curl = shutil.which("curl")
    served = tools / "govray"
    served.write_text(
        f"""#!/bin/sh
case "$1" in
serve)
    {forked.govray} "$@" --port {free_port} >/dev/null 2>&1 &
    until {curl} -fso /dev/null http://127.0.0.1:{free_port}/v1/live; do
        kill -0 $! && sleep 0.1 || exit
    done ;;
*) exec {forked.govray} "$@" ;;
esac
"""
    )
    served.chmod(0o755)
    for name, does in {
        "pip": "echo a page would install something here >&2; exit 1",
        "curl": f'exec {curl} --fail-with-body "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    python = os.pathsep.join(map(str, (ROOT, shipped_digits(home.parent))))
    variables = {
        "HOME": str(home), "PATH": path, "PYTHONPATH": python,
        "RAY_ADDRESS": str(ray.get_runtime_context().gcs_address),
    }  # fmt: skip

    return Shell(home, free_port, variables)


@pytest.fixture(scope="module")
def trained(shell: Shell) -> Path:
    """The folder, and what is beside it, after the tutorial's sections 1 to 6."""
    clear(shell.home)
    for number in "123456":
        shell(section(TUTORIAL, f"{number}."), "my-deployment" if number != "1" else "")
    kept = shell.home.with_name("trained")
    shutil.copytree(shell.home, kept, symlinks=True)
    return kept


def test_each_page_with_commands_stands_in_one_of_the_tables() -> None:
    pages = [p.relative_to(ROOT).as_posix() for g in GLOBS for p in ROOT.glob(g)]
    told = [page for page in pages if script(page, INSTALLS)]
    tables = (*FRESH, *WALKED, *ELSEWHERE)
    assert sorted(told) == sorted(tables)
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), page


def test_what_the_tables_say_of_a_command_is_still_on_its_page() -> None:
    for page, beginnings in [*LEFT.items(), *ENDS.items()]:
        given = [line for block in blocks(page) for line in lines(block.commands)]
        for beginning in beginnings:
            assert any(line.startswith(beginning) for line in given), (page, beginning)
    for page, examples in SAID.items():
        text = "".join(block.commands for block in blocks(page))
        assert all(each in text for each in examples), page


def test_an_outcome_that_does_not_come_is_named() -> None:
    said = "IDENTICAL  steps 0 to …\n  level   acme 3 (removed)\n"
    assert missing(said, "first\nIDENTICAL  steps 0 to 39\n  level      acme 3 (removed)\n") == []
    level = "  level   acme 3 (removed)"
    assert missing(said, "IDENTICAL steps 0 to 39\n level acme 1: also needs\n") == [level]
    assert missing(said, "level acme 3 (removed)\nIDENTICAL steps 0 to 39\n") == [level]


@pytest.mark.story
@pytest.mark.parametrize("page", FRESH)
def test_a_page_from_an_empty_folder(page: str, shell: Shell) -> None:
    clear(shell.home)
    told = shell(script(page, INSTALLS))
    assert not faults(page, told), "\n".join(faults(page, told))


@pytest.mark.story
@pytest.mark.parametrize("page", WALKED)
def test_a_page_in_the_folder_of_the_tutorial(page: str, shell: Shell, trained: Path) -> None:
    clear(shell.home)
    shutil.copytree(trained, shell.home, symlinks=True)
    here = shell.home / "my-deployment"
    for name, place in NAMES.items():
        [found] = here.glob(place)
        (here / name).symlink_to(found)
    shutil.copytree(here / "RUN" / "model", here / "MODEL")
    for name, text in files(page).items():
        (here / name).write_text(text)
    left = (*INSTALLS, *LEFT.get(page, ()))
    commands = script(page, left, ENDS.get(page, {}))
    for example, own in SAID.get(page, {}).items():
        commands = commands.replace(example, own.replace(RUN_ID, (here / "RUN").resolve().name))
    told = shell(f"{dedent(WALKED[page])}\n{commands}", here.name)
    assert not faults(page, told), "\n".join(faults(page, told))
    if page == "docs/corpora.md":
        its_rows_are_trained(here)


def its_rows_are_trained(here: Path) -> None:
    [chat] = here.glob("runs/chat-*/model")
    leaves = [json.loads(line) for line in (chat / "governance/ledger.jsonl").open()]
    uses = [leaf["corpora"]["questions"] for leaf in leaves if "corpora" in leaf]
    assert len(uses) == 200
    assert all(0 <= use["targets"] < use["rows"] * 128 for use in uses)

    [model] = here.glob("runs/digits-*/model")
    made = json.loads((model / "govray.json").read_bytes())
    vit = VisionTransformer(**made["hyperparameters"]).eval()
    vit.load_state_dict(load_file(model / "model.safetensors"))

    def accuracy(source: str) -> float:
        table = pq.read_table(here / "sources" / f"{source}.parquet")
        pixels = torch.frombuffer(
            bytearray(b"".join(table["image"].to_pylist())), dtype=torch.uint8
        )
        with torch.no_grad():
            found = vit(pixels.view(-1, 1, 8, 8)).argmax(dim=1)
        return (found == torch.tensor(table["label"].to_pylist())).float().mean().item()

    # The second corpus reached the adapter alone, so the base model never learned from it.
    assert accuracy("digits") > 0.97
    assert accuracy("lab-digits") > 0.8


def clear(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)


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
