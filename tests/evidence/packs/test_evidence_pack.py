"""Evidence packs: what is in one, who verifies it with what, and that a changed one is refused."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from govray.errors import UsageError, VerificationFailed
from govray.evidence.packs import verify_evidence
from govray.evidence.packs.evidence_pack import write_pack
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.governance.verify.verifier import verify
from tests.support.pack_tables import tables
from tests.support.uncovered import CONTENTS, HARMLESS, LOADABLE, content
from tests.support.world import AT, World

TIME = "2026-11-20T00:00:00Z"


class Packed:
    """A world, its model, its root as a file, and a pack of it."""

    def __init__(self, world: World, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.root = folder / "root.json"
        self.root.write_bytes(world.root)
        self.pack = folder / "pack.zip"
        write_pack(model, self.pack, trust=TrustAnchor(world.root), at=AT, case="case 7")
        self.open = folder / "open"
        with zipfile.ZipFile(self.pack) as archive:
            archive.extractall(self.open)

    def verified(self, *more: str | Path) -> subprocess.CompletedProcess[str]:
        """What the pack's own script says, run without anything of govray on its path."""
        words = [self.open / "verify_evidence.py", *more]
        return subprocess.run(
            [sys.executable, "-I", *map(str, words)], capture_output=True, text=True, timeout=60
        )

    def contents(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.open / "contents.json").read_bytes())
        return found

    def list_again(self) -> None:
        """Make the contents those of the folder, as a forger would."""
        value = self.contents()
        there = (path for path in self.open.rglob("*") if path.is_file())
        value["files"] = {
            path.relative_to(self.open).as_posix(): canonical_json.sha256(path.read_bytes())
            for path in there
            if path.name != "contents.json"
        }
        (self.open / "contents.json").write_bytes(canonical_json.encode(value))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("evidence")
    world = World(secrets={"gamma": bytes(range(32))})
    return Packed(world, world.deploy(folder / "model"), folder)


@pytest.fixture
def changed(made: Packed, tmp_path: Path) -> Packed:
    copy = object.__new__(Packed)
    copy.__dict__.update(vars(made))
    copy.open = tmp_path / "open"
    shutil.copytree(made.open, copy.open)
    return copy


def test_a_script_that_needs_no_govray_verifies_it(made: Packed) -> None:
    words = (made.pack, "--trust-root", made.root, "--model", made.model)
    done = made.verified(*words, "--partial")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of these steps hold." in done.stdout
    assert done.stdout.count("✓") == 10
    # What is left to govray verify is named, and is no yes unless its reader says so.
    assert done.stdout.count("Left to govray verify: ") == len(verify_evidence.LEFT)
    whole = made.verified(*words)
    assert whole.returncode == 3
    assert whole.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    source = (made.open / "verify_evidence.py").read_text()
    assert "import govray" not in source
    assert "from govray" not in source
    # The folder verifies as the archive does, and by the root's digest alone.
    digest = verify(made.model, trust_root=made.root, at=AT).trust_root.digest
    done = made.verified(made.open, "--root-digest", digest, "--model", made.model, "--partial")
    assert done.returncode == 0, done.stdout


def test_what_was_not_given_is_said_and_is_no_yes(made: Packed) -> None:
    done = made.verified(made.pack, "--partial")
    assert done.returncode == 3
    assert "whose trust root this is: ask its owner" in done.stdout
    assert "model files that are not here" in done.stdout
    assert "Nothing failed, and not all was checked." in done.stdout


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[max(len(data) - 40, 0)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("trust/root.json", 2),
        ("model/govray.json", 4),
    ],
)
def test_a_changed_file_is_refused_also_if_the_contents_follow(
    changed: Packed, name: str, step: int
) -> None:
    flip(changed.open / name)
    done = changed.verified(changed.open, "--model", changed.model)
    assert done.returncode == 1
    assert f" 1 ✗ {name} was changed" in done.stdout
    changed.list_again()
    done = changed.verified(changed.open)
    assert done.returncode == 1, done.stdout
    assert f"{step:2} ✗" in done.stdout
    assert "Traceback" not in done.stderr


def test_another_root_or_another_model_is_refused(made: Packed, tmp_path: Path) -> None:
    other = World()
    (root := tmp_path / "root.json").write_bytes(other.root)
    done = made.verified(made.pack, "--trust-root", root)
    assert done.returncode == 1
    assert " 2 ✗ too few keys signed a delegation" in done.stdout
    done = made.verified(made.pack, "--root-digest", "sha256:" + "0" * 64)
    assert done.returncode == 1
    assert " 2 ✗ it is another root" in done.stdout
    done = made.verified(made.pack, "--trust-root", made.root, "--at", "2035-01-01T00:00:00Z")
    assert done.returncode == 1
    assert "expired" in done.stdout


def test_a_root_from_inside_the_pack_and_an_unsafe_name_are_refused(changed: Packed) -> None:
    done = changed.verified(changed.open, "--trust-root", changed.open / "trust" / "root.json")
    assert done.returncode == 1
    assert " 2 ✗ a trust root from inside what it judges is never trusted" in done.stdout
    (changed.open / "model" / "a:b.md").write_bytes(b"x")
    done = changed.verified(changed.open, "--trust-root", changed.root)
    assert (done.returncode, done.stdout) == (1, " 0 ✗ the pack has a file of an unsafe name\n")


def test_files_of_the_pack_and_of_the_model_folder_are_both_compared(
    changed: Packed, tmp_path: Path
) -> None:
    words = (changed.open, "--trust-root", changed.root, "--partial", "--model")
    model = shutil.copytree(changed.model, tmp_path / "model")
    assert changed.verified(*words, model).returncode == 0  # control
    shutil.copyfile(model / "model.safetensors", changed.open / "model" / "model.safetensors")
    changed.list_again()
    assert changed.verified(*words, model).returncode == 0
    flip(model / model_folder.LEDGER)
    assert "ledger.jsonl is not the file" in changed.verified(*words, model).stdout
    flip(model / model_folder.LEDGER)
    flip(changed.open / "model" / "model.safetensors")
    changed.list_again()
    assert "model.safetensors is not the file" in changed.verified(*words, model).stdout


def test_a_bomb_is_refused_before_it_is_read(made: Packed, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("contents.json", bytes(1 << 20))
    data = bytearray(bomb.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")  # the size that it states
    bomb.write_bytes(data)
    done = made.verified(bomb)
    assert done.returncode == 1
    assert "contents.json is too large" in done.stdout
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("contents.json", b"{}" * 1000)
    broken = bytearray(bomb.read_bytes())
    broken[45:55] = b"\xff" * 10
    bomb.write_bytes(broken)
    done = made.verified(bomb)
    assert (done.returncode, done.stderr) == (1, "")


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """The exit code and the output of the script, in this process."""
    code = verify_evidence.main([str(each) for each in words])
    return code, capsys.readouterr().out


def test_the_script_has_the_verifiers_tables() -> None:
    """It imports nothing of govray. `python -m tests.support.pack_tables` writes them."""
    assert tables() == verify_evidence.TABLES
    for name in (*LOADABLE, *HARMLESS, "docs/a.TXT", "LICENSE-2.0", "sub/.git/x", "x."):
        assert verify_evidence.inert(name) == model_folder.inert(name), name
        for data in (*CONTENTS, content(name)):
            same = model_folder.reads_as_named(name, data)
            assert verify_evidence.reads_as_named(name, data) == same, (name, data)


@pytest.mark.parametrize(
    "value", [1e-7, 1e-6, 0.1, -2.5, 1e21, 1.5e300, 5e-324, 0.0, 123456.75, "é\u2028\x7f\n"]
)
def test_the_script_spells_json_as_govray_does(value: float | str) -> None:
    given = {"\U0001f600": [value, True, None], "\uffff": {"a": 1}}
    assert verify_evidence.canonical(given).encode() == canonical_json.encode(given)
    assert verify_evidence.parse(canonical_json.encode(given)) == given


def test_an_entry_of_another_kind_hides_no_step(changed: Packed) -> None:
    absent = dict.fromkeys(("model", "at", "root_digest", "allow_uncovered"))
    given = argparse.Namespace(pack=changed.open, trust_root=changed.root, **absent)
    checks = verify_evidence.Checks(verify_evidence.Pack(changed.open), given)
    for name, check in verify_evidence.steps(checks):
        check()
        if name == "ledger":
            break
    assert "totals" in checks.coverage()  # control
    for kind in ("note", *verify_evidence.OF_A_STEP):
        step = {**checks.leaves[0], "kind": kind}
        checks.leaves = [*checks.leaves, step]
        with pytest.raises(verify_evidence.DoesNotHold, match="of another kind"):
            checks.coverage()
        checks.leaves.pop()


def test_no_pack_takes_more_than_its_limits_or_ends_in_a_traceback(
    changed: Packed,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = tmp_path / "many.zip"
    with zipfile.ZipFile(many, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("contents.json", b"[" + b"[]," * (1 << 22) + b"[]]")
    assert told(capsys, many) == (1, " 1 ✗ a document is too large\n")
    with zipfile.ZipFile(many, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("contents.json", b"{}" * 1000)
    assert "otherwise than by deflate" in told(capsys, many)[1]
    contents = changed.contents() | {"at": TIME}
    os.mkfifo(changed.open / "pipe")
    contents["files"]["pipe"] = "sha256:" + "0" * 64  # type: ignore[index]
    (changed.open / "contents.json").write_bytes(canonical_json.encode(contents))
    assert "what is no file" in told(capsys, changed.open)[1]
    (changed.open / "pipe").unlink()
    monkeypatch.setattr(verify_evidence.Checks, "contents", lambda _: str(int(float("1e999"))))
    assert told(capsys, changed.open)[1].startswith(" 1 ✗ it cannot be read: OverflowError")


def test_lists_of_revocations_are_packed_and_obeyed(tmp_path: Path) -> None:
    world = World()
    model = world.deploy(tmp_path / "model")
    digest = world.verify(model).digest
    listed = {"since": "2026-11-21T00:00:00Z", "reason": "for a test", "attestation": digest}
    issued = RevocationList(
        issuer="operator",
        sequence=1,
        issued="2026-11-19T00:00:00Z",
        entries=(Revocation(**listed),),
    )
    data = issued.seal([world.keys.operator])
    pack, root = tmp_path / "pack.zip", tmp_path / "root.json"
    root.write_bytes(world.root)
    write_pack(model, pack, trust=TrustAnchor(world.root, revocations=(data,)), at=AT)
    script = tmp_path / "verify_evidence.py"
    script.write_bytes(zipfile.ZipFile(pack).read("verify_evidence.py"))

    def said(*more: str) -> subprocess.CompletedProcess[str]:
        words = [script, pack, "--trust-root", root, "--model", model, "--partial", *more]
        return subprocess.run(
            [sys.executable, "-I", *map(str, words)], capture_output=True, text=True, timeout=60
        )

    assert said().returncode == 0, said().stdout  # as of before it was revoked
    later = said("--at", "2026-11-22T00:00:00Z")
    assert later.returncode == 1
    assert "10 ✗ attestation sha256:" in later.stdout
    # Its maker leaves the list out; whoever has it gives it.
    write_pack(model, pack := tmp_path / "without.zip", trust=TrustAnchor(world.root), at=AT)
    (given := tmp_path / "list.json").write_bytes(data)
    assert said("--at", "2026-11-22T00:00:00Z").returncode == 0
    later = said("--at", "2026-11-22T00:00:00Z", "--revocations", str(given))
    assert "10 ✗ attestation sha256:" in later.stdout


def test_a_model_that_does_not_verify_gives_no_pack(made: Packed, tmp_path: Path) -> None:
    shutil.copytree(made.model, model := tmp_path / "model")
    flip(model / "model.safetensors")
    with pytest.raises(VerificationFailed):
        write_pack(model, tmp_path / "p.zip", trust=TrustAnchor(made.root.read_bytes()), at=AT)
    assert not (tmp_path / "p.zip").exists()


def test_no_secret_is_in_it_and_the_weights_only_if_asked_for(made: Packed, tmp_path: Path) -> None:
    names = zipfile.ZipFile(made.pack).namelist()
    assert not [name for name in names if name.endswith((".safetensors", ".secret", ".pem"))]
    root = TrustAnchor(made.root.read_bytes())
    write_pack(made.model, tmp_path / "w.zip", trust=root, at=AT, weights=True)
    assert "model/model.safetensors" in zipfile.ZipFile(tmp_path / "w.zip").namelist()
    done = made.verified(tmp_path / "w.zip", "--trust-root", made.root, "--partial")
    assert done.returncode == 0, done.stdout


def test_what_its_verifier_needs_has_hashes(made: Packed) -> None:
    text = (made.open / "verifier" / "requirements.txt").read_text()
    names = [line.partition("==")[0] for line in text.splitlines() if line[0] != " "]
    assert {"cryptography", "pydantic", "pydantic-core", "cffi"} <= set(names), (
        "and what these need"
    )
    assert not {"torch", "ray", "govray"} & set(names)
    assert all("--hash=sha256:" in each for each in text.split("==")[1:])


def test_a_hostile_case_is_text(made: Packed, tmp_path: Path) -> None:
    root, case = TrustAnchor(made.root.read_bytes()), "<script>alert(1)</script>"
    write_pack(made.model, tmp_path / "p.zip", trust=root, at=AT, case=case)
    page = zipfile.ZipFile(tmp_path / "p.zip").read("README.html").decode()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    with pytest.raises(UsageError, match="a case has 1 to 200 characters"):
        write_pack(made.model, tmp_path / "q.zip", trust=root, at=AT, case="x" * 201)
