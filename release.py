"""Make a release's files, or check them.

    python release.py make dist --key KEY.pem
    python release.py check dist --key KEY.pem.pub

``make`` builds wheel and source archive twice, from two clones of the commit, and refuses other
bytes. It signs one statement about both, whose predicate is the bill of materials
(in-toto.io/Statement/v1 in DSSE; CycloneDX 1.6 of ``deploy/constraints.txt``).
``check`` needs that key from elsewhere than from the files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from govray.errors import GovrayError, Refused, VerificationFailed
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import PublicKey, load_signer

ROOT = Path(__file__).parent
STATEMENT = "govray.intoto.json"
HEAD = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://cyclonedx.org/bom"}


def built(folder: Path) -> dict[str, bytes]:
    """Wheel and source archive of the commit, by name, built in a clone below ``folder``."""
    clone, out = folder / "clone", folder / "out"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=clone, check=True)
    return {path.name: path.read_bytes() for path in out.iterdir()}


def bill_of_materials() -> canonical_json.JSON:
    """What wheel and image install, each by version and hashes (CycloneDX)."""
    parts = []
    for line in (ROOT / "deploy" / "constraints.txt").read_text().replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split(" --hash=sha256:")
        kept = [HashType(alg=HashAlgorithm.SHA_256, content=each.strip()) for each in hashes]
        name, version = requirement.split(";")[0].strip().split("==")
        parts.append(
            Component(
                type=ComponentType.LIBRARY,
                name=name,
                version=version,
                purl=PackageURL("pypi", name=name, version=version),
                hashes=kept,
            )
        )
    made: dict[str, canonical_json.JSON] = json.loads(
        JsonV1Dot6(Bom(components=parts)).output_as_string()
    )
    del made["serialNumber"], made["metadata"]  # when, and by which tool: else no two are alike
    return made


def make(folder: Path, key: str) -> PublicKey:
    """Write the files and the signed statement into a new folder; returns the signer's key."""
    signer = load_signer(key)
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True).stdout:
        raise Refused("the tree has changes", where=str(ROOT), do="Commit them")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        files = built(Path(one))
        if built(Path(two)) != files:
            raise Refused("two builds differ", where=", ".join(sorted(files)))
    statement = {**HEAD, "subject": subjects(files), "predicate": bill_of_materials()}
    files[STATEMENT] = sign_payload(canonical_json.encode(statement), [signer])
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return signer.public_key


def subjects(files: dict[str, bytes]) -> canonical_json.JSON:
    """Name and digest of each file, as a statement has them."""
    return [
        {"name": name, "digest": {"sha256": canonical_json.sha256(data).removeprefix("sha256:")}}
        for name, data in sorted(files.items())
    ]


def check(folder: Path, key: PublicKey) -> None:
    """Raise unless ``key`` signed a statement about exactly the files of ``folder``."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    envelope = Envelope.parse(files.pop(STATEMENT, b""), where=STATEMENT)
    if not envelope.signed_by([key]):
        raise VerificationFailed(f"{key.keyid} did not sign it", where=STATEMENT)
    statement = json.loads(envelope.payload)
    if {name: statement.get(name) for name in HEAD} != HEAD:
        raise VerificationFailed("it is no statement of a release", where=STATEMENT)
    if statement["subject"] != subjects(files):
        raise VerificationFailed("the files are not those that it names", where=str(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("act", choices=["make", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--key", required=True, help="a private key to make, a public one to check")
    given = parser.parse_args()
    try:
        making = given.act == "make"
        key = (
            make(given.folder, given.key)
            if making
            else PublicKey.from_pem(Path(given.key).read_bytes())
        )
        check(given.folder, key)
    except GovrayError as error:
        sys.exit(str(error))
    for path in sorted(given.folder.iterdir()):
        print(canonical_json.sha256(path.read_bytes()), path.name)
