"""Revocation lists through the verbs: the root's rule everywhere, the pinned feed, removals."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.governance.verify.verifier import verify
from govray.storage import staged_folder
from tests.support.command import Run, write_key
from tests.support.world import AT, World, write

AGAIN = "2026-11-20T00:00:01Z"


def listed(world: World, *entries: Revocation, sequence: int = 1) -> bytes:
    document = RevocationList(
        issuer="operator", sequence=sequence, issued="2026-11-19T00:00:00Z", entries=entries
    )
    return document.seal([world.keys.operator])


def root_with(world: World, folder: Path, **operator: object) -> Path:
    """A later root, whose operator authority differs in these fields."""
    authorities = tuple(
        a.model_copy(update=operator) if a.name == "operator" else a for a in world.authorities()
    )
    path = folder / "root-2.json"
    path.write_bytes(world.sign_root(version=2, authorities=authorities))
    return path


VERBS = [
    ("verify", "{model}", "--at", "{at}"),
    ("verify", "{policy}", "--at", "{at}"),
    ("trace", "{policy}", "--model", "{model}", "--at", "{at}"),
    ("adapter", "remove", "{model}", "acme", "--key", "{key}", "--at", "{at}"),
    ("adapter", "export", "{model}", "acme", "--out", "out", "--at", "{at}"),
    ("model", "register", "{model}", "--name", "m", "--version", "1.0.0", "--at", "{at}"),
    ("store", "index", "{storage}"),
    ("store", "rebuild", "{storage}"),
    ("serve", "--no-auth", "--storage", "{storage}"),
]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: " ".join(words[:2]))
def test_every_verb_that_judges_asks_for_the_list_that_the_root_asks_for(
    run: Run, world: World, model: Path, tmp_path: Path, at: str, words: tuple[str, ...]
) -> None:
    root = root_with(world, tmp_path, minimum_revocations=5)
    write(tmp_path / "policy.dsse.json", world.policy)
    (tmp_path / "storage").mkdir()
    stale = tmp_path / "stale.dsse.json"
    stale.write_bytes(listed(world, sequence=4))
    values = {
        "model": model,
        "policy": tmp_path / "policy.dsse.json",
        "storage": tmp_path / "storage",
        "key": write_key(tmp_path / "operator.pem", world.keys.operator),
        "at": at,
    }
    command = [word.format(**values) for word in words] + ["--trust-root", str(root)]
    done = run(*command, code=3)
    assert "asks for at least list 5 of operator, none was given" in done.err
    done = run(*command, "--revocations", stale, code=3)
    assert "list 4 of operator is older than list 5" in done.err
    assert not (tmp_path / "out").exists()
    assert (model / "adapters" / "acme").is_dir()


def test_a_pinned_feed_is_used_by_later_verbs_and_only_grows(
    run: Run, world: World, model: Path, prepared: Path, tmp_path: Path, at: str
) -> None:
    root = root_with(world, tmp_path, minimum_revocations=2, maximum_revocation_age_hours=48)
    for n in (1, 2, 3):
        (tmp_path / f"{n}.dsse.json").write_bytes(listed(world, sequence=n))
    run("verify", model, "--trust-root", root, "--at", at, code=3)
    run("verify", model, "--trust-root", root, "--at", at, "--revocations", "2.dsse.json", "--pin")
    assert "by list 2 of operator of 2026-11-19" in run("verify", model, "--at", at).out
    run("trace", "2.dsse.json", "--model", model, "--records", prepared, "--at", at)
    assert "never goes back" in run(
        "verify", model, "--at", at, "--revocations", "1.dsse.json", code=1
    ).err  # fmt: skip
    run("verify", model, "--at", at, "--revocations", "3.dsse.json", "--pin")
    assert "by list 3 of operator" in run("verify", model, "--at", at).out
    done = run("verify", model, "--at", "2026-11-21T00:00:00Z", code=3)
    assert "older than the 48 hours that the trust root accepts" in done.err
    # A feed is a folder: whoever puts newer lists there needs no verb.
    feed = tmp_path / "config" / "govray" / "revocations"
    assert [each.name for each in feed.iterdir()] == ["operator.dsse.json"]


@pytest.mark.parametrize("rotated", [False, True], ids=["second key", "rotated"])
def test_another_key_of_the_operator_removes_an_adapter(
    run: Run, world: World, model: Path, tmp_path: Path, at: str, rotated: bool
) -> None:
    """Step 10 wants a note by whoever signed the attestation, so the new key signs that too."""
    second = LocalSigner.generate("ecdsa-p256")
    key = write_key(tmp_path / "second.pem", second)
    if rotated:  # the old key stays in an authority of its own, for what it signed
        old = world.operator.model_copy(update={"name": "operator-until-2026"})
        new = world.operator.model_copy(update={"keys": (second.public_key,)})
        others = [each for each in world.authorities() if each.name != "operator"]
        root = tmp_path / "root-2.json"
        root.write_bytes(world.sign_root(version=2, authorities=(*others, old, new)))
    else:
        keys = (world.keys.operator.public_key, second.public_key)
        root = root_with(world, tmp_path, keys=keys)
    check = ("--trust-root", root, "--at", at)
    before = verify(model, trust_root=root, at=AT)
    told = run("adapter", "remove", model, "acme", "--key", key, *check, "--json").json
    assert told["levels"] == {"acme": 1}
    after = verify(model, trust_root=root, at=AT)
    assert after.keyids == {second.public_key.keyid}
    assert after.manifest.digest == before.manifest.digest
    assert after.ledger.root == before.ledger.root
    # When the first key is gone, the model that the second one signed still verifies.
    gone = tmp_path / "root-3.json"
    only = world.operator.model_copy(update={"keys": (second.public_key,)})
    rest = [each for each in world.authorities() if each.name != "operator"]
    gone.write_bytes(world.sign_root(version=3, authorities=(*rest, only)))
    run("verify", model, "--trust-root", gone, "--at", at)


def test_a_copy_from_before_the_removal_stops_verifying(
    run: Run, world: World, model: Path, root: Path, tmp_path: Path, at: str
) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    key = write_key(tmp_path / "operator.pem", world.keys.operator)
    check = ("--trust-root", root, "--at", AGAIN)
    remove = ("adapter", "remove", model, "acme", "--key", key, "--trust-root", root, "--at", at)
    run(*remove, "--revoke", "revoked.dsse.json")
    run("verify", copy, *check)  # who has no list cannot know
    lists = ("--revocations", "revoked.dsse.json")
    done = run("verify", copy, *check, *lists, code=1)
    assert "step 13 (revocations): revoked since 2026-11-20" in done.err
    assert "adapter acme was removed" in done.err
    assert "nothing, by list 1 of operator" in run("verify", model, *check, *lists).out


def removal_of(
    world: World, model: Path, root: Path, tmp_path: Path, at: str
) -> tuple[object, ...]:
    key = write_key(tmp_path / "operator.pem", world.keys.operator)
    return ("adapter", "remove", model, "acme", "--key", key, "--trust-root", root, "--at", at)


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.glob(".revoked*"))


@pytest.mark.parametrize(("done", "asked"), [("before", True), ("after", True), ("after", False)])
def test_an_interrupted_removal_loses_no_entry_and_leaves_no_rest(
    run: Run,
    world: World,
    model: Path,
    root: Path,
    tmp_path: Path,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    done: str,
    asked: bool,
) -> None:
    """The disk fails as the folders change names, or as soon as they have."""
    words = removal_of(world, model, root, tmp_path, at)
    exchange = staged_folder.exchange

    def failing(one: Path, two: Path) -> None:
        if done == "after":
            exchange(one, two)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(staged_folder, "exchange", failing)
    lists = ("--revoke", "revoked.dsse.json") if asked else ()
    said = run(*words, *lists, code=2).err
    assert not hidden(tmp_path)
    removed = done == "after"
    assert removed == (not (model / "adapters").exists())
    assert (tmp_path / "revoked.dsse.json").exists() == (asked and removed)
    assert ("The model folder is as it was" in said) == (not removed)
    assert ("needs this entry: {attestation: sha256:" in said) == (removed and not asked)
    assert ("is revoked in revoked.dsse.json" in said) == (removed and asked)
