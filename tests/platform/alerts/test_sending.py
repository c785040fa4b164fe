"""One POST: where it may go, and what it never does."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Refused, UsageError
from govray.platform.alerts import sending
from govray.platform.alerts.sending import checked_address, is_public, post
from govray.platform.store.webhooks import check_url
from tests.support.receiver import Receiver, receiving
from tests.support.web_server import certified

INSIDE = [
    "127.0.0.1",
    "10.1.2.3",
    "fec0::1",
    "3fff:fff::1",
    "5f00::1",
    "64:ff9b:1::808:808",
    "192.88.99.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",  # the metadata service of clouds
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1%eth0",
    "fd00::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
]


def named(*addresses: str) -> Any:
    return lambda _host, port, **_: [(0, 0, 0, "", (each, port)) for each in addresses]


@pytest.mark.parametrize("inside", INSIDE)
def test_addresses_inside_are_refused_and_a_host_may_be_allowed(inside: str) -> None:
    assert not is_public(inside)
    # A name with one public address beside it is refused too.
    resolve = named("93.184.216.34", inside)
    with pytest.raises(Refused, match="not of the public internet"):
        checked_address("hooks.example", 443, resolve=resolve)
    allowed = checked_address("Hooks.example", 443, allowed={"hooks.example"}, resolve=resolve)
    assert allowed == "93.184.216.34"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/",
        "ftp://hooks.example/",
        "https://",
        "https://ada:secret@hooks.example/",
        "https://hooks.example/#part",
        "https://hooks.example:99999/",
        "https://hooks.example:0/",
        "https://hooks.example/a b",
        "https://hooks.example/\r\nX: y",
        "https://hooks.example/" + "a" * 3000,
        "https://häuser.example/",
        "https://[::1/",
    ],
)
def test_urls_that_nothing_is_sent_to(url: str) -> None:
    with pytest.raises(UsageError):
        check_url(url)
    assert post(url, b"{}", {}, resolve=named()).status is None


def test_the_name_is_asked_once_and_the_checked_address_is_used(receiver: Receiver) -> None:
    """A name server that answers differently the second time leads nowhere else."""
    asked: list[str] = []

    def rebinding(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    url = receiver.url.replace("http://localhost", "http://127.0.0.1")
    assert post(url, b"{}", {}, allowed={"127.0.0.1"}, resolve=rebinding).accepted
    assert asked == ["127.0.0.1"]


def test_no_redirect_is_followed_and_no_proxy_is_asked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")
    with receiving() as other:
        receiver.statuses, receiver.location = [307], other.url
        answer = post(receiver.url, b"{}", {}, allowed={"localhost"})
        assert (answer.status, answer.accepted) == (307, False)
        assert other.got == []


@pytest.mark.parametrize("defended", [True, False])
def test_a_handshake_that_drips_is_left_too(
    monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """The time may run out in the middle of it, and its own timeout would begin anew."""
    dripping, ended, seen = threading.Event(), threading.Event(), []
    shake_hands = ssl.SSLSocket.do_handshake

    def begun(self: ssl.SSLSocket, block: bool = False) -> None:
        dripping.set()
        shake_hands(self, block)

    class WhenItDrips(threading.Thread):
        """In the timer's place: the time is up once a handshake has begun."""

        def __init__(self, _: float, end: Callable[[], None]) -> None:
            super().__init__(target=lambda: (dripping.wait(60), end(), ended.set()))

        def cancel(self) -> None:
            self.join()

    def drip() -> None:
        accepted, _ = server.accept()
        with accepted:
            # A record of 16 KiB with a ServerHello, whose first bytes are its random ones.
            accepted.sendall(bytes.fromhex("1603034000 02003ffc 0303"))
            ended.wait(60)
            accepted.settimeout(60 if defended else 0.2)
            try:
                while accepted.recv(4096):  # the client's own hello
                    pass
                seen.append("left")
            except ConnectionResetError:
                seen.append("left")
            except TimeoutError:
                seen.append("still there")

    if not defended:  # as before: the handshake goes over a socket that nobody can end
        real = ssl.SSLContext.wrap_socket

        def at_once(self: ssl.SSLContext, sock: socket.socket, **more: Any) -> ssl.SSLSocket:
            return real(self, sock, **more | {"do_handshake_on_connect": True})

        monkeypatch.setattr(ssl.SSLContext, "wrap_socket", at_once)
    monkeypatch.setattr(sending.threading, "Timer", WhenItDrips)
    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", begun)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"https://localhost:{server.getsockname()[1]}/"
        answer = post(url, b"{}", {}, allowed={"localhost"}, limit=120)
        thread.join()
    assert answer.why == "no answer within 120 s"
    assert seen == ["left" if defended else "still there"]


def test_tls_is_with_the_name_and_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving(certified(tmp_path)) as receiver:
        answer = post(receiver.url, b"{}", {}, allowed={"localhost"})
        assert "certificate is not accepted" in (answer.why or "")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls.crt"))
        assert post(receiver.url, b"{}", {}, allowed={"localhost"}).accepted
        # Of another name it is not accepted, at the same address.
        other = receiver.url.replace("localhost", "other.example")
        resolve = named("127.0.0.1")
        answer = post(other, b"{}", {}, allowed={"other.example"}, resolve=resolve)
        assert "certificate is not accepted" in (answer.why or "")
    assert len(receiver.got) == 1
    assert sending.LIMIT_S > 1
