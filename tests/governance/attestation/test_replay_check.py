"""A second party's word: accepted from a witness about this very model, and from nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Malformed, Refused, Untrusted, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.adapter_removal import remove_adapter_files
from govray.governance.attestation.model_attestation import without_adapter
from govray.governance.attestation.replay_check import subjects_of
from govray.governance.formats import canonical_json
from govray.governance.formats.document import parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import Subject, seal
from govray.governance.trust.authority import Authority
from govray.governance.verify.verifier import verify
from tests.support.witnessing import REPLAYED, attested, check_of, signed
from tests.support.world import AT, DIGEST, World, write

FILE = model_folder.replay_file("auditor")


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def original(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.deploy(tmp_path_factory.mktemp("original") / "model")


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


def test_without_a_second_party_a_model_is_self_attested(world: World, model: Path) -> None:
    assert verify(model, trust_root=world.root, at=AT).assurance_level == "selfAttested"


def test_a_witness_beside_the_attestation_raises_the_level(world: World, model: Path) -> None:
    write(model / FILE, signed(world, model))
    found = verify(model, trust_root=world.root, at=AT)
    assert found.assurance_level == "replayChecked"
    assert found.attestation.assurance_level == "selfAttested"  # it is as it was
    [check] = found.replay_checks
    assert (check.document.party, check.authority.name) == ("auditor", "auditor")
    assert found.uncovered == ()


def test_a_detached_statement_does_the_same(world: World, model: Path, tmp_path: Path) -> None:
    data = signed(world, model)
    write(tmp_path / "elsewhere.json", data)
    for given in (data, tmp_path / "elsewhere.json"):
        found = verify(model, trust_root=world.root, at=AT, replay_checks=[given])
        assert found.assurance_level == "replayChecked"


def test_after_a_removal_the_statement_is_gone(world: World, model: Path) -> None:
    write(model / FILE, signed(world, model))
    before = verify(model, trust_root=world.root, at=AT)
    after = without_adapter(before.attestation, before.routes, "acme", at=REPLAYED)
    kept = [s for s in before.subjects if not s.name.startswith(f"{model_folder.ADAPTERS}/acme/")]
    envelope = seal(after, kept, [world.keys.operator])
    remove_adapter_files(model, "acme", envelope, accept=lambda folder: None)
    found = verify(model, trust_root=world.root, at=AT)
    assert found.assurance_level == "selfAttested"
    assert not (model / FILE).exists()


@dataclass(frozen=True)
class Case:
    """A statement that must not count, and why."""

    name: str
    make: Callable[[World, Path], bytes]
    kind: type[Refused]
    says: str


def changed(**changes: Any) -> Callable[[World, Path], bytes]:
    return lambda world, model: signed(world, model, **changes)


def by(signer: Callable[[World], LocalSigner]) -> Callable[[World, Path], bytes]:
    return lambda world, model: signed(world, model, signer=signer(world))


def about(
    change: Callable[[tuple[Subject, ...]], tuple[Subject, ...]],
) -> Callable[[World, Path], bytes]:
    """The auditor signs other subjects."""

    def make(world: World, model: Path) -> bytes:
        subjects = change(subjects_of(attested(world, model)[0]))
        return seal(check_of(world, model), subjects, [world.keys.auditor])

    return make


def forged(world: World, model: Path) -> bytes:
    """A true signature under another payload."""
    value: Any = canonical_json.parse(signed(world, model, party="somebody"))
    true: Any = canonical_json.parse(signed(world, model))
    return canonical_json.encode(value | {"signatures": true["signatures"]})


def attestation_itself(world: World, model: Path) -> bytes:
    """The operator's attestation, passed off as a witness's statement, signed by the witness."""
    return seal(
        attested(world, model)[0].document,
        attested(world, model)[0].subjects,
        [world.keys.auditor],
    )


OTHER = Subject.of("x", DIGEST)

CASES = [
    Case("a stranger", by(lambda w: LocalSigner.generate()), Untrusted, "witness"),
    Case("the operator", by(lambda w: w.keys.operator), Untrusted, "witness"),
    Case("the policy's signer", by(lambda w: w.keys.compliance[0]), Untrusted, "witness"),
    Case("a forged payload", forged, Untrusted, "witness"),
    Case("another document", attestation_itself, Malformed, "predicate type"),
    Case("another run", changed(run="run-0000"), Refused, "run-0000"),
    Case("some of the steps", changed(steps=2), Refused, "2 of 6 steps"),
    Case("another ledger", changed(ledger=DIGEST), Refused, "another root"),
    Case("before the run ended", changed(replayed="2026-11-10T08:59:59Z"), Refused, "before"),
    Case("in the future", changed(replayed="2026-11-21T00:00:00Z"), Refused, "after the reference"),
    Case("another party's file", changed(party="somebody"), Refused, "not its file's name"),
    Case("no attestation", about(lambda s: s[:-1]), Refused, model_folder.ATTESTATION),
    Case(
        "another attestation",
        about(lambda s: (*s[:-1], Subject.of(model_folder.ATTESTATION, DIGEST))),
        Refused,
        model_folder.ATTESTATION,
    ),
    Case("a file left out", about(lambda s: s[1:]), Refused, "about another"),
    Case("a file added", about(lambda s: (OTHER, *s)), Refused, "about another x"),
    Case(
        "another weight file",
        about(
            lambda s: tuple(
                Subject.of(e.name, DIGEST) if e.name == model_folder.WEIGHTS else e for e in s
            )
        ),
        Refused,
        model_folder.WEIGHTS,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nobody_else_counts(case: Case, world: World, model: Path) -> None:
    verify(model, trust_root=world.root, at=AT)  # the control
    write(model / FILE, case.make(world, model))
    with pytest.raises(VerificationFailed, match="step 14") as caught:
        verify(model, trust_root=world.root, at=AT)
    assert isinstance(caught.value.__cause__, case.kind)
    assert case.says in str(caught.value)


@pytest.mark.parametrize("when", ["now", "last year"])
def test_no_operators_key_is_a_second_partys_even_after_its_authority_expired(
    tmp_path: Path, when: str
) -> None:
    """A root may list the operator as a witness of others; of its own runs it is none."""
    old = LocalSigner.generate()

    class OneKey(World):
        def authorities(self) -> tuple[Authority, ...]:
            *others, auditor = super().authorities()
            mine = old if when == "last year" else self.keys.operator
            earlier = {"name": "operator-2025", "role": "operator", "threshold": 1}
            expired = Authority(**earlier, keys=(old.public_key,), expires="2026-01-01T00:00:00Z")
            both = (*auditor.keys, mine.public_key)
            return (*others, expired, auditor.model_copy(update={"keys": both}))

    world = OneKey()
    model = world.deploy(tmp_path / "model")
    write(model / FILE, signed(world, model))
    assert verify(model, trust_root=world.root, at=AT).assurance_level == "replayChecked"
    write(model / FILE, signed(world, model, signer=old if when != "now" else world.keys.operator))
    with pytest.raises(VerificationFailed, match="no second party"):
        verify(model, trust_root=world.root, at=AT)


def test_a_witness_counts_until_it_expires(tmp_path: Path) -> None:
    until = "2026-11-15T00:00:00Z"

    class Expiring(World):
        def authorities(self) -> tuple[Authority, ...]:
            *others, auditor = super().authorities()
            return (*others, auditor.model_copy(update={"expires": until}))

    world = Expiring()
    model = world.deploy(tmp_path / "model")
    write(model / FILE, signed(world, model))
    before = datetime(2026, 11, 14, tzinfo=UTC)
    assert verify(model, trust_root=world.root, at=before).assurance_level == "replayChecked"
    with pytest.raises(VerificationFailed, match=r"expired at 2026-11-15"):
        verify(model, trust_root=world.root, at=parse_time(until))


def test_a_further_signature_or_key_hint_is_refused(world: World, model: Path) -> None:
    cosigned = Envelope.parse(signed(world, model)).cosign([LocalSigner.generate()])
    write(model / FILE, cosigned)
    with pytest.raises(VerificationFailed, match="other than the witness's"):
        verify(model, trust_root=world.root, at=AT)
