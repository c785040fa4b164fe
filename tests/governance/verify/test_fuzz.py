"""Random mutations of a valid model folder: none accepted, none ending in a traceback.

Two attackers. An outsider changes bytes, structure or files without any key: everything must be
refused. An insider changes the attestation's predicate and signs it with the operator's true key:
what is accepted may differ only in fields that are the signer's word.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import GovrayError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import sign_payload
from govray.governance.verify.verifier import verify
from tests.support.mutations import (
    Files,
    apply,
    change_json,
    delete_file,
    edit_envelope,
    edit_tensors,
    flip_bits,
    insert,
    pick,
    read_all,
    swap_files,
    truncate,
)
from tests.support.world import AT, World, unchecked

OUTSIDE = 250
INSIDE = 120


Mutation = Callable[[random.Random, Files], None]


def cut(rng: random.Random, files: Files) -> None:
    name = pick(rng, files)
    start = rng.randrange(len(files[name]))
    files[name] = files[name][:start] + files[name][start + rng.randint(1, 64) :]


def repeat(rng: random.Random, files: Files) -> None:
    name = pick(rng, files)
    files[name] *= 2


def shuffle_lines(rng: random.Random, files: Files) -> None:
    name = rng.choice(
        [
            model_folder.LEDGER,
            model_folder.CREDENTIALS,
            model_folder.CHECKPOINT,
            model_folder.DELEGATIONS,
        ]
    )
    lines = files[name].splitlines(keepends=True)
    rng.choice([rng.shuffle, lambda kept: kept.pop(), lambda kept: kept.append(kept[0])])(lines)
    files[name] = b"".join(lines)


def edit_json(rng: random.Random, files: Files) -> None:
    name = rng.choice([n for n in sorted(files) if n.endswith((".json", ".jsonl"))])
    if name.endswith(".json"):
        files[name] = edit_envelope(rng, files[name])
        return
    lines = files[name].splitlines()
    i = rng.randrange(len(lines))
    lines[i] = edit_envelope(rng, lines[i])
    files[name] = b"".join(line + b"\n" for line in lines)


def rename_file(rng: random.Random, files: Files) -> None:
    data = files.pop(pick(rng, files))
    files[rng.choice(["other.txt", "adapters/x/adapter_config.json", "governance/x"])] = data


def add_file(rng: random.Random, files: Files) -> None:
    place = rng.choice(["x.safetensors", "adapters/x", "governance/root.json", "sub/m.pt"])
    files[place] = files[pick(rng, files)]


MUTATIONS: list[Mutation] = [
    flip_bits, flip_bits, truncate, insert, cut, repeat, shuffle_lines, edit_json, edit_json,
    edit_json, edit_tensors, swap_files, delete_file, rename_file, add_file,
]  # fmt: skip


@pytest.fixture(scope="module")
def small() -> World:
    """As little of everything as still has everything."""
    corpora = {"acme": (4,), "alpha": (4, 4), "gamma": (4,)}
    return World(corpora=corpora, steps=3, longest=6)


def test_no_outsiders_mutation_is_accepted(small: World, tmp_path: Path) -> None:
    folder = small.deploy(tmp_path / "model")
    valid = read_all(folder)
    verify(folder, trust_root=small.root, at=AT)
    rng = random.Random(20261110)
    steps: dict[str, int] = {}
    for number in range(OUTSIDE):
        mutated = dict(valid)
        while mutated == valid:
            mutation = rng.choice(MUTATIONS)
            mutation(rng, mutated)
        apply(folder, valid, mutated)
        try:
            verify(folder, trust_root=small.root, at=AT)
        except GovrayError as error:
            where = error.what.split(":")[0] if isinstance(error, VerificationFailed) else "-"
            steps[where] = steps.get(where, 0) + 1
        else:
            raise AssertionError(f"mutation {number} ({mutation.__name__}) was accepted")
        apply(folder, mutated, valid)
        for name in mutated.keys() - valid.keys():
            shutil.rmtree(folder / "adapters" / "x", ignore_errors=True)
            (folder / name).unlink(missing_ok=True)
    verify(folder, trust_root=small.root, at=AT)
    # The mutations reached all the steps that an outsider can reach.
    assert {"step 1 (trust root)", "step 2 (signature)", "step 4 (files)", "-"} <= steps.keys()


STATED = {"run", "environment", "pretrained", "groups"}
"""Fields with content that nothing in the folder can contradict: ``groups`` says which tensors a
layer group means, and a file's header knows only that they are there."""


def signed_by_the_operator(world: World, folder: Path, predicate: dict[str, Any]) -> None:
    path = folder / model_folder.ATTESTATION
    statement = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))
    statement["predicate"] = predicate
    path.write_bytes(sign_payload(canonical_json.encode(statement), [world.keys.operator]))


def test_an_insider_can_lie_only_where_nothing_can_be_recomputed(
    small: World, tmp_path: Path
) -> None:
    folder = small.deploy(tmp_path / "model")
    data = (folder / model_folder.ATTESTATION).read_bytes()
    true = unchecked(Attestation, data, small.operator).document.to_json()
    rng = random.Random(7)
    accepted = 0
    for _ in range(INSIDE):
        lie = json.loads(json.dumps(true))
        while lie == true:
            # Fields are drawn evenly, so that the long ones do not take all the attention.
            field = rng.choice(sorted(true))
            wrapped = {field: lie[field]}
            change_json(rng, wrapped)
            lie.pop(field)
            lie |= wrapped
        signed_by_the_operator(small, folder, lie)
        try:
            model = small.verify(folder)
        except GovrayError:
            continue
        accepted += 1
        told = model.attestation.to_json()
        differing = {name for name in true.keys() | told.keys() if true.get(name) != told.get(name)}
        # A word about a pretrained start shows in what is derived from it.
        if "pretrained" in differing:
            differing.discard("taint")
        assert differing <= STATED, differing
    # The control: lies that no file can contradict do pass, so the loop is not blind.
    assert accepted > 0
