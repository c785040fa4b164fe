"""What passes the proxy, and what does not."""

from __future__ import annotations

import pytest

from govray.platform.service.tasks.headers import confine, to_browser, to_program
from govray.platform.tasks.endpoint import Endpoint

ENDPOINT = Endpoint(
    task="s-1",
    kind="notebook",
    address="http://10.0.0.5:4321",
    token="t" * 43,
    landing="lab",
    started="2026-11-24T09:00:00Z",
)


def raw(**fields: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]


def test_the_program_gets_nothing_of_the_person() -> None:
    sent = to_program(
        raw(
            host="s-1.localhost",
            authorization="Bearer govr_secret",
            cookie="govray_token=govr_secret; govray_task=secret; GOVRAY_x=1; _xsrf=2|a; mine=b=c",
            origin="http://s-1.localhost",
            referer="http://s-1.localhost/enter?ticket=secret",
            x_forwarded_for="1.2.3.4",
            forwarded="for=1",
            connection="keep-alive, x-once",
            x_once="1",
            transfer_encoding="chunked",
            sec_websocket_key="k",
            accept="text/html",
        ),
        ENDPOINT,
    )
    assert sent == [
        ("accept", "text/html"),
        ("Cookie", "_xsrf=2|a; mine=b=c"),
        ("Authorization", f"token {ENDPOINT.token}"),
    ]


def test_the_browser_gets_nothing_that_reaches_beyond_the_task() -> None:
    shown = to_browser(
        [
            ("Content-Type", "text/html"),
            ("Set-Cookie", "_xsrf=1; Path=/; Domain=example.org; HttpOnly"),
            ("Set-Cookie", "govray_token=x; Path=/"),
            ("Access-Control-Allow-Origin", "*"),
            ("Service-Worker-Allowed", "/"),
            ("Clear-Site-Data", '"*"'),
            ("Location", "http://10.0.0.5:4321/tasks/s-1/lab"),
            ("Connection", "close, X-Hop"),
            ("X-Hop", "1"),
            ("Server", "TornadoServer"),
            ("Content-Security-Policy", "frame-ancestors 'none'"),
        ],
        ENDPOINT,
    )
    assert shown[:4] == [
        (b"content-type", b"text/html"),
        (b"content-security-policy", b"frame-ancestors 'none'"),
        (b"set-cookie", b"_xsrf=1; HttpOnly; Path=/tasks/s-1/"),
        (b"location", b"/tasks/s-1/lab"),
    ]
    assert {name for name, _ in shown[4:]} == {
        b"content-security-policy",
        b"cross-origin-opener-policy",
        b"cross-origin-resource-policy",
        b"origin-agent-cluster",
        b"referrer-policy",
    }


@pytest.mark.parametrize(
    "cookie", ["govray_task=x", " govray_task =x", "GOVRAY_TOKEN=x", "=x", "", "govray_token"]
)
def test_no_program_sets_a_cookie_of_ours(cookie: str) -> None:
    assert confine(cookie, "s-1") is None
