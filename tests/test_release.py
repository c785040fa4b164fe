"""`release.py` as a maintainer runs it: the same bytes twice, one statement, and its check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from tests.support.flipped import flip
from tests.support.tree import ROOT


def release(tree: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "release.py", *words]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=500)


@pytest.mark.story
def test_a_release_is_made_twice_alike_signed_and_checked(tmp_path: Path) -> None:
    tree, dist = tmp_path / "tree", tmp_path / "dist"
    subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
    signer, key = LocalSigner.generate(), tmp_path / "release.pem"
    key.write_bytes(signer.to_pem())
    key.chmod(0o600)
    public, other = tmp_path / "release.pem.pub", tmp_path / "other.pem.pub"
    public.write_bytes(signer.public_key.to_pem())
    other.write_bytes(LocalSigner.generate().public_key.to_pem())

    (tree / "more").touch()
    assert "has changes" in release(tree, "make", dist, "--key", key).stderr
    (tree / "more").unlink()
    made = release(tree, "make", dist, "--key", key)
    assert made.returncode == 0, made.stderr
    assert release(tree, "check", dist, "--key", public).returncode == 0
    assert "did not sign it" in release(tree, "check", dist, "--key", other).stderr

    [wheel], [archive] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as inside:
        names = inside.namelist()
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    assert not [name for name in names if name.startswith("tests/")]
    with tarfile.open(archive) as inside_too:
        top = {name.split("/", 1)[1] for name in inside_too.getnames()}
    assert {"LICENSE", "NOTICE", "SECURITY.md", "release.py", "tests/golden/0.1.0.zip"} <= top

    statement = json.loads(Envelope.parse((dist / "govray.intoto.json").read_bytes()).payload)
    parts = {each["name"]: each for each in statement["predicate"]["components"]}
    assert {"torch", "ray", "pydantic", "cryptography"} <= {*parts}
    assert parts["rfc8785"]["hashes"]

    flip(wheel)
    assert "not those that it names" in release(tree, "check", dist, "--key", public).stderr
    flip(wheel)
    shutil.copy(wheel, dist / "govray-0.1.1-py3-none-any.whl")
    assert "not those that it names" in release(tree, "check", dist, "--key", public).stderr
