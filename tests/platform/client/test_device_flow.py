"""The device flow against a provider on this machine: what it asks, when, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from govray.errors import GovrayError, InfrastructureFailed, Malformed, Refused, UsageError
from govray.platform.client.device_flow import GRANT, INTERVAL_S, LONGEST_S, Code, Granted, sign_in
from tests.support.device_provider import CLIENT, CODE, DEVICE_CODE, DeviceProvider, device_provider


@pytest.fixture
def provider() -> Iterator[DeviceProvider]:
    with device_provider() as made:
        yield made


@dataclass
class Waiting:
    """A clock that goes on only when somebody waits."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    shown: list[Code] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def sign_in(self, provider: DeviceProvider) -> Granted:
        return sign_in(
            provider.url,
            CLIENT,
            ["openid", "email"],
            self.shown.append,
            sleep=self.sleep,
            clock=lambda: self.now,
        )


def test_a_person_signs_in(provider: DeviceProvider) -> None:
    provider.more = {"interval": 7}
    provider.answers = ["authorization_pending", "authorization_pending", "granted"]
    waiting = Waiting()
    granted = waiting.sign_in(provider)
    assert waiting.shown == [
        Code(user_code=CODE, address=f"{provider.url}/activate", whole_address=None)
    ]
    assert waiting.waits == [7, 7, 7]
    asked = {"grant_type": GRANT, "device_code": DEVICE_CODE, "client_id": CLIENT}
    assert provider.asked == [asked] * 3
    assert granted.expires_in_s == 600
    assert granted.id_token is not None
    assert granted.access_token not in repr(granted)


def test_it_asks_less_often_when_told_to(provider: DeviceProvider) -> None:
    provider.more = {"interval": None}  # five seconds, then
    provider.answers = ["slow_down", "slow_down", "authorization_pending", "granted"]
    waiting = Waiting()
    waiting.sign_in(provider)
    assert waiting.waits == [INTERVAL_S, 2 * INTERVAL_S, 3 * INTERVAL_S, 3 * INTERVAL_S]


def test_it_asks_less_often_where_the_provider_does_not_answer(provider: DeviceProvider) -> None:
    provider.more = {"interval": 2}
    provider.answers = ["broken", "broken", "granted"]
    waiting = Waiting()
    waiting.sign_in(provider)
    assert waiting.waits == [2, 4, 8]


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        (["access_denied"], Refused, "was refused at the identity provider"),
        (["authorization_pending", "expired_token"], InfrastructureFailed, "the code ended"),
        (["invalid_client"], Refused, "refuses this client .invalid_client"),
        (["authorization_pending"], InfrastructureFailed, "the code ended"),
    ],
)
def test_it_ends(
    provider: DeviceProvider, answers: list[str], error: type[GovrayError], said: str
) -> None:
    provider.answers = answers
    provider.more = {"interval": 60}
    waiting = Waiting()
    with pytest.raises(error, match=said):
        waiting.sign_in(provider)
    assert waiting.now <= 600 + 60


def test_a_code_without_an_end_is_not_waited_for_for_ever(provider: DeviceProvider) -> None:
    provider.answers = ["authorization_pending"]
    provider.more = {"expires_in": None, "interval": 100}
    waiting = Waiting()
    with pytest.raises(InfrastructureFailed):
        waiting.sign_in(provider)
    assert LONGEST_S <= waiting.now <= LONGEST_S + 100


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"device_authorization_endpoint": None}, UsageError, "does not offer the device flow"),
        ({"device_authorization_endpoint": "http://id.example/d"}, UsageError, "no address"),
        ({"token_endpoint": "http://id.example/t"}, UsageError, "no address"),
        ({"token_endpoint": 5}, Malformed, "no token_endpoint"),
        ({"verification_uri": "http://id.example/a"}, UsageError, "no address"),
        ({"verification_uri_complete": "javascript:x"}, UsageError, "no address"),
        ({"user_code": None}, Malformed, "no user_code"),
        ({"device_code": ["x"]}, Malformed, "no device_code"),
        ({"error": "unauthorized_client"}, Refused, "unauthorized_client"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    provider: DeviceProvider, more: dict[str, Any], error: type[GovrayError], said: str
) -> None:
    provider.more = more
    with pytest.raises(error, match=said):
        Waiting().sign_in(provider)
    assert provider.asked == []


def test_a_document_of_another_issuer_is_refused(provider: DeviceProvider) -> None:
    provider.issuer = "https://other.example"
    with pytest.raises(Malformed, match="another issuer"):
        Waiting().sign_in(provider)
