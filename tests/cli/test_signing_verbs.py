"""`keys new`, `sign` and `show`, and the walk through docs/keys-and-trust.md."""

from __future__ import annotations

import re
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import PublicKey, load_signer
from govray.governance.formats.statement import read
from govray.governance.trust.authority import TrustRoot
from govray.governance.trust.beacon import UsedPulse
from tests.support.command import Run
from tests.support.tree import ROOT

POLICY = """
schema: govray.dev/depth-policy/v1
name: licences
version: {version}
valid: {{from: 2026-01-01, until: 2029-01-01}}
on_expiry: stop
profiles:
  everything: {{layers: all}}
rules:
  - {{name: open, match: {{license_category: [permissive]}}, profile: everything}}
"""

GUIDE = ROOT / "docs" / "keys-and-trust.md"


def test_a_new_key_is_private_and_its_public_half_matches(run: Run, tmp_path: Path) -> None:
    for algorithm in ("ed25519", "ecdsa-p256"):
        path = tmp_path / "keys" / f"{algorithm}.pem"
        told = run("keys", "new", path, "--algorithm", algorithm, "--json").json
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        public = PublicKey.from_pem(Path(f"{path}.pub").read_bytes())
        assert public == load_signer(str(path)).public_key
        assert told["keyid"] == public.keyid
        assert public.algorithm == algorithm


def test_a_key_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    run("keys", "new", "key.pem")
    before = (tmp_path / "key.pem").read_bytes()
    assert "already exists" in run("keys", "new", "key.pem", code=2).err
    assert (tmp_path / "key.pem").read_bytes() == before


def test_a_verb_without_a_key_says_how_to_give_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.format(version=1))
    monkeypatch.delenv("GOVRAY_KEY", raising=False)
    assert "no key was given. Give its path by --key" in run("sign", "policy.yaml", code=2).err


def test_no_key_goes_into_a_git_working_tree_unasked(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    done = run("keys", "new", "deep/key.pem", code=2)
    assert "git working tree" in done.err
    assert not (tmp_path / "deep" / "key.pem").exists()
    run("keys", "new", "deep/key.pem", "--allow-git")


def sign_policy(run: Run, tmp_path: Path, version: int, *words: str, code: int = 0) -> Path:
    source = tmp_path / "licences.yaml"
    source.write_text(POLICY.format(version=version))
    run("sign", source, "--key", "key.pem", *words, code=code)
    return tmp_path / "licences.dsse.json"


def test_signing_again_changes_nothing_and_another_key_adds(run: Run, tmp_path: Path) -> None:
    run("keys", "new", "key.pem")
    run("keys", "new", "two.pem")
    envelope = sign_policy(run, tmp_path, 1)
    first = envelope.read_bytes()
    sign_policy(run, tmp_path, 1)
    assert envelope.read_bytes() == first

    # By the source and by the envelope alike.
    done = run("sign", "licences.yaml", "--key", "two.pem", "--json").json[0]
    assert (done["action"], done["signatures"]) == ("signature added", 2)
    again = run("sign", "licences.dsse.json", "--key", "two.pem", "--json").json[0]
    assert (again["action"], again["signatures"]) == ("unchanged", 2)
    both = Envelope.parse(envelope.read_bytes())
    keys = [load_signer(name).public_key for name in ("key.pem", "two.pem")]
    assert both.signed_by(keys) == {key.keyid for key in keys}
    assert both.payload == Envelope.parse(first).payload


def test_many_files_are_signed_by_one_command(run: Run, tmp_path: Path) -> None:
    run("keys", "new", "key.pem")
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(POLICY.format(version=1).replace("licences", name))
    (tmp_path / "odd.yaml").write_text("schema: unheard-of")
    words = ("one.yaml", "odd.yaml", "two.yaml", "--key", "key.pem")
    assert "odd.yaml" in run("sign", *words, code=1).err
    assert not Path("two.dsse.json").exists()
    done = run("sign", "one.yaml", "two.yaml", "--key", "key.pem", "--json").json
    assert [(each["envelope"], each["action"]) for each in done] == [
        ("one.dsse.json", "unchanged"),
        ("two.dsse.json", "signed"),
    ]


def password(path: Path, text: str = "a long secret\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_an_encrypted_key_signs_with_its_password_and_not_without(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = password(tmp_path / "password")
    run("keys", "new", "key.pem", "--password-file", right)
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in (tmp_path / "key.pem").read_bytes()
    (tmp_path / "p.yaml").write_text(POLICY.format(version=1))
    sign = ("sign", "p.yaml", "--key", "key.pem")
    assert "--password-file FILE" in run(*sign, code=2).err
    for file, said in (
        (password(tmp_path / "wrong", "another\n"), "with this password"),
        (password(tmp_path / "open", mode=0o644), "can be read by others"),
        (password(tmp_path / "empty", "\n"), "no password"),
        (tmp_path / "missing", "cannot be read"),
    ):
        done = run(*sign, "--password-file", file, code=2)
        assert said in done.err
        assert "secret" not in done.err + done.out
        assert "another" not in done.err + done.out
    assert not (tmp_path / "p.dsse.json").exists()
    run(*sign, "--password-file", right)
    # At a terminal it is asked for, and only if the key is encrypted.
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "a long secret"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", answer)
    run(*sign)
    assert asked == ["Password of the key: "]
    run("keys", "new", "plain.pem")
    run("sign", "p.yaml", "--key", "plain.pem")
    assert len(asked) == 1
    run("keys", "new", "typed.pem", "--encrypt")
    assert len(asked) == 3
    run("sign", "p.yaml", "--key", "typed.pem", "--password-file", right)


def yaml_blocks() -> dict[str, str]:
    """The guide's sources, by the file name in their first line."""
    found = re.findall(r"```yaml\n(# (\S+\.yaml).*?)```", GUIDE.read_text(), re.DOTALL)
    return {name: text for text, name in found}


def test_the_guide_works_as_written(run: Run, tmp_path: Path) -> None:
    blocks = yaml_blocks()
    assert set(blocks) == {"root.yaml", "acme.yaml", "pulse.yaml", "revoked.yaml"}
    for name, text in blocks.items():
        (tmp_path / name).write_text(text)
    named = set(re.findall(r"([\w-]+\.pem)\.pub", "".join(blocks.values())))
    for name in sorted(named):
        run("keys", "new", name)

    once = run("sign", "root.yaml", "--key", "root-1.pem", "--json").json[0]
    assert (once["rootSignatures"], once["rootThreshold"]) == (1, 2)
    run("sign", "acme.yaml", "--key", "data-office.pem")
    source = tmp_path / "source"
    source.mkdir()
    (source / "note.txt").write_text("a note")
    run(
        *("corpus", "build", source, "--name", "acme-notes", "--out", "corpora"),
        *("--license", "MIT", "--issuer", "acme-legal", "--jurisdiction", "DE"),
        *("--sensitivity", "public"),
        *("--valid-from", "2026-11-01T00:00:00Z", "--valid-until", "2027-11-01T00:00:00Z"),
    )
    run("sign", "corpora/acme-notes/credential.yaml", "--key", "acme.pem")
    check = ("verify", "corpora/acme-notes", "--trust-root", "root.json")
    check = (*check, "--at", "2026-12-01T00:00:00Z")
    assert "1 of 2" in run(*check, "--delegation", "acme.dsse.json", code=1).err
    run("sign", "root.json", "--key", "root-2.pem")
    # Without the delegation nobody vouches for the supplier.
    assert "no signature verifies" in run(*check, code=1).err
    assert "VERIFIED corpus acme-notes" in run(*check, "--delegation", "acme.dsse.json").out

    run("sign", "revoked.yaml", "--key", "acme.pem")
    check = ("verify", "revoked.dsse.json", "--trust-root", "root.json")
    check = (*check, "--delegation", "acme.dsse.json", "--at", "2026-12-01T00:00:00Z")
    assert "VERIFIED revocation list 1 of acme-legal" in run(*check).out
    (tmp_path / "revoked.yaml").write_text(blocks["revoked.yaml"].replace("-notes", "-papers"))
    assert "version 1" in run("sign", "revoked.yaml", "--key", "acme.pem", code=2).err


def test_the_guides_beacon_signs_its_rounds(run: Run, tmp_path: Path) -> None:
    beacon = re.findall(r"```yaml\n(beacon:.*?)```", GUIDE.read_text(), re.DOTALL)
    root = re.sub(r"(?m)^( *keys: ).*", r"\1[bell.pem.pub]", yaml_blocks()["root.yaml"])
    named = root.replace("threshold: 2 ", "threshold: 1 ") + beacon[0]
    (tmp_path / "root.yaml").write_text(named)
    (tmp_path / "pulse.yaml").write_text(yaml_blocks()["pulse.yaml"])
    run("keys", "new", "bell.pem")
    assert "is the beacon's too" in run("sign", "root.yaml", "--key", "bell.pem", code=1).err
    run("keys", "new", "others.pem")
    (tmp_path / "root.yaml").write_text(named.replace("[bell", "[others"))
    run("sign", "root.yaml", "--key", "others.pem")
    run("sign", "pulse.yaml", "--key", "bell.pem")
    bell = read(TrustRoot, Envelope.parse((tmp_path / "root.json").read_bytes())).document.beacon
    assert bell is not None
    pulse = UsedPulse.read((tmp_path / "pulse.dsse.json").read_bytes(), where="pulse")
    last = bell.due(pulse.round - 1) - timedelta(seconds=bell.delay)
    bell.check(pulse, {"a": format_time(last)}, at=bell.due(pulse.round), where="pulse")
