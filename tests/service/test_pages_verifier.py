"""The verifier in the browser, in Chromium, against real signatures: what it ticks, it checked.

The modules are the package's own files; no service runs. Each step that is ticked has a negative
control beside it: the same folder with one byte changed, which must fail that very step.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from govray.errors import GovrayError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.trust.witness_policy import LedgerWitness, WitnessPolicy
from govray.governance.verify.steps import STEPS
from govray.governance.verify.verifier import verify
from govray.service.pages.document_kinds import kinds
from tests.support.chat_world import ChatWorld
from tests.support.chromium import browser
from tests.support.page_modules import modules
from tests.support.several_routes import phased, rerouted
from tests.support.tree import ROOT
from tests.support.world import FINISHED, World

pytestmark = pytest.mark.slow

AT = "2026-11-20T00:00:00Z"

CHECK = """async ({root, attestation, files, names, at}) => {
  const {check, state} = await import("/static/verify.js");
  const {fromBase64, digestOf} = await import("/static/bytes.js");
  const {kinds, disclaimer, steps} = await (await fetch("/static/kinds.json")).json();
  const given = new Map(Object.entries(files).map(([name, text]) => {
    const bytes = fromBase64(text);
    return [name, {digest: digestOf(bytes), bytes: async (a, b) => bytes.slice(a ?? 0, b)}];
  }));
  const run = await check({
    root: root && fromBase64(root), attestation: fromBase64(attestation), files: given,
    names, kinds, disclaimer, steps, at});
  return run.steps.map((step) => ({...step, state: state(step)}));
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield modules(opened)


@pytest.fixture(scope="module")
def world() -> World:
    return World(secrets={"gamma": bytes(range(32))})


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = world.deploy(tmp_path_factory.mktemp("model"))
    verify(path, trust_root=world.root)  # the reference: it passes there
    return {name: (path / name).read_bytes() for name in model_folder.Bundle(path).names()}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def checked(
    page: Page,
    root: bytes | None,
    files: Mapping[str, bytes],
    *,
    at: str = AT,
    whole: bool = True,
    attestation: bytes | None = None,
) -> dict[int, dict[str, Any]]:
    found = page.evaluate(
        CHECK,
        {
            "root": root and _text(root),
            "attestation": _text(attestation or files[model_folder.ATTESTATION]),
            "files": {name: _text(data) for name, data in files.items()},
            "names": sorted(files) if whole else None,
            "at": at,
        },
    )
    return {step["number"]: step for step in found}


def states(found: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    return {number: step["state"] for number, step in found.items()}


def flipped(data: bytes, at: int = -40) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("make", [phased, rerouted])
def test_a_corpus_whose_rows_took_several_routes_is_counted_by_each(
    page: Page, tmp_path: Path, make: Callable[[Path], tuple[World, Path]]
) -> None:
    world, path = make(tmp_path)
    files = {name: (path / name).read_bytes() for name in model_folder.Bundle(path).names()}
    found = checked(page, world.root, files)
    assert [step for step in found.values() if step.get("error")] == []
    assert found[11]["state"] == "partly"


def test_a_class_has_what_its_credential_describes(page: Page, tmp_path: Path) -> None:
    world = World()
    described = CorpusDescription.from_json(
        {"source": "crawled", "optOut": "honoured", "languages": ["en", "fr"]}
    )
    path = world.deploy(
        tmp_path, credentials={"alpha": world.issue("alpha", description=described)}
    )
    verify(path, trust_root=world.root)
    files = {name: (path / name).read_bytes() for name in model_folder.Bundle(path).names()}
    found = checked(page, world.root, files)
    assert [step for step in found.values() if step.get("error")] == []


def test_a_whole_folder_is_ticked_as_far_as_the_browser_looked(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    found = checked(page, world.root, folder)
    assert list(found) == [step.number for step in STEPS]
    assert states(found) == {
        **dict.fromkeys((1, 2, 3, 4, 12), "checked"),
        **dict.fromkeys((5, 6, 7, 8, 10, 11), "partly"),
        **dict.fromkeys((9, 13, 14, 15, 16), "not-checked"),
    }
    words = {"checked": "checked", "partly": "partly checked", "not-checked": "not checked here"}
    pages = (ROOT / "docs" / "pages.md").read_text()
    for step, state in zip(STEPS, states(found).values(), strict=True):
        assert f"| {step.number}. {step.name} | {words[state]} |" in pages
    # What is ticked in full left nothing out, and what is not says what.
    for step in found.values():
        assert bool(step["not"] or step["needs"]) == (step["state"] != "checked"), step


def test_what_outsiders_signed_is_not_ticked_whatever_it_is(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    """Under a root that names witnesses; `govray verify` refuses both files."""
    witness = LedgerWitness(name="w1", key=LocalSigner.generate().public_key)
    root = world.sign_root(
        version=2, witness_policy=WitnessPolicy(threshold=1, witnesses=(witness,))
    )
    signed = {model_folder.timestamp_file("tsa"): b"forged", model_folder.WITNESSED: b"forged"}
    found = checked(page, root, folder | signed)
    assert {n: states(found)[n] for n in (4, 15, 16)} == {
        4: "checked",
        15: "not-checked",
        16: "not-checked",
    }
    for name in ("governance/timestamp-tsa.tsr.py", "governance/ledger.witnessed.json"):
        assert states(checked(page, root, folder | {name: b""}))[4] == "failed"


def test_without_a_trust_root_nothing_is_ticked(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    found = checked(page, None, folder)
    assert set(states(found).values()) == {"waiting", "not-checked"}
    assert not any(step["did"] for step in found.values())


def test_without_files_the_signature_and_the_statement_are_checked_and_no_more(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    delegations = {model_folder.DELEGATIONS: folder[model_folder.DELEGATIONS]}
    attestation = folder[model_folder.ATTESTATION]
    found = checked(page, world.root, delegations, whole=False, attestation=attestation)
    assert [n for n, state in states(found).items() if state == "checked"] == [1, 2, 3, 12]
    # The control: delegations that were not given are missed in the step that they belong to.
    found = checked(page, world.root, {}, whole=False, attestation=attestation)
    assert [n for n, state in states(found).items() if state == "checked"] == [2, 3, 12]
    assert found[1]["needs"] == [model_folder.DELEGATIONS]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (model_folder.DELEGATIONS, 1),
        (model_folder.ATTESTATION, 2),
        (model_folder.WEIGHTS, 4),
        (model_folder.POLICY, 4),
        (model_folder.MANIFEST, 4),
        (model_folder.CREDENTIALS, 4),
        (model_folder.LEDGER, 4),
        (model_folder.CHECKPOINT, 4),
    ],
)
def test_one_flipped_byte_fails(
    page: Page, world: World, folder: dict[str, bytes], name: str, step: int
) -> None:
    found = checked(page, world.root, folder | {name: flipped(folder[name])})
    assert states(found)[step] == "failed"
    later = [state for number, state in states(found).items() if number > step]
    assert set(later) <= {"not-checked"}  # and nothing behind it is ticked


def test_a_signature_over_other_bytes_and_another_root_fail(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    envelope = Envelope.parse(folder[model_folder.ATTESTATION])
    altered = Envelope(
        envelope.payload_type,
        envelope.payload.replace(b'"worldSize":2', b'"worldSize":3').replace(b"world", b"wormd", 1),
        envelope.signatures,
    )
    found = checked(page, world.root, folder, attestation=altered.encode())
    assert states(found)[2] == "failed"
    found = checked(page, World().root, folder)  # same names, others' keys
    assert "failed" in (states(found)[1], states(found)[2])
    assert not any(found[n]["did"] for n in range(3, 15))


def test_time_counts(page: Page, world: World, folder: dict[str, bytes]) -> None:
    assert states(checked(page, world.root, folder, at=FINISHED))[3] == "checked"
    before = checked(page, world.root, folder, at="2026-11-10T08:59:59Z")
    assert before[3]["error"] == "the run finished after now"
    after = checked(page, world.root, folder, at="2031-01-01T00:00:00Z")
    assert "expired" in after[1]["error"]


def _insider(world: World, folder: dict[str, bytes], **changes: Any) -> bytes:
    """The attestation changed and signed again by the operator: only its content is wrong."""
    envelope = Envelope.parse(folder[model_folder.ATTESTATION])
    statement = canonical_json.parse(envelope.payload)
    assert isinstance(statement, dict)
    predicate = statement["predicate"]
    assert isinstance(predicate, dict)
    predicate.update(changes)
    return sign_payload(canonical_json.encode(statement), [world.keys.operator])


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"surprise": 1}, 3),
        ({"disclaimer": "All is well."}, 12),
        ({"assuranceLevel": "witnessed"}, 12),
        ({"manifest": "sha256:" + "0" * 64}, 7),
        ({"taint": []}, 11),
        ({"coverage": []}, 11),
        ({"buffers": ["more"]}, 8),
    ],
)
def test_what_an_insider_states_and_signs_fails_where_it_is_recomputed(
    page: Page, world: World, folder: dict[str, bytes], changes: dict[str, Any], step: int
) -> None:
    attestation = _insider(world, folder, **changes)
    found = checked(page, world.root, folder | {model_folder.ATTESTATION: attestation})
    # A change further back may hide behind an earlier step; here each is the first.
    assert [n for n, s in states(found).items() if s == "failed"] == [step], found[step]
    unchanged = folder | {model_folder.ATTESTATION: _insider(world, folder)}
    assert states(checked(page, world.root, unchanged))[step] != "failed"


def test_a_folder_of_another_attestation_or_with_more_or_less_in_it_fails(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    other = _insider(world, folder, assuranceLevel="witnessed")
    found = checked(page, world.root, folder, attestation=other)
    assert found[4]["error"] == "these files are of another attestation"
    found = checked(page, world.root, folder | {"more.safetensors": b""})
    assert "not covered" in found[4]["error"]
    found = checked(page, world.root, folder | {"README.md": b""})
    assert found[4]["state"] == "checked"
    assert any("README.md" in each for each in found[4]["did"])
    less = {name: data for name, data in folder.items() if name != model_folder.WEIGHTS}
    assert "missing" in checked(page, world.root, less)[4]["error"]


def test_hashes_are_those_of_python(page: Page) -> None:
    draw = random.Random(5)
    texts = [draw.randbytes(n) for n in (0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 70_000)]
    found = page.evaluate(
        """async (texts) => {
          const {digestOf, fromBase64} = await import("/static/bytes.js");
          return texts.map((text) => digestOf(fromBase64(text)));
        }""",
        [_text(each) for each in texts],
    )
    assert found == [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in texts]


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


def test_json_is_read_as_strictly_as_python_reads_it(page: Page) -> None:
    found = page.evaluate(
        """async (texts) => {
          const {parseCanonical} = await import("/static/canonical.js");
          const {fromBase64} = await import("/static/bytes.js");
          return texts.map((text) => {
            try { parseCanonical(fromBase64(text)); return true; } catch { return false; }
          });
        }""",
        [_text(each) for each in (*REFUSED, *ACCEPTED)],
    )
    assert found == [_accepts(each) for each in (*REFUSED, *ACCEPTED)]
    assert found == [False] * len(REFUSED) + [True] * len(ACCEPTED)


def _accepts(text: bytes) -> bool:
    try:
        canonical_json.parse_canonical(text)
    except GovrayError:
        return False
    return True


INCLUDED = """async ({leaf, index, size, root}) => {
  const {proofFromTiles, verifyInclusion, tilePath} = await import("/static/merkle.js");
  const {fromBase64} = await import("/static/bytes.js");
  const read = [];
  try {
    const proof = await proofFromTiles(index, size, async (level, number, width) => {
      const path = tilePath(level, number, width);
      read.push(path);
      return fromBase64(window.tiles[path]);
    });
    verifyInclusion(fromBase64(leaf), index, size, proof, fromBase64(root));
    return read.length;
  } catch (error) { return error.message; }
}"""


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
            found[path] = _text(b"".join(part))
        whole = [hashes[n : n + 256] for n in range(0, len(hashes) - 255, 256)]
        hashes = [_fold(part) for part in whole]
        level += 1
    return found


def _fold(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        pairs = zip(hashes[::2], hashes[1::2], strict=True)
        hashes = [merkle.node_hash(left, right) for left, right in pairs]
    return hashes[0]


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 700, 66_000])
def test_inclusion_follows_from_tiles(page: Page, size: int) -> None:
    leaves = [b"%d" % n for n in range(size)]
    page.evaluate("(tiles) => { window.tiles = tiles }", _tiles(leaves))
    root = _text(merkle.root(leaves))

    def ask(**asked: Any) -> object:
        return page.evaluate(INCLUDED, {"size": size, "root": root} | asked)

    for index in {0, size // 2, size - 1}:
        leaf = _text(merkle.leaf_hash(leaves[index]))
        found = ask(index=index, leaf=leaf)
        assert isinstance(found, int), found
        assert found <= 9  # hundreds of thousands of entries, a handful of tiles
        assert isinstance(ask(index=index, leaf=_text(b"\x01" * 32)), str)
        if size > 1:  # the right leaf in another place
            assert isinstance(ask(index=(index + 1) % size, leaf=leaf), str)


def test_the_schemas_use_no_rule_that_the_browser_would_pass_over(page: Page) -> None:
    made = json.loads(kinds())
    found = page.evaluate(
        """async (kinds) => {
          const {validate} = await import("/static/schema.js");
          const unknown = [];
          for (const {schema} of Object.values(kinds)) {
            for (const part of [schema, ...Object.values(schema.$defs ?? {})]) {
              try { validate({}, part, "", schema); } catch (error) { unknown.push(error.message); }
            }
          }
          return unknown.filter((each) => each.startsWith("schema:"));
        }""",
        made["kinds"],
    )
    assert found == []


def test_records_are_not_said_to_be_checked(
    page: Page, world: World, folder: dict[str, bytes]
) -> None:
    step = checked(page, world.root, folder)[7]
    assert step["state"] == "partly"
    assert "counts are the signer's" in " ".join(step["not"])
    assert "Merkle roots" not in " ".join(step["did"])


def test_loss_targets_of_conversations_are_not_said_to_be_checked(
    page: Page, tmp_path: Path
) -> None:
    chat = ChatWorld()
    path = chat.model(tmp_path / "model")
    files = {name: (path / name).read_bytes() for name in model_folder.Bundle(path).names()}
    steps = checked(page, chat.root, files)
    assert {step["state"] for step in steps.values()}.isdisjoint({"failed", "unsupported"})
    assert (steps[7]["state"], steps[10]["state"]) == ("partly", "partly")
    assert "counts" in " ".join(steps[10]["not"])
    assert "counts" not in " ".join(steps[10]["did"])


def test_a_manifest_of_other_counts_fails(page: Page, tmp_path: Path) -> None:
    other = World(steps=2)

    def fewer(records):  # type: ignore[no-untyped-def]
        first, *rest = records["beta"]
        return records | {"beta": [first[:-1], *rest]}

    path = other.deploy(tmp_path / "model", records=fewer)
    files = {name: (path / name).read_bytes() for name in model_folder.Bundle(path).names()}
    assert checked(page, other.root, files)[7]["state"] == "failed"
