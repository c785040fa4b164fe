"""A beacon chooses the reserve: one round, one pulse, one salt, and no choice for anyone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from govray.errors import Refused, Untrusted, VerificationFailed
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.record.prepare_manifest import Manifest, Reserve
from govray.governance.trust.beacon import UsedPulse
from tests.support.beaconed import DUE, Beaconed, beacon_of, pulse_of, reserve_of
from tests.support.table import each_row
from tests.support.world import AT, World

FIXED = LocalSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
Change = Callable[[Beaconed], object]


def reserve(make: Callable[[Beaconed], Reserve]) -> Change:
    return lambda world: setattr(world, "reserve", make(world))


def pulse(number: int, beacon: str = "bell", by: str = "bell") -> Change:
    def signer(world: Beaconed) -> LocalSigner:
        return world.bell if by == "bell" else LocalSigner.generate()

    return reserve(lambda world: reserve_of(pulse_of(signer(world), number, beacon)))


def credential(**changes: str | None) -> Change:
    return lambda world: world.credentials.update(gamma=world.issue("gamma", **changes))


def root(**changes: int | None) -> Change:
    def change(world: Beaconed) -> None:
        named = beacon_of(world.bell, **changes) if changes else None
        world.root = world.sign_root(beacon=named)

    return change


def test_a_verdict_names_the_beacon_and_its_round(tmp_path: Path) -> None:
    world = Beaconed()
    model = world.verify(world.deploy(tmp_path / "model"))
    assert model.manifest.document.reserve.drawn == f"by beacon bell, round {DUE}"
    # Control: without a beacon the same model's reserve is preparation's word.
    drawn = World()
    told = drawn.verify(drawn.deploy(tmp_path / "drawn")).manifest.document.reserve.drawn
    assert told == "drawn by preparation"


@each_row(
    ("change", "says"),
    [
        (reserve(lambda _: World.reserve), "preparation drew the reserve's salt"),
        (pulse(DUE - 1), f"the credentials lead to beacon bell, round {DUE}"),
        (pulse(DUE + 1), f"the credentials lead to beacon bell, round {DUE}"),
        (pulse(DUE, beacon="gong"), "the reserve follows beacon gong"),
        (pulse(DUE, by="another"), "not signed by the key of the beacon bell"),
        (credential(issued="2026-11-03T11:00:00Z"), f"round {DUE + 1}"),
        (credential(issued=None), "states no time of issue"),
        (credential(issued="2026-11-10T08:00:01Z"), "issued at 2026-11-10T08:00:01Z, after"),
        (root(delay=1), "lead to beacon bell, round 60"),
        (root(), "the trust root names no beacon"),
    ],
)
def test_what_the_beacon_did_not_choose_is_refused(
    tmp_path_factory: pytest.TempPathFactory, change: Change, says: str
) -> None:
    world = Beaconed()
    change(world)
    model = world.deploy(tmp_path_factory.mktemp("models") / "model")
    with pytest.raises(VerificationFailed, match=r"step 7 \(manifest\)") as refused:
        world.verify(model)
    assert says in str(refused.value)
    # Control: nothing else is wrong with it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reserve, "check_drawn", lambda *_, **__: None)
        world.verify(model)


def test_a_pulse_is_not_used_before_it_is_due() -> None:
    bell = beacon_of(FIXED)
    used = UsedPulse.read(pulse_of(FIXED, DUE), where="pulse")
    issued = {"alpha": "2026-11-03T10:30:00Z"}
    with pytest.raises(Refused, match="round 84 is due at 2026-11-04T11:00:00Z, after"):
        bell.check(used, issued, at=bell.due(DUE) - timedelta(seconds=1), where="reserve")
    bell.check(used, issued, at=bell.due(DUE), where="reserve")


def test_another_salt_than_the_pulses_is_refused(tmp_path: Path) -> None:
    def resalted(made: Manifest) -> Manifest:
        changed = made.reserve.model_copy(update={"salt": "5a" * 32})
        return made.model_copy(update={"reserve": changed})

    world = Beaconed()
    model = world.deploy(tmp_path / "model", manifest=resalted)
    with pytest.raises(VerificationFailed, match="the salt does not follow from beacon bell"):
        world.verify(model, records=None)
    # Control: without that check a summary passes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UsedPulse, "salt", "5a" * 32)
        world.verify(model, records=None)


SECONDS = st.integers(1, 10**6)


@given(
    issued=st.datetimes(datetime(2026, 1, 1), datetime(2026, 11, 1)), period=SECONDS, delay=SECONDS
)
def test_the_round_is_the_first_after_the_delay(issued: datetime, period: int, delay: int) -> None:
    bell = beacon_of(FIXED, genesis="2026-06-01T00:00:00Z", period=period, delay=delay)
    time = issued.replace(tzinfo=AT.tzinfo, microsecond=0)
    number = bell.round_for({"alpha": format_time(time), "beta": "2026-01-01T00:00:00Z"}, at=AT)
    settled = time + timedelta(seconds=delay)
    assert bell.due(number) > settled
    assert number == 1 or bell.due(number - 1) <= settled


def test_a_beacons_key_has_one_signature_for_each_round_and_no_other_role() -> None:
    with pytest.raises(ValidationError, match="one signature for each round"):
        beacon_of(LocalSigner.generate("ecdsa-p256"))
    world = World()
    with pytest.raises(ValidationError, match="a key of the authority 'operator' is the beacon's"):
        world.sign_root(beacon=beacon_of(world.keys.operator))
    cosigned = Envelope.parse(pulse_of(FIXED, DUE)).cosign([LocalSigner.generate()])
    with pytest.raises(Untrusted, match="a pulse has one signature"):
        UsedPulse.read(cosigned, where="pulse")


def test_golden_pulse() -> None:
    golden = "bbebc678425e41c796cf58b1d93fd162aa42cc363818c74d8e4055939eaef925"
    used = UsedPulse.read(pulse_of(FIXED, 7), where="pulse")
    subject = hashlib.sha256(b'{"beacon":"bell","round":7}').hexdigest()
    statement = (
        b'{"_type":"https://in-toto.io/Statement/v1","predicate":{"beacon":"bell","round":7},'
        b'"predicateType":"https://govray.dev/pulse/v1","subject":[{"digest":{"sha256":"%b"},'
        b'"name":"bell"}]}' % subject.encode()
    )
    signed = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(statement), statement)
    signature = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).sign(signed)
    value = hashlib.sha256(signature).hexdigest()
    drawn = hashlib.sha256(b'{"beacon":"bell","round":7,"value":"%b"}' % value.encode())
    assert used.signature == signature.hex()
    assert used.salt == drawn.hexdigest() == golden
