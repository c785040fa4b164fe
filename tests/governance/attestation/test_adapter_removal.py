"""Removing an adapter leaves the old folder or the new one, whatever interrupts it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import GovrayError, Refused, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.adapter_removal import remove_adapter_files
from govray.governance.attestation.model_attestation import without_adapter
from govray.governance.formats.statement import seal
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.storage import staged_folder
from tests.support.world import AT, World

# What changes the disk, as CPython's audit hooks name it; `open` counts if it writes.
ACTS = {
    "os.link",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "shutil.rmtree",
    "ctypes.call_function",
}
CRASHED = 9


def signed_removal(world: World, folder: Path) -> bytes:
    """The attestation of ``folder`` without acme's adapter."""
    before = verify(folder, trust_root=world.root, at=AT)
    after = without_adapter(before.attestation, before.routes, "acme", at="2026-11-11T00:00:00Z")
    kept = [s for s in before.subjects if not s.name.startswith("adapters/acme/")]
    return seal(after, kept, [world.keys.operator])


def crash_at(number: int, act: Callable[[], None]) -> bool:
    """Run ``act`` in a fork that dies before its ``number``-th act; whether it died so."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_RDWR
            writes = writes or (event == "open" and bool(arguments[2] & os.O_WRONLY))
            if event in ACTS or writes:
                seen += 1
                if seen == number:
                    os._exit(CRASHED)

        sys.addaudithook(watch)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, CRASHED)
    return code == CRASHED


def state(world: World, folder: Path) -> str:
    """Which of the two whole folders this is; raises if it is neither."""
    found: VerifiedModel = verify(folder, trust_root=world.root, at=AT)
    assert found.uncovered == ()
    present = {
        name.split("/")[1] for name in model_folder.Bundle(folder).names() if "adapters/" in name
    }
    if not found.attestation.removals:
        assert present == {"acme"}
        return "old"
    assert present == set()
    return "new"


@pytest.mark.slow
def test_a_crash_at_any_act_leaves_the_old_folder_or_the_new_one(world: World, model: Path) -> None:
    pristine = shutil.copytree(model, model.with_name("pristine"))
    envelope = signed_removal(world, model)

    def act() -> None:
        remove_adapter_files(model, "acme", envelope, accept=lambda folder: None)

    states = []
    number = 1
    while crash_at(number, act):
        states.append(state(world, model))
        number += 1
        # The next one begins without this one's leftovers, which it would delete first.
        for each in (model, *model.parent.glob(".*")):
            shutil.rmtree(each)
        shutil.copytree(pristine, model)
    assert state(world, model) == "new"
    # The property says something only if crashes fell on both sides of the exchange.
    assert states == sorted(states, reverse=True)
    assert {"old", "new"} <= set(states)


def test_removing_in_place_would_break_it(world: World, model: Path) -> None:
    """The negative control: the same changes one after the other, stopped after the first."""
    envelope = signed_removal(world, model)
    for name in model_folder.adapter_files("acme"):
        (model / name).unlink()
    with pytest.raises(VerificationFailed):
        state(world, model)
    (model / model_folder.ATTESTATION).write_bytes(envelope)
    assert state(world, model) == "new"


def test_what_stays_is_the_same_bytes_and_nothing_else_is_left(world: World, model: Path) -> None:
    kept = {
        name: (model / name).read_bytes()
        for name in model_folder.Bundle(model).names()
        if not name.startswith("adapters/") and name != model_folder.ATTESTATION
    }
    mode = model.stat().st_mode
    remove_adapter_files(model, "acme", signed_removal(world, model), accept=lambda folder: None)
    assert state(world, model) == "new"
    assert {n: (model / n).read_bytes() for n in kept} == kept
    assert model.stat().st_mode == mode
    assert [p.name for p in model.parent.iterdir()] == ["model"]


def test_a_result_that_is_not_accepted_changes_nothing(world: World, model: Path) -> None:
    def refuse(folder: Path) -> None:
        raise Refused("not this one")

    with pytest.raises(Refused, match="not this one"):
        remove_adapter_files(model, "acme", signed_removal(world, model), accept=refuse)
    assert state(world, model) == "old"
    assert [p.name for p in model.parent.iterdir()] == ["model"]


def test_without_an_exchange_and_without_hard_links_it_works_too(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    envelope = signed_removal(world, model)
    monkeypatch.setattr(staged_folder, "_exchange_at_once", lambda one, two: False)
    monkeypatch.setattr(os, "link", no_links)
    remove_adapter_files(model, "acme", envelope, accept=lambda folder: state(world, folder))
    assert state(world, model) == "new"
    assert [p.name for p in model.parent.iterdir()] == ["model"]


def test_without_an_exchange_a_failed_rename_puts_the_old_folder_back(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = signed_removal(world, model)
    rename, calls = os.rename, []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(staged_folder, "_exchange_at_once", lambda one, two: False)
    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(GovrayError, match="Input/output error"):
        remove_adapter_files(model, "acme", envelope, accept=lambda folder: None)
    assert state(world, model) == "old"
