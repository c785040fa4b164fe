"""Cosigned heads in a model folder: known witnesses by the root's policy, verified offline."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from govray.errors import GovrayError, VerificationFailed
from govray.evidence.notaries.asking import with_cosignature
from govray.governance.attestation import model_folder
from govray.governance.formats import merkle
from govray.governance.formats.dsse import encode_base64
from govray.governance.formats.keys import LocalSigner, PublicKey
from govray.governance.formats.signed_note import read_note, sign_checkpoint
from govray.governance.notary import cosignature
from govray.governance.notary.cosignature import cosign
from govray.governance.record.ledger import origin
from govray.governance.trust.witness_policy import LedgerWitness, WitnessPolicy
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.table import each_row
from tests.support.world import AT, RUN, World

NAMES = ("witness.example/w1", "witness.example/w2", "witness.example/w3")
SIGNERS = {name: LocalSigner.generate() for name in NAMES}
WITNESSES = tuple(LedgerWitness(name=n, key=s.public_key) for n, s in SIGNERS.items())
SEEN = datetime(2026, 11, 11, tzinfo=UTC)


def checked(world: World, model: Path, threshold: int = 2, at: datetime = AT) -> VerifiedModel:
    policy = WitnessPolicy(threshold=threshold, witnesses=WITNESSES)
    return verify(model, trust_root=world.sign_root(version=2, witness_policy=policy), at=at)


def put(model: Path, *names: str, note: bytes | None = None, at: datetime = SEEN) -> None:
    """The note with cosignatures of these witnesses; of the model's own head by default."""
    cosigned = note or (model / model_folder.CHECKPOINT).read_bytes()
    for name in names:
        line = cosign(read_note(cosigned).text, name, SIGNERS[name], at=at)
        cosigned += line.encode()
    (model / model_folder.WITNESSED).write_bytes(cosigned)


def test_the_example_of_the_standard_verifies() -> None:
    """Its second signature line is a cosignature; its key follows from none that it prints. So the
    bytes that are signed are compared with the page's, and the line with one made by hand.
    """
    text = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signed = private.sign(f"cosignature/v1\ntime 1679315147\n{text}".encode())
    key = private.public_key().public_bytes_raw()
    kid = hashlib.sha256(b"witness.example.com/w1\n\x04" + key).digest()[:4]
    line = encode_base64(kid + (1679315147).to_bytes(8, "big") + signed)
    at = datetime.fromtimestamp(1679315147, UTC)
    made = cosign(text, "witness.example.com/w1", LocalSigner(private), at=at)
    assert made == f"— witness.example.com/w1 {line}\n"


@pytest.mark.parametrize(
    ("names", "threshold", "level"),
    [
        ((), 1, "selfAttested"),
        (NAMES[:1], 1, "witnessed"),
        (NAMES[:1], 2, "selfAttested"),
        (NAMES[:2], 2, "witnessed"),
        (NAMES, 3, "witnessed"),
    ],
)
def test_the_roots_policy_defines_witnessed(
    world: World, model: Path, names: tuple[str, ...], threshold: int, level: str
) -> None:
    put(model, *names)
    found = checked(world, model, threshold)
    assert found.assurance_level == level
    assert [each.witness for each in found.cosignatures] == list(names)


def test_without_a_cosigned_head_or_a_policy_nothing_is_asked(world: World, model: Path) -> None:
    assert checked(world, model).assurance_level == "selfAttested"
    put(model, *NAMES)
    found = verify(model, trust_root=world.root, at=AT)
    assert (found.assurance_level, found.cosignatures) == ("selfAttested", ())


def test_one_witness_is_not_counted_twice(world: World, model: Path) -> None:
    put(model, NAMES[0], NAMES[0])
    with pytest.raises(VerificationFailed, match=r"step 16 \(witnesses\): it stands there twice"):
        checked(world, model)


def test_a_strangers_cosignature_is_passed_over(world: World, model: Path) -> None:
    put(model, NAMES[0])
    file = model / model_folder.WITNESSED
    text = read_note(file.read_bytes()).text
    stranger = cosign(text, NAMES[1], LocalSigner.generate(), at=SEEN)  # a known name, another key
    file.write_bytes(file.read_bytes() + stranger.encode())
    found = checked(world, model)
    assert [each.witness for each in found.cosignatures] == [NAMES[0]]
    assert found.assurance_level == "selfAttested"


def forged(model: Path) -> None:
    """The witness's own line, with the time moved: one bit of what it signed."""
    put(model, *NAMES[:2])
    file = model / model_folder.WITNESSED
    note = read_note(file.read_bytes())
    name, kid, signed = note.signatures[-1]
    moved = signed[:7] + bytes([signed[7] ^ 1]) + signed[8:]
    line = f"— {name} {encode_base64(kid + moved)}\n"
    file.write_bytes(with_cosignature(file.read_bytes(), WITNESSES[1], line))


def test_a_forged_cosignature_is_refused(world: World, model: Path) -> None:
    forged(model)
    with pytest.raises(VerificationFailed, match=r"step 16 \(witnesses\): the signature does not"):
        checked(world, model)


def test_control_unless_signatures_are_verified_the_forgery_makes_it_witnessed(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged(model)
    plain = PublicKey.verify
    monkeypatch.setattr(
        PublicKey,
        "verify",
        lambda key, message, signature: (
            message.startswith(b"cosignature/v1") or plain(key, message, signature)
        ),
    )
    assert checked(world, model).assurance_level == "witnessed"


def heads(world: World, model: Path) -> dict[str, bytes]:
    """Heads that the operator signed too: an earlier one, another history, another run."""
    lines = (model / model_folder.LEDGER).read_bytes().splitlines()
    other = [*lines[:-1], lines[-1] + b" "]
    signer = world.keys.operator
    return {
        "stale": sign_checkpoint(origin(RUN), 4, merkle.root(lines[:4]), signer),
        "split": sign_checkpoint(origin(RUN), len(other), merkle.root(other), signer),
        "other": sign_checkpoint(origin("run-other"), len(lines), merkle.root(lines), signer),
    }


@pytest.mark.parametrize(
    ("which", "said"), [("stale", "stale: of 4"), ("split", "not the"), ("other", "not the")]
)
def test_stale_and_split_heads_are_refused(
    world: World, model: Path, which: str, said: str
) -> None:
    put(model, *NAMES, note=heads(world, model)[which])
    with pytest.raises(VerificationFailed, match=rf"step 16 \(witnesses\).*{said}"):
        checked(world, model)


def test_control_unless_heads_are_compared_any_head_makes_it_witnessed(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = heads(world, model)
    own = read_note((model / model_folder.CHECKPOINT).read_bytes())
    plain = cosignature.read_note
    monkeypatch.setattr(
        cosignature,
        "read_note",
        lambda data: type(own)(own.head, plain(data).text, plain(data).signatures),
    )
    for note in given.values():
        put(model, *NAMES, note=note)
        assert checked(world, model).assurance_level == "witnessed"


def test_times_that_contradict_the_run_are_refused(world: World, model: Path) -> None:
    put(model, *NAMES, at=AT + timedelta(days=1))
    with pytest.raises(VerificationFailed, match="after the reference time"):
        checked(world, model)
    put(model, *NAMES, at=datetime(2026, 11, 1, tzinfo=UTC))
    with pytest.raises(VerificationFailed, match="before the run began"):
        checked(world, model)


@each_row(
    "changes",
    [
        {"threshold": 4},
        {"threshold": 0},
        {"witnesses": ()},
        {"witnesses": (WITNESSES[0], WITNESSES[0])},
        {"witnesses": (WITNESSES[0], LedgerWitness(name="w9", key=WITNESSES[0].key))},
    ],
)
def test_a_policy_that_cannot_be_met_or_counts_one_twice_is_refused(
    changes: dict[str, object],
) -> None:
    fields = {"threshold": 1, "witnesses": WITNESSES} | changes
    with pytest.raises((ValueError, GovrayError)):
        WitnessPolicy(**fields)  # type: ignore[arg-type]


def test_witnesses_have_ed25519_keys_that_nobody_else_has(world: World) -> None:
    with pytest.raises(ValueError, match="Ed25519"):
        LedgerWitness(name="w", key=LocalSigner.generate("ecdsa-p256").public_key)
    own = LedgerWitness(name="w", key=world.keys.operator.public_key)
    policy = WitnessPolicy(threshold=1, witnesses=(own,))
    with pytest.raises((ValueError, GovrayError), match="a ledger witness's too"):
        world.sign_root(version=2, witness_policy=policy)
