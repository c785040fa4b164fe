"""The pages' scripts in node: what they say of steps, and that they read as Python does."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from govray.errors import GovrayError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json, merkle
from tests.support.node import asked, in_node, text, verified
from tests.support.uncovered import FOLDERS, HARMLESS, LOADABLE
from tests.support.world import World, write

HERE = (1, 2, 3, 4, 5, 6, 8, 13, 17)
"""Steps of which the page checks something."""


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.deploy(tmp_path_factory.mktemp("verified") / "model")


def states(found: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    return {number: step["state"] for number, step in found.items()}


def test_without_files_the_signature_and_the_statement_are_checked_and_no_more(
    world: World, folder: Path
) -> None:
    alone, without = verified(
        [
            asked(folder, world.root, only=[model_folder.DELEGATIONS]),
            asked(folder, world.root, only=[]),
        ]
    )
    assert [n for n, state in states(alone).items() if state == "checked"] == [1, 2, 3, 17]
    # The control: delegations that were not given are missed in the step that they belong to.
    assert without[1]["needs"] == [model_folder.DELEGATIONS]
    assert (without[1]["state"], without[2]["state"]) == ("partly", "checked")
    assert {without[n]["state"] for n in (5, 6, 13)} == {"waiting"}


def test_what_outsiders_signed_is_for_their_steps(world: World, tmp_path: Path) -> None:
    """`govray verify` refuses all three."""
    copy = world.deploy(tmp_path / "model")
    for name in (model_folder.timestamp_file("tsa"), model_folder.replay_file("x")):
        write(copy / name, b"forged")
    write(copy / model_folder.WITNESSED, b"forged")
    [found] = verified([asked(copy, world.root)])
    assert {n: states(found)[n] for n in (4, 14, 15, 16)} == {
        4: "checked",
        **dict.fromkeys((14, 15, 16), "not-checked"),
    }
    write(copy / "governance" / "timestamp-tsa.tsr.py", b"")
    [found] = verified([asked(copy, world.root)])
    assert states(found)[4] == "failed"


def test_time_counts(world: World, folder: Path) -> None:
    before, late = verified(
        [
            asked(folder, world.root, at=f"{time}Z")
            for time in ("2026-11-10T08:59:59", "2031-01-01T00:00:00")
        ]
    )
    assert before[3]["error"] == "the run finished after now"
    assert "expired" in late[1]["error"]
    assert {step["state"] for n, step in late.items() if n > 1 and n in HERE} == {"waiting"}


def test_hashes_are_those_of_python() -> None:
    draw = random.Random(5)
    texts = [draw.randbytes(n) for n in (0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 70_000)]
    found = in_node(
        """const {digestOf, fromBase64} = await import("./bytes.js");
        return given.map((text) => digestOf(fromBase64(text)));""",
        [text(each) for each in texts],
    )
    assert found == [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in texts]


def test_names_are_judged_as_python_judges_them() -> None:
    names = [
        *LOADABLE,
        *HARMLESS,
        "Adapters",
        "adapter\u017f/README.md",
        "GOVERNANCE/x",
        "\u212a.md",
    ]
    names += [
        "governance/timestamp-a.tsr",
        "governance/replay-.dsse.json",
        "governance/ledger_witnessed",
    ]
    names = [folder + name for folder in FOLDERS for name in names]
    found = in_node(
        """const {Names} = await import("./names.js");
        const rules = new Names(known.names);
        return given.map((name) => ["inert", "covered", "reserved", "byOutsiders"]
          .map((rule) => rules[rule](name)));""",
        names,
    )
    rules = (model_folder.inert, model_folder.covered, model_folder.reserved)
    judged = [[rule(name) for rule in (*rules, model_folder.by_outsiders)] for name in names]
    assert dict(zip(names, found, strict=True)) == dict(zip(names, judged, strict=True))


REFUSED = (
    b'{"a":1,"a":1}',
    b'{"b":1,"a":1}',
    b'{"a": 1}',
    b"[1.0]",
    b"[-0]",
    b"[9007199254740992]",
    b"[1e3]",
    b'["\\ud800"]',
    b'["\\u0041"]',
    b"\xef\xbb\xbf[]",
    b'["\xff"]',
    b"[1]\n",
    b"[" * 70 + b"]" * 70,
    b"",
)
ACCEPTED = (b'{"__proto__":1,"a":[1,0.5,1e+21,true,"\xc3\xa9"]}', b'{"10":1,"9":2}', b'"\\u0001"')


def test_json_is_read_as_strictly_as_python_reads_it() -> None:
    found = in_node(
        """const {parseCanonical} = await import("./canonical.js");
        const {fromBase64} = await import("./bytes.js");
        return given.map((text) => {
          try { parseCanonical(fromBase64(text)); return true; } catch { return false; }
        });""",
        [text(each) for each in (*REFUSED, *ACCEPTED)],
    )
    assert found == [_accepts(each) for each in (*REFUSED, *ACCEPTED)]
    assert found == [False] * len(REFUSED) + [True] * len(ACCEPTED)


def _accepts(text: bytes) -> bool:
    try:
        canonical_json.parse_canonical(text)
    except GovrayError:
        return False
    return True


INCLUDED = """
const {proofFromTiles, verifyInclusion, tilePath} = await import("./merkle.js");
const {fromBase64} = await import("./bytes.js");
const found = [];
for (const {tiles, size, root, leaf, index} of given) {
  const read = [];
  try {
    const proof = await proofFromTiles(index, size, async (level, number, width) => {
      const path = tilePath(level, number, width);
      read.push(path);
      return fromBase64(tiles[path]);
    });
    verifyInclusion(fromBase64(leaf), index, size, proof, fromBase64(root));
    found.push(read.length);
  } catch (error) { found.push(error.message); }
}
return found;
"""


def _tiles(leaves: list[bytes]) -> dict[str, str]:
    """The tiles of a small log (C2SP tlog-tiles), written here from the definition."""
    level, hashes, found = 0, [merkle.leaf_hash(leaf) for leaf in leaves], {}
    while hashes:
        for n in range(0, len(hashes), 256):
            part = hashes[n : n + 256]
            ending = "" if len(part) == 256 else f".p/{len(part)}"
            number = n // 256
            folders = "" if number < 1000 else f"x{number // 1000:03}/"
            path = f"tile/{level}/{folders}{number % 1000:03}{ending}"
            found[path] = text(b"".join(part))
        whole = [hashes[n : n + 256] for n in range(0, len(hashes) - 255, 256)]
        hashes = [_fold(part) for part in whole]
        level += 1
    return found


def _fold(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        pairs = zip(hashes[::2], hashes[1::2], strict=True)
        hashes = [merkle.node_hash(left, right) for left, right in pairs]
    return hashes[0]


def test_inclusion_follows_from_tiles() -> None:
    right, wrong = [], []
    for size in (1, 2, 255, 256, 257, 700, 66_000):
        leaves = [b"%d" % n for n in range(size)]
        tree = {"tiles": _tiles(leaves), "size": size, "root": text(merkle.root(leaves))}
        for index in {0, size // 2, size - 1}:
            leaf = {"leaf": text(merkle.leaf_hash(leaves[index])), "index": index}
            right.append(tree | leaf)
            wrong.append(tree | leaf | {"leaf": text(b"\x01" * 32)})
            if size > 1:  # the right leaf in another place
                wrong.append(tree | leaf | {"index": (index + 1) % size})
    found = in_node(INCLUDED, right + wrong)
    # Tens of thousands of entries, a handful of tiles.
    assert all(isinstance(each, int) and each <= 9 for each in found[: len(right)]), found
    assert all(isinstance(each, str) for each in found[len(right) :]), found
