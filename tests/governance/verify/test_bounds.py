"""Small files that state large numbers: each verification ends soon, and in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import CouldNotCheck, Malformed
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation, LedgerHead
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.record.batch_plan import BatchPlan, StreamPlan
from govray.governance.record.ledger import CorpusUse, Leaf, Ledger
from govray.governance.verify.verifier import verify
from tests.support.world import AT, RUN, World, sign_ledger, unchecked, write

ROWS = 1 << 40


def with_rows(world: World, folder: Path, rows: int) -> None:
    """The operator signs a plan whose only step reads ``rows`` rows of every stream."""
    data = (folder / model_folder.ATTESTATION).read_bytes()
    stated = unchecked(Attestation, data, world.operator).document
    streams = tuple(
        StreamPlan(**dict(s) | {"quota": rows, "epochs": -(-rows // s.n)})
        for s in stated.plan.streams
    )
    plan = BatchPlan(**dict(stated.plan) | {"streams": streams, "max_steps": 1})
    leaf = Leaf(
        step=0,
        world_size=1,
        policy=stated.policy.digest,
        plan=plan.digest,
        streams={s.id: (0, rows) for s in streams},
        corpora={c: CorpusUse(rows=rows, targets=rows) for c in plan.corpora},
    )
    made = Ledger(RUN, [leaf])
    files: dict[str, Any] = dict(stated.files)
    for name, content in (
        (model_folder.LEDGER, made.data),
        (model_folder.CHECKPOINT, sign_ledger(made, world.keys.operator)),
    ):
        write(folder / name, content)
        files[name] = canonical_json.sha256(content)
    head = LedgerHead(origin=made.origin, size=1, root="sha256:" + made.root.hex())
    changed = {"plan": plan, "files": files, "ledger": head}
    world.attest(folder, stated.model_copy(update=changed))


def test_a_plan_of_a_tera_row_ends_within_a_second(world: World, model: Path) -> None:
    with_rows(world, model, ROWS)
    assert (model / model_folder.ATTESTATION).stat().st_size < 16_000
    began = time.process_time()
    with pytest.raises(CouldNotCheck, match="3,298,534,883,328 rows") as answer:
        verify(model, trust_root=world.root, at=AT)
    assert time.process_time() - began < 1
    assert "--max-rows" in str(answer.value)


def measured(script: str, *words: object) -> tuple[float, float, str]:
    """CPU seconds, megabytes above those of the imports, and output, of a process of its own."""
    code = (
        "import resource, sys, time\n"
        "from datetime import UTC, datetime\n"
        "from govray.errors import GovrayError\n"
        "from govray.governance.verify.verifier import verify\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before, began = peak(), time.process_time()\n"
        "try:\n"
        f"    {script}\n"
        "    print('accepted')\n"
        "except GovrayError as error:\n"
        "    print(str(error)[:2000])\n"
        "print(time.process_time() - began, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *said, numbers = done.stdout.splitlines()
    seconds, megabytes = map(float, numbers.split())
    return seconds, megabytes, "\n".join(said)


VERIFY = (
    "verify(sys.argv[1], trust_root=sys.argv[2], at=datetime.fromisoformat('2026-11-20T00:00:00Z'))"
)


def checked(world: World, folder: Path) -> tuple[float, float, str]:
    """What it costs to verify the folder, and what comes out."""
    root = folder.parent / "root.json"
    root.write_bytes(world.root)
    return measured(VERIFY, folder, root)


def test_sixty_megabytes_by_a_stranger_are_never_parsed(world: World, model: Path) -> None:
    """They cost their own size a few times over: file, payload, and what the signature is over."""
    payload = b'{"predicate":[' + b"{}," * 15_000_000 + b"{}]}"
    write(model / model_folder.ATTESTATION, sign_payload(payload, [LocalSigner.generate()]))
    seconds, megabytes, said = checked(world, model)
    assert "no signature verifies" in said
    assert megabytes < 4 * 60
    assert seconds < 20


@pytest.mark.parametrize(
    "predicate",
    [
        lambda: b"[" + b"[]," * 15_000_000 + b"[]]",
        pytest.param(lambda: b"[" + b"{}," * 2_200_000 + b"{}]", marks=pytest.mark.story),
        pytest.param(lambda: b"[" * 1_000_000 + b"]" * 1_000_000, marks=pytest.mark.story),
        pytest.param(lambda: b'"' + b"," * 20_000_000 + b'"', marks=pytest.mark.story),
    ],
    ids=["lists", "objects", "deep", "commas"],
)
def test_what_the_operator_signed_has_a_bound_too(
    world: World, model: Path, predicate: Callable[[], bytes]
) -> None:
    payload = b'{"predicate":' + predicate() + b"}"
    write(model / model_folder.ATTESTATION, sign_payload(payload, [world.keys.operator]))
    seconds, megabytes, said = checked(world, model)
    assert "step 2 (signature)" in said
    assert megabytes < 700
    assert seconds < 20


@pytest.mark.slow
def test_an_attestation_of_very_many_cells_has_a_bound(world: World, model: Path) -> None:
    data = (model / model_folder.ATTESTATION).read_bytes()
    statement = json.loads(Envelope.parse(data).payload)
    cell = statement["predicate"]["coverage"][0]
    statement["predicate"]["coverage"] = [cell | {"tokens": str(i)} for i in range(40_000)]
    payload = canonical_json.encode(statement)
    write(model / model_folder.ATTESTATION, sign_payload(payload, [world.keys.operator]))
    _, megabytes, said = checked(world, model)
    assert "step 11 (coverage)" in said
    assert megabytes < 30 * len(payload) / 1e6


def test_control_values_without_a_bound_take_what_they_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b"[" + b"{}," * 100 + b"{}]"
    monkeypatch.setattr(canonical_json, "MAX_VALUES", 101)
    with pytest.raises(Malformed, match="more than 101 values"):
        canonical_json.parse_canonical(data)
    monkeypatch.setattr(canonical_json, "MAX_VALUES", 1 << 60)
    assert len(canonical_json.parse_canonical(data)) == 101  # type: ignore[arg-type]
