"""Structure-aware mutations of a world whose every key the attacker has, within bounds.

One value of one signed document is changed, and everything that depends on it is made again and
signed: digests, the plan's references, the ledger's lines and head. So a mutation gets past the
signatures, to the checks behind them. What comes out is a verified model or a `GovrayError`, never
another exception; and each verification has a bound on its time and its memory. Every other round
has the records at hand.

The rounds are the same each time. ``GOVRAY_FUZZ_ROUNDS=N GOVRAY_FUZZ_SEED=SEED pytest FILE`` goes
through others, as many as one likes.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from govray.errors import GovrayError, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.signed_note import sign_checkpoint
from govray.governance.record.ledger import origin
from govray.governance.record.prepared_records import ReadPart
from tests.support.mutations import apply, change_json, places, read_all
from tests.support.world import RUN, World

ROUNDS = 60
"""A verification takes about 15 ms."""

EACH_SECONDS = 5.0
EACH_MEGABYTES = 200.0
"""Above what the process took before the first."""

Files = dict[str, bytes]

LARGE: list[Any] = [
    2**40,
    2**53 - 1,
    str(2**40),
    str(2**63 - 1),
    0.1,
    "*a" * 8 + "*b",
    "x" * 100_000,
    ["x"] * 100_000,
    [{}] * 100_000,
    json.loads("[" * 60 + "]" * 60),
    {f"k{i}": {} for i in range(20_000)},
]


def change(rng: random.Random, value: Any) -> None:
    """One edit somewhere: a small one, or something large in the place of something small."""
    if rng.random() < 0.6:
        change_json(rng, value)
        return
    container, key = rng.choice(list(places(value)))
    numbers = [c for c in LARGE if isinstance(c, int)]
    integer = isinstance(container[key], int) and not isinstance(container[key], bool)
    container[key] = rng.choice(numbers if integer and rng.random() < 0.8 else LARGE)


def resealed(rng: random.Random, data: bytes, signers: list[LocalSigner]) -> bytes:
    """A document with one edit in its predicate, signed again."""
    statement = json.loads(Envelope.parse(data).payload)
    change(rng, {"predicate": statement["predicate"]} if rng.random() < 0.02 else statement)
    return sign_payload(canonical_json.encode(statement), signers)


def mutate(rng: random.Random, world: World, files: Files) -> str:
    """Change one document in ``files``; returns which."""
    keys = world.keys
    name = rng.choice(
        [
            model_folder.POLICY,
            model_folder.MANIFEST,
            model_folder.CREDENTIALS,
            model_folder.DELEGATIONS,
        ]
        + [model_folder.LEDGER, model_folder.ATTESTATION] * 2
    )
    signers: dict[str, list[LocalSigner]] = {
        model_folder.POLICY: list(keys.compliance),
        model_folder.MANIFEST: [keys.operator],
        model_folder.ATTESTATION: [keys.operator],
    }
    if name in signers:
        files[name] = resealed(rng, files[name], signers[name])
        return name
    lines = files[name].splitlines()
    i = rng.randrange(len(lines))
    if name == model_folder.LEDGER:
        leaf = json.loads(lines[i])
        change(rng, leaf)
        lines[i] = canonical_json.encode(leaf)
    else:
        mine = b"acme" in Envelope.parse(lines[i]).payload and name == model_folder.CREDENTIALS
        lines[i] = resealed(rng, lines[i], [keys.acme if mine else keys.archive])
    files[name] = b"".join(line + b"\n" for line in lines)
    return name


def payload_digest(data: bytes) -> str:
    return canonical_json.sha256(Envelope.parse(data).payload)


def consistent(world: World, files: Files) -> None:
    """Make again what the mutation left behind, as far as it can be made."""
    statement = json.loads(Envelope.parse(files[model_folder.ATTESTATION]).payload)
    stated = statement["predicate"]
    stated["policy"]["digest"] = payload_digest(files[model_folder.POLICY])
    stated["manifest"] = payload_digest(files[model_folder.MANIFEST])
    stated["plan"]["manifest"] = stated["manifest"]
    envelopes = files[model_folder.CREDENTIALS].splitlines()
    for entry, envelope in zip(stated["corpora"], envelopes, strict=False):
        entry["credential"] = payload_digest(envelope)
    plan = canonical_json.sha256(canonical_json.encode(stated["plan"]))
    lines = []
    for line in files[model_folder.LEDGER].splitlines():
        leaf = json.loads(line)
        if isinstance(leaf, dict) and "plan" in leaf:
            leaf |= {"plan": plan, "policy": stated["policy"]["digest"]}
        lines.append(canonical_json.encode(leaf))
    root = merkle.root(lines)
    files[model_folder.LEDGER] = b"".join(line + b"\n" for line in lines)
    files[model_folder.CHECKPOINT] = sign_checkpoint(
        origin(RUN), len(lines), root, world.keys.operator
    )
    stated["ledger"] |= {"size": str(len(lines)), "root": f"sha256:{root.hex()}"}
    for name in stated["files"]:
        if name in files:
            stated["files"][name] = canonical_json.sha256(files[name])
    files[model_folder.ATTESTATION] = sign_payload(
        canonical_json.encode(statement), [world.keys.operator]
    )


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bounded(check: Callable[[], object], seconds: float, limit: float) -> None:
    """Run ``check``, and fail when it takes more CPU or brings the process above ``limit`` MB."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s of CPU")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        check()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert megabytes() < limit, f"more than {limit:.0f} MB"


def test_no_mutation_ends_in_a_traceback_or_beyond_its_bounds(tmp_path: Path) -> None:
    world = World(corpora={"acme": (4,), "alpha": (4, 4), "gamma": (4,)}, steps=3, longest=6)
    folder = world.deploy(tmp_path / "model")
    valid = read_all(folder)
    seed = int(os.environ.get("GOVRAY_FUZZ_SEED", "0"))
    limit, ends = 0.0, Counter[str]()
    for number in range(int(os.environ.get("GOVRAY_FUZZ_ROUNDS", ROUNDS))):
        rng = random.Random(f"{seed}/{number}")
        records = world.files.read if number % 2 else None
        mutated = dict(valid)
        # What has no canonical encoding was never signed, and what is broken is not made again.
        broken = (GovrayError, KeyError, TypeError, AttributeError, IndexError, ValueError)
        with suppress(*broken):
            mutate(rng, world, mutated)
            consistent(world, mutated)
        limit = limit or megabytes() + EACH_MEGABYTES
        apply(folder, valid, mutated)

        def check(records: ReadPart | None = records) -> None:
            try:
                world.verify(folder, records=records)
            except VerificationFailed as error:
                ends[error.what.split(":")[0]] += 1
            except GovrayError as error:
                ends[type(error).__name__] += 1
            else:
                ends["accepted"] += 1

        try:
            bounded(check, EACH_SECONDS, limit)
        except BaseException as error:
            error.add_note(f"round {number} of GOVRAY_FUZZ_SEED={seed}")
            raise
        apply(folder, mutated, valid)
    world.verify(folder)
    # It got past signatures and digests, to what is computed.
    assert len(ends) >= 4, ends


def test_control_the_bounds_see_a_loop_and_a_heap() -> None:
    def loop() -> None:
        while True:
            pass

    with pytest.raises(AssertionError, match="of CPU"):
        bounded(loop, 0.2, megabytes() + 1000)
    with pytest.raises(AssertionError, match="MB"):
        bounded(lambda: bytes(150 << 20).count(b"x"), 5.0, 1.0)
