"""The queries of docs/registry.md over HTTP, as a shell runs them against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from tests.support.library import Library, library
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "registry.md").read_text()


def commands() -> list[str]:
    """Every curl of the page, continuation lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("curl ")]


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Library, dict[str, str], Path]]:
    with library(tmp_path_factory.mktemp("library")) as shelf:
        config = uvicorn.Config(shelf.service.app, port=0, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        model = shelf.model("first")
        environment = {
            "GOVRAY": f"http://127.0.0.1:{port}",
            "TOKEN": shelf.service.tokens["auditor"],
            "MODEL": "first",
            "VERSION": "1.0.0",
            "ATTESTATION": model.digest,
            "CORPUS": "acme",
            "SHA256": shelf.record("acme", 0),
            "RUN": "run-first",
            "FILE_SHA256": model.subjects[0].digest["sha256"],
            "POLICY": model.policy.digest,
        }
        try:
            yield shelf, environment, tmp_path_factory.mktemp("here")
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def run(served: tuple[Library, dict[str, str], Path], command: str) -> str:
    _, environment, folder = served
    done = subprocess.run(
        ["bash", "-c", f"{command.replace('curl ', 'curl --fail-with-body ', 1)}"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_each_command_is_answered(served: tuple[Library, dict[str, str], Path]) -> None:
    found = commands()
    assert len(found) == 9
    for command in found:  # in the page's order: one uses what another fetched
        answer = run(served, command)
        if "attestation.dsse.json $GOVRAY" not in command and "/checkpoint" not in command:
            assert "problems/" not in json.dumps(json.loads(answer))
    shelf, _, folder = served
    assert (folder / "attestation.dsse.json").read_bytes() == shelf.envelope("first")


def test_the_pages_program_checks_a_proof(
    served: tuple[Library, dict[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, _, folder = served
    asking = next(command for command in commands() if "proofs/inclusion" in command)
    (folder / "proof.json").write_text(run(served, asking))
    (folder / "operator.pem").write_bytes(shelf.shelf.world.keys.operator.public_key.to_pem())
    program = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    monkeypatch.chdir(folder)
    exec(program, {})
    # The control: it looks at the proof.
    proof = json.loads((folder / "proof.json").read_text())
    (folder / "proof.json").write_text(json.dumps({**proof, "index": "1"}))
    with pytest.raises(Exception, match="does not hold"):
        exec(program, {})
