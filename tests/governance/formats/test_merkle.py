"""RFC 9162 trees: golden vectors of Certificate Transparency, and every proof up to 64 leaves."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Refused
from govray.governance.formats import merkle
from tests.support.merkle_proofs import consistency_proof, inclusion_proof
from tests.support.table import each_row

# The eight inputs that Certificate Transparency implementations share, the roots of
# their prefixes, and proofs over them.
INPUTS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = [
    (0, 1, []),
    (
        0,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        1,
        5,
        [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]
CONSISTENCY = [
    (1, 1, []),
    (
        1,
        8,
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        6,
        8,
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (
        2,
        5,
        [
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]


def hashes(texts: list[str]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(text) for text in texts)


@each_row("size", range(9))
def test_golden_roots(size: int) -> None:
    assert merkle.root(INPUTS[:size]).hex() == ROOTS[size]


@given(st.lists(st.binary(max_size=4), max_size=40))
def test_the_running_root_is_that_of_the_leaves_so_far(leaves: list[bytes]) -> None:
    running = merkle.RunningRoot()
    for count in range(len(leaves) + 1):
        assert (running.count, running.root()) == (count, merkle.root(leaves[:count]))
        if count < len(leaves):
            running.add(leaves[count])


@each_row(("index", "size", "proof"), INCLUSION)
def test_golden_inclusion_proofs(index: int, size: int, proof: list[str]) -> None:
    assert inclusion_proof(INPUTS[:size], index) == hashes(proof)
    merkle.verify_inclusion(
        merkle.leaf_hash(INPUTS[index]), index, size, hashes(proof), bytes.fromhex(ROOTS[size])
    )


@each_row(("first", "second", "proof"), CONSISTENCY)
def test_golden_consistency_proofs(first: int, second: int, proof: list[str]) -> None:
    assert consistency_proof(INPUTS[:second], first) == hashes(proof)
    merkle.verify_consistency(
        first, bytes.fromhex(ROOTS[first]), second, bytes.fromhex(ROOTS[second]), hashes(proof)
    )


def defined_root(leaves: list[bytes]) -> bytes:
    """MTH as the RFC defines it, top down."""
    if len(leaves) < 2:
        return hashlib.sha256(b"".join(b"\x00" + leaf for leaf in leaves)).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    left, right = defined_root(leaves[:split]), defined_root(leaves[split:])
    return hashlib.sha256(b"\x01" + left + right).digest()


LEAVES = [bytes([number]) for number in range(64)]
PREFIX_ROOTS = [merkle.root(LEAVES[:size]) for size in range(65)]
sizes = st.integers(1, 64)


@given(st.lists(st.binary(max_size=4), max_size=70))
def test_the_root_is_the_defined_one(leaves: list[bytes]) -> None:
    assert merkle.root(leaves) == defined_root(leaves)


@each_row("size", [1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 64])
def test_every_proof_verifies(size: int) -> None:
    leaves, root = LEAVES[:size], PREFIX_ROOTS[size]
    for index in range(size):
        proof = inclusion_proof(leaves, index)
        merkle.verify_inclusion(merkle.leaf_hash(leaves[index]), index, size, proof, root)
        proof = consistency_proof(leaves, index + 1)
        merkle.verify_consistency(index + 1, PREFIX_ROOTS[index + 1], size, root, proof)


@st.composite
def changed_proofs(draw: st.DrawFn, proof: tuple[bytes, ...]) -> list[bytes]:
    """The proof with one hash changed, added, dropped, or two swapped."""
    changed = list(proof)
    kinds = ["add"] + ["change", "drop"] * bool(proof) + ["swap"] * (len(proof) > 1)
    match draw(st.sampled_from(kinds)):
        case "add":
            changed.insert(draw(st.integers(0, len(proof))), draw(st.sampled_from(PREFIX_ROOTS)))
        case "drop":
            del changed[draw(st.integers(0, len(proof) - 1))]
        case "change":
            position = draw(st.integers(0, len(proof) - 1))
            bits = bytearray(changed[position])
            bits[draw(st.integers(0, 31))] ^= draw(st.integers(1, 255))
            changed[position] = bytes(bits)
        case "swap":
            position = draw(st.integers(0, len(proof) - 2))
            changed[position : position + 2] = reversed(changed[position : position + 2])
    return changed


@given(st.data())
def test_a_changed_inclusion_proof_is_refused(data: st.DataObject) -> None:
    size = data.draw(sizes)
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(LEAVES[:size], index)
    leaf = merkle.leaf_hash(LEAVES[index])
    with pytest.raises(Refused):
        merkle.verify_inclusion(
            leaf, index, size, data.draw(changed_proofs(proof)), PREFIX_ROOTS[size]
        )


@given(st.data())
def test_a_changed_consistency_proof_is_refused(data: st.DataObject) -> None:
    second = data.draw(sizes)
    first = data.draw(st.integers(1, second))
    proof = consistency_proof(LEAVES[:second], first)
    with pytest.raises(Refused):
        merkle.verify_consistency(
            first,
            PREFIX_ROOTS[first],
            second,
            PREFIX_ROOTS[second],
            data.draw(changed_proofs(proof)),
        )


@given(st.data())
def test_a_proof_holds_for_its_own_leaf_and_index_alone(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 64))
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size - 1).filter(lambda i: i != index))
    proof = inclusion_proof(LEAVES[:size], index)
    leaf, root = merkle.leaf_hash(LEAVES[index]), PREFIX_ROOTS[size]
    with pytest.raises(Refused):
        merkle.verify_inclusion(leaf, other, size, proof, root)
    with pytest.raises(Refused):
        merkle.verify_inclusion(merkle.leaf_hash(LEAVES[other]), index, size, proof, root)
    with pytest.raises(Refused):
        merkle.verify_inclusion(leaf, index, size, proof, PREFIX_ROOTS[size - 1])


@given(st.data())
def test_a_rewritten_history_is_refused(data: st.DataObject) -> None:
    """The later tree changed a leaf of the earlier one: no honest-looking proof helps."""
    second = data.draw(st.integers(2, 64))
    first = data.draw(st.integers(1, second))
    leaves = LEAVES[:second]
    leaves[data.draw(st.integers(0, first - 1))] = b"rewritten"
    with pytest.raises(Refused):
        merkle.verify_consistency(
            first,
            PREFIX_ROOTS[first],
            second,
            merkle.root(leaves),
            consistency_proof(leaves, first),
        )


def test_a_proof_has_exactly_the_length_that_its_sizes_call_for() -> None:
    """Each of these leads to the right root, by a way that the sizes do not allow."""
    leaf, path = merkle.leaf_hash(LEAVES[0]), inclusion_proof(LEAVES[:8], 0)
    node = merkle.node_hash(leaf, path[0])
    with pytest.raises(Refused, match="too few"):  # an inner node passed off as a leaf
        merkle.verify_inclusion(node, 0, 8, path[1:], PREFIX_ROOTS[8])
    with pytest.raises(Refused, match="too many"):  # a larger tree passed off as a smaller one
        merkle.verify_inclusion(leaf, 0, 4, path, PREFIX_ROOTS[8])
    with pytest.raises(Refused, match="too few"):  # growth without a trace
        merkle.verify_consistency(2, PREFIX_ROOTS[2], 8, PREFIX_ROOTS[2], [])
    with pytest.raises(Refused, match="too few"):
        merkle.verify_consistency(3, PREFIX_ROOTS[3], 8, PREFIX_ROOTS[3], [])
    with pytest.raises(Refused, match="too many"):
        merkle.verify_consistency(
            2, PREFIX_ROOTS[2], 4, PREFIX_ROOTS[8], consistency_proof(LEAVES[:8], 2)
        )
    with pytest.raises(Refused, match="too many"):
        merkle.verify_consistency(4, PREFIX_ROOTS[4], 4, PREFIX_ROOTS[4], [PREFIX_ROOTS[1]])


def test_control_without_prefixes_a_node_passes_for_a_leaf() -> None:
    """Why leaves and nodes are hashed differently: without it, two leaf lists share a root."""

    def bare(leaves: list[bytes]) -> bytes:
        level = [hashlib.sha256(leaf).digest() for leaf in leaves]
        while len(level) > 1:
            level = [
                hashlib.sha256(a + b).digest() for a, b in zip(level[::2], level[1::2], strict=True)
            ]
        return level[0]

    below = hashlib.sha256(b"a").digest() + hashlib.sha256(b"b").digest()
    assert bare([b"a", b"b"]) == bare([below])
    assert merkle.root([b"a", b"b"]) != merkle.root([below])
