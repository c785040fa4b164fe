"""`timestamp`, `witness` and `keys public`, and the walk through docs/keys-and-trust.md."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from govray.governance.attestation import model_folder
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner, PublicKey
from govray.governance.trust.witness_policy import LedgerWitness, WitnessPolicy
from tests.support.command import Run, write_key
from tests.support.distribution import require_openssl
from tests.support.page_commands import part
from tests.support.process import witnessing
from tests.support.timestamp_server import Tsa
from tests.support.world import World

KEYS = part("docs/keys-and-trust.md", "Keys")
PAGE = part("docs/keys-and-trust.md", "Time and witnesses")
NAMES = ("witness.example/w1", "witness.example/w2", "witness.example/w3")


def fences(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page, re.M | re.S)
    return [text for given, text in found if given == language]


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tsa, str]]:
    require_openssl()
    made = Tsa.make(tmp_path_factory.mktemp("tsa") / "tsa")
    with made.serving() as url:
        yield made, url


@pytest.fixture(scope="module")
def signers() -> dict[str, LocalSigner]:
    return {name: LocalSigner.generate() for name in NAMES}


@pytest.fixture(scope="module")
def addresses(
    world: World, signers: dict[str, LocalSigner], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """Two witnesses, each a process."""
    with ExitStack() as ending:
        found = []
        for name in NAMES[:2]:
            folder = tmp_path_factory.mktemp("witness")
            write_key(folder / "w1.pem", signers[name])
            (folder / "operator.pem.pub").write_bytes(world.keys.operator.public_key.to_pem())
            [serves] = [each for each in lines(PAGE) if each.startswith("govray witness serve")]
            words = serves.replace(NAMES[0], name).split()[3:]
            found.append(ending.enter_context(witnessing(folder, *words))[1])
        yield found


def lines(page: str) -> list[str]:
    return [each for block in fences(page, "") for each in block.splitlines()]


@pytest.fixture
def trusting(
    world: World, tsa: tuple[Tsa, str], signers: dict[str, LocalSigner], own_folder: Path
) -> Path:
    """A root that names the authority, and three witnesses of whom two are enough."""
    witnesses = tuple(LedgerWitness(name=n, key=s.public_key) for n, s in signers.items())
    file = own_folder / "root.json"
    file.write_bytes(
        world.sign_root(
            version=2,
            timestamp_authorities=(tsa[0].named,),
            witness_policy=WitnessPolicy(threshold=2, witnesses=witnesses),
        )
    )
    return file


def test_the_page_runs_as_it_stands(
    run: Run, model: Path, trusting: Path, tsa: tuple[Tsa, str], addresses: list[str]
) -> None:
    model.rename("MODEL")
    places = {
        "https://tsa.example": tsa[1],
        "https://w1.example": addresses[0],
        "https://w2.example": addresses[1],
    }
    before = run("verify", "MODEL", "--trust-root", trusting, "--json").json
    assert (before["assuranceLevel"], before["timestamps"]) == ("selfAttested", [])
    told = {}
    for line in lines(PAGE):
        for named, place in places.items():
            line = line.replace(named, place)
        words = line.split()[1:]
        if words[0] == "verify" or words[:2] in (["model", "timestamp"], ["witness", "ask"]):
            told[words[0]] = run(*words).out
    assert re.search(r"timestamp +attestation signed by \S+Z by tsa", told["verify"])
    assert "2 of 2 asked for: witness.example/w1 at" in told["verify"]
    assert "witnessed: not shown are" in told["verify"]
    after = run("verify", "MODEL", "--trust-root", trusting, "--json").json
    assert after["attestation"] == before["attestation"]
    assert after["assuranceLevel"] == "witnessed"
    assert [each["witness"] for each in after["cosignatures"]] == list(NAMES[:2])
    assert [each["authority"] for each in after["timestamps"]] == ["tsa"]


def test_nothing_is_asked_that_the_root_would_not_count(
    run: Run, model: Path, root: Path, trusting: Path, world: World
) -> None:
    plain = Path("plain.json")
    plain.write_bytes(world.root)
    done = run(
        "model", "timestamp", model, "--tsa", "http://127.0.0.1:9", "--trust-root", plain, code=2
    )
    assert "names no timestamp authority" in done.err
    asks = ("witness", "ask", model, "--trust-root")
    done = run(*asks, plain, "--witness", "w=http://127.0.0.1:9", code=2)
    assert "names no witnesses" in done.err
    for word in ("w=http://127.0.0.1:9", NAMES[0]):
        assert "NAME=URL" in run(*asks, trusting, "--witness", word, code=2).err
    done = run(*asks, trusting, "--witness", f"{NAMES[0]}=http://127.0.0.1:9", code=69)
    assert "does not answer" in done.err
    assert not (model / model_folder.WITNESSED).exists()


VAULT = """#!/bin/sh
[ "$*" = "write -field=signature transit/sign/operator input=-" ] || exit 9
base64 -d > said; printf 'vault:v1:'
openssl pkeyutl -sign -rawin -inkey ed25519.pem -in said | base64 -w0
"""
AWS = """#!/bin/sh
if [ "$2" = get-public-key ]; then
  openssl pkey -in p256.pem -pubout -outform DER | base64; exit
fi
for word; do case "$word" in fileb://*) openssl pkeyutl -sign -inkey p256.pem \\
  -in "${word#fileb://}" | base64;; esac; done
"""


def test_the_pages_vault_and_kms_commands_sign(
    run: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against stand-ins for the services' own commands, which sign by openssl."""
    require_openssl()
    tools = own_folder / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    scripts = [each for each in fences(KEYS, "sh") if "#!/bin/sh" in each]
    made = {tools / "vault": VAULT, tools / "aws": AWS}
    made |= {own_folder / re.findall(r"# (sign-\w+):", each)[0]: each for each in scripts}
    for path, text in made.items():
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for algorithm, name in (("ed25519", "ed25519"), ("ecdsa-p256", "p256")):
        run("keys", "new", f"{name}.pem", "--algorithm", algorithm)
    Path("sign-vault.pub").write_bytes(Path("ed25519.pem.pub").read_bytes())
    [fetch] = [each for each in fences(KEYS, "sh") if "get-public-key" in each]
    subprocess.run(["bash", "-euo", "pipefail", "-c", fetch], check=True, timeout=30)
    for name, key in (("vault", "ed25519"), ("kms", "p256")):
        assert run("keys", "public", f"command:./sign-{name}").out == (
            Path(f"{key}.pem.pub").read_text()
        )
    Path("policy.yaml").write_text(POLICY)
    run("sign", "policy.yaml", "--key", "command:./sign-kms")
    key = PublicKey.from_pem(Path("p256.pem.pub").read_bytes())
    assert Envelope.parse(Path("policy.dsse.json").read_bytes()).signed_by([key])


POLICY = """
schema: govray.dev/depth-policy/v1
name: licences
version: 1
valid: {from: 2026-01-01, until: 2029-01-01}
on_expiry: stop
profiles:
  everything: {layers: all}
rules:
  - {name: open, match: {license_category: [permissive]}, profile: everything}
"""
