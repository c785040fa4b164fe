"""The pages' scripts in node, without a service: the package's own files."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from govray.platform.service.pages import site

STATIC = Path(site.__file__).parent / "static"

MAIN = """
import {{ readFileSync }} from "node:fs";
const given = JSON.parse(readFileSync(0, "utf8"));
const known = JSON.parse(readFileSync("kinds.json", "utf8"));
process.stdout.write(JSON.stringify(await (async () => {{ {body} }})()));
"""


def in_node(body: str, given: object) -> Any:
    """What the body of an async function returns for ``given``, beside the scripts.

    It is JSON there and back. ``known`` is what the server tells the verifiers. Where there is no
    node the test is skipped, except in CI, which installs it.
    """
    node = shutil.which("node")
    if node is None:
        if "CI" in os.environ:
            pytest.fail("no node: CI has to install it")
        pytest.skip("no node here: apt-get install nodejs")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copytree(STATIC, Path(folder, "static")))
        (place / "package.json").write_text('{"type": "module"}')
        (place / "kinds.json").write_bytes(site.kinds())
        (place / "main.js").write_text(MAIN.format(body=body))
        done = subprocess.run(
            [node, "main.js"],
            cwd=place,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def text(data: bytes) -> str:
    """Bytes as scripts get them here."""
    return base64.b64encode(data).decode()


VERIFY = """
const { readdirSync, statSync } = await import("node:fs");
const { join, relative } = await import("node:path");
const { check, state } = await import("./verify.js");
const { digestOf, fromBase64 } = await import("./bytes.js");
const walk = (folder) => readdirSync(folder).map((name) => join(folder, name))
  .flatMap((path) => (statSync(path).isDirectory() ? walk(path) : [path]));
const found = [];
for (const { folder, root, lists, at, only } of given) {
  const files = new Map();
  for (const path of walk(folder)) {
    const data = new Uint8Array(readFileSync(path));
    const bytes = async (start = 0, stop) => data.slice(start, stop);
    files.set(relative(folder, path), { digest: digestOf(data), size: data.length, bytes });
  }
  const attestation = await files.get("governance/attestation.dsse.json").bytes();
  for (const name of only ? files.keys() : []) if (!only.includes(name)) files.delete(name);
  const run = await check({
    root: root && fromBase64(root), lists: lists.map(fromBase64), attestation, files,
    names: only ? null : [...files.keys()], known, at,
  });
  found.push(run.steps.map((step) => ({ ...step, state: state(step) })));
}
return found;
"""


def asked(
    folder: Path,
    root: bytes | None,
    lists: tuple[bytes, ...] = (),
    *,
    at: str = "2026-11-20T00:00:00Z",
    only: list[str] | None = None,
) -> dict[str, Any]:
    """One question to the page's verifier: a folder, or some files of it alone."""
    given = [text(each) for each in lists]
    return {
        "folder": str(folder),
        "root": root and text(root),
        "lists": given,
        "at": at,
        "only": only,
    }


def verified(questions: list[dict[str, Any]]) -> list[dict[int, Any]]:
    """The page's steps by number, for each question."""
    answers = in_node(VERIFY, questions)
    return [{step["number"]: step for step in steps} for steps in answers]
