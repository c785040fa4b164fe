"""Two heads of one run that do not extend each other, and a ledger whose own bytes are bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import CouldNotCheck, VerificationFailed
from govray.governance.attestation import tree_heads
from govray.governance.formats import merkle
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import sign_checkpoint
from govray.governance.record import ledger
from govray.governance.record.ledger import origin
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, RUN, World


def head(world: World, lines: tuple[bytes, ...], *, run: str = RUN) -> bytes:
    """The head of these lines, signed by the world's operator."""
    return sign_checkpoint(origin(run), len(lines), merkle.root(lines), world.keys.operator)


@pytest.fixture(scope="module")
def verified(world: World, untouched: Path) -> VerifiedModel:
    return verify(untouched, trust_root=world.root, at=AT)


def test_a_head_of_the_same_history_is_told(
    world: World, untouched: Path, verified: VerifiedModel
) -> None:
    lines = tuple(verified.ledger.lines)
    given = [head(world, lines[:size]) for size in (0, 1, 4, len(lines))]
    told = verify(untouched, trust_root=world.root, at=AT, also=given)
    assert [each.size for each in told.heads] == [0, 1, 4, len(lines)]
    assert verified.heads == ()


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_head_of_another_history_is_a_fork(
    world: World, untouched: Path, verified: VerifiedModel, size: int, tmp_path: Path
) -> None:
    lines = list(verified.ledger.lines[:size])
    lines[-1] = lines[-1].replace(b'"branch":0', b'"branch":1')
    file = tmp_path / "head"
    file.write_bytes(head(world, tuple(lines)))
    with pytest.raises(VerificationFailed, match=r"step 10 \(ledger\): a fork") as refusal:
        verify(untouched, trust_root=world.root, at=AT, also=[file])
    assert refusal.value.where == str(file)


def test_control_unless_heads_are_compared_the_fork_verifies(
    world: World, untouched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_heads, "check_extends", lambda *_, **__: None)
    verify(untouched, trust_root=world.root, at=AT, also=[head(world, (b"other",))])


def test_a_longer_head_is_not_judged_by_a_shorter_ledger(
    world: World, untouched: Path, verified: VerifiedModel
) -> None:
    """It may extend the ledger or not: its own folder shows that, given this one's head."""
    longer = (*verified.ledger.lines, b"more")
    with pytest.raises(CouldNotCheck, match="10 leaves, the ledger has 9"):
        verify(untouched, trust_root=world.root, at=AT, also=[head(world, longer)])


@pytest.mark.parametrize("whose", ["stranger", "other run", "no note"])
def test_what_is_no_head_of_the_run_by_an_operator_is_refused(
    world: World, untouched: Path, verified: VerifiedModel, whose: str
) -> None:
    lines = tuple(verified.ledger.lines)
    given = {
        "stranger": sign_checkpoint(
            origin(RUN), len(lines), merkle.root(lines), LocalSigner.generate()
        ),
        "other run": head(world, lines, run="run-other"),
        "no note": b"{}\n",
    }[whose]
    with pytest.raises(VerificationFailed, match=r"step 10 \(ledger\)") as refusal:
        verify(untouched, trust_root=world.root, at=AT, also=[given])
    assert refusal.value.where == "head 1"


def respelt(data: bytes) -> bytes:
    """The same leaf to a reader that fills in what is left out."""
    return data.replace(b'"branch":0,', b"", 1)


def test_a_respelt_ledger_is_refused(world: World, tmp_path: Path) -> None:
    """The operator signs it: its digest is attested, its leaves and their root are the same."""
    folder = world.deploy(tmp_path / "model", ledger_data=respelt)
    with pytest.raises(VerificationFailed, match=r"step 10 \(ledger\): another spelling"):
        verify(folder, trust_root=world.root, at=AT)


def test_control_the_root_is_of_the_files_own_bytes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any spelling let in, the bytes still do not have the root; re-encoded leaves do."""
    monkeypatch.setattr(ledger, "_check_spelling", lambda *_: None)
    folder = world.deploy(tmp_path / "model", ledger_data=respelt)
    with pytest.raises(VerificationFailed, match=r"step 10 \(ledger\): size or root"):
        verify(folder, trust_root=world.root, at=AT)
    monkeypatch.setattr(
        ledger.Ledger,
        "read",
        classmethod(lambda cls, run, data: cls(run, ledger.read_leaves(data))),
    )
    verify(folder, trust_root=world.root, at=AT)
