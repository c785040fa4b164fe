"""The device flow against a provider on this machine: what it asks, when, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from govray.errors import GovrayError, InfrastructureFailed, Refused
from govray.platform.client.device_flow import GRANT, INTERVAL_S, Code, Granted, sign_in
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
