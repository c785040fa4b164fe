"""Random mutations of a model folder's files."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from tests.support.world import write

# Strings and numbers that break careless readers.
AWKWARD: list[Any] = [
    None, True, False, 0, 1, -1, 0.5, 2**53 - 1, "", "0", "1", "-1", "x", "../x", "a/b", "\u0000",
    "\U0001f600", "sha256:" + "0" * 64, "9" * 19, "2026-11-10T08:00:00Z", [], [[]], {}, {"": 0},
]  # fmt: skip


Files = dict[str, bytes]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in items:
        yield value, key
        if isinstance(member, dict | list):
            yield from places(member)


def change_json(rng: random.Random, value: Any) -> None:
    """One edit somewhere in a value, mostly a small one."""
    container, key = rng.choice(list(places(value)))
    old = container[key]
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1:
            container[key] = rng.choice(AWKWARD)
        case 2 if isinstance(container, dict):
            container["extra"] = old
        case 2:
            container.insert(key, old)
        case 3 if isinstance(old, list) and len(old) > 1:
            rng.shuffle(old)
        case 4 if isinstance(old, str) and old:
            at = rng.randrange(len(old))
            container[key] = old[:at] + rng.choice("0a9.:-") + old[at + 1 :]
        case _ if isinstance(old, int) and not isinstance(old, bool):
            container[key] = old + rng.choice([-1, 1, 2**20])
        case _:
            other, name = rng.choice(list(places(value)))
            container[key] = json.loads(json.dumps(other[name]))


# Mutations of a folder's files. Each takes what it is given besides, and needs none of it.


def pick(rng: random.Random, files: Files) -> str:
    return rng.choice(sorted(name for name in files if files[name]))


def flip_bits(rng: random.Random, files: Files, *others: Files) -> None:
    name = pick(rng, files)
    data = bytearray(files[name])
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    files[name] = bytes(data)


def truncate(rng: random.Random, files: Files, *others: Files) -> None:
    name = pick(rng, files)
    files[name] = files[name][: rng.randrange(len(files[name]))]


def insert(rng: random.Random, files: Files, *others: Files) -> None:
    name = pick(rng, files)
    at = rng.choice([0, len(files[name]), rng.randrange(len(files[name]) + 1)])
    extra = rng.choice([rng.randbytes(rng.randint(1, 9)), b"\n", b" ", b"{", b"[" * 2000, b"\xff"])
    files[name] = files[name][:at] + extra + files[name][at:]


def swap_files(rng: random.Random, files: Files, *others: Files) -> None:
    one, two = pick(rng, files), pick(rng, files)
    files[one], files[two] = files[two], files[one]


def delete_file(rng: random.Random, files: Files, *others: Files) -> None:
    del files[pick(rng, files)]


def edit_tensors(rng: random.Random, files: Files, *others: Files) -> None:
    name = rng.choice([each for each in sorted(files) if each.endswith(".safetensors")])
    size = int.from_bytes(files[name][:8], "little")
    header = json.loads(files[name][8 : 8 + size])
    change_json(rng, header)
    text = json.dumps(header).encode()
    files[name] = len(text).to_bytes(8, "little") + text + files[name][8 + size :]


def edit_envelope(rng: random.Random, data: bytes) -> bytes:
    """Edit an envelope, or the statement inside it, or another JSON value."""
    value = json.loads(data)
    if "payload" in value and rng.random() < 0.7:
        statement = json.loads(base64.b64decode(value["payload"]))
        change_json(rng, statement)
        value["payload"] = base64.b64encode(canonical_json.encode(statement)).decode()
    else:
        change_json(rng, value)
    return canonical_json.encode(value)


def read_all(folder: Path) -> Files:
    return {name: (folder / name).read_bytes() for name in model_folder.Bundle(folder).names()}


def apply(folder: Path, before: Files, after: Files) -> None:
    """Make the folder hold ``after``, given that it holds ``before``."""
    for name in before.keys() - after.keys():
        (folder / name).unlink()
    for name, data in after.items():
        if before.get(name) != data:
            write(folder / name, data)
