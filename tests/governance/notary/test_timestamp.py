"""Timestamps of real authorities over an attestation: what is accepted, and all that is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from govray.errors import Malformed, Untrusted, VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.notary import timestamp
from govray.governance.notary.timestamp import Timestamp
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.distribution import require_openssl
from tests.support.table import each_row
from tests.support.timestamp_server import Tsa
from tests.support.world import World


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Tsa:
    require_openssl()
    return Tsa.make(tmp_path_factory.mktemp("tsa") / "tsa")


@pytest.fixture(scope="module")
def token(tsa: Tsa, untouched: Path) -> bytes:
    return tsa.stamp((untouched / model_folder.ATTESTATION).read_bytes())


def now() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


def checked(world: World, model: Path, *tsas: Tsa, at: datetime | None = None) -> VerifiedModel:
    named = tuple(each.named for each in tsas) or None
    root = world.sign_root(version=2, timestamp_authorities=named)
    return verify(model, trust_root=root, at=at or now())


def put(model: Path, data: bytes, name: str = "tsa") -> None:
    (model / model_folder.timestamp_file(name)).write_bytes(data)


def test_an_attestation_is_stamped_and_verified_offline(
    world: World, model: Path, tsa: Tsa, token: bytes
) -> None:
    put(model, token)
    [stamp] = checked(world, model, tsa).timestamps
    assert stamp.authority == "tsa"
    assert abs(datetime.now(UTC) - stamp.time) < timedelta(minutes=10)


def test_the_token_stands_when_its_authoritys_certificate_has_expired(
    world: World, model: Path, tmp_path: Path
) -> None:
    """The chain is judged at the time that the token states."""
    require_openssl()
    short = Tsa.make(tmp_path / "short", until=timedelta(days=1))
    put(model, short.stamp((model / model_folder.ATTESTATION).read_bytes()))
    assert checked(world, model, short, at=now() + timedelta(days=300)).timestamps


def test_a_token_over_other_bytes_is_refused(world: World, model: Path, tsa: Tsa) -> None:
    put(model, tsa.stamp(b"another attestation"))
    with pytest.raises(VerificationFailed, match=r"step 15 \(timestamp\).*Mismatch"):
        checked(world, model, tsa)


def test_a_token_of_an_authority_that_the_root_does_not_name_is_refused(
    world: World, model: Path, tsa: Tsa, token: bytes, tmp_path: Path
) -> None:
    put(model, token)
    other = Tsa.make(tmp_path / "other", "tsa")  # the same name, and another key
    with pytest.raises(VerificationFailed, match=r"step 15 \(timestamp\)"):
        checked(world, model, other)
    with pytest.raises(VerificationFailed, match="it names none"):
        checked(world, model)
    put(model, other.stamp((model / model_folder.ATTESTATION).read_bytes()))
    with pytest.raises(VerificationFailed, match=r"step 15 \(timestamp\)"):
        checked(world, model, tsa)


def test_control_only_the_root_decides_whose_tokens_count(
    world: World,
    model: Path,
    tsa: Tsa,
    token: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(model, token)
    other = Tsa.make(tmp_path / "other", "other")
    checked(world, model, other, tsa)
    monkeypatch.setattr(
        timestamp, "read_timestamp", lambda *_, **__: Timestamp("any", now() - timedelta(hours=1))
    )
    checked(world, model)


def test_a_certificate_for_something_else_makes_no_timestamps(tmp_path: Path) -> None:
    require_openssl()
    with pytest.raises(Exception, match="non-zero exit"):  # openssl itself refuses it
        Tsa.make(tmp_path / "mail", usage=ExtendedKeyUsageOID.EMAIL_PROTECTION).stamp(b"x")


def test_a_token_from_after_the_certificates_end_is_refused(tmp_path: Path) -> None:
    require_openssl()
    late = Tsa.make(tmp_path / "late", until=timedelta(days=-1))
    with pytest.raises(Untrusted, match="of no timestamp authority"):
        timestamp.read_timestamp([late.named], late.stamp(b"x"), b"x", where="token")


@pytest.mark.parametrize("place", [5, 60, -300, -5])
def test_a_changed_token_is_refused(tsa: Tsa, token: bytes, untouched: Path, place: int) -> None:
    changed = bytearray(token)
    changed[place] ^= 1
    message = (untouched / model_folder.ATTESTATION).read_bytes()
    timestamp.read_timestamp([tsa.named], token, message, where="token")
    with pytest.raises((Malformed, Untrusted)):
        timestamp.read_timestamp([tsa.named], bytes(changed), message, where="token")


@each_row("data", [b"", b"{}", b"\x30\x03\x02\x01\x02", bytes(70_000)])
def test_what_is_no_response_is_refused(tsa: Tsa, data: bytes) -> None:
    with pytest.raises(Malformed):
        timestamp.read_timestamp([tsa.named], data, b"x", where="token")


def test_an_authority_that_declines_gives_no_timestamp(tsa: Tsa) -> None:
    """It answers with a status and no token: here to a query that it does not understand."""
    with pytest.raises(Malformed):
        timestamp.read_timestamp([tsa.named], tsa.answer(b"no query"), b"x", where="token")


def test_times_that_contradict_each_other_are_refused(
    world: World, tsa: Tsa, model: Path, token: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(model, token)
    early = datetime(2026, 11, 10, 8, 30, tzinfo=UTC)  # within the run, as it states
    for time, said in (
        (early, "before the run ended"),
        (now() + timedelta(days=1), "after the reference time"),
    ):
        monkeypatch.setattr(
            timestamp, "read_timestamp", lambda *_, time=time, **__: Timestamp("tsa", time)
        )
        with pytest.raises(VerificationFailed, match=rf"step 15 \(timestamp\).*{said}"):
            checked(world, model, tsa)
