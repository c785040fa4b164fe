"""The page on alerts: the lines that verify a delivery are those that it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from govray.platform.alerts import delivery
from govray.platform.alerts.sending import LIMIT_S
from govray.platform.store.webhooks import KINDS
from tests.support.page_commands import part

PAGE = part("docs/watching.md", "Webhooks")


def shown() -> Callable[[str, dict[str, str], bytes], bool]:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[[str, dict[str, str], bytes], bool] = names["verified"]
    return found


def test_the_lines_of_the_page_verify_what_is_sent_and_nothing_else() -> None:
    verified, secret = shown(), bytes(range(32))
    text = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    now = int(time.time())
    headers = delivery.signature_headers(secret, "e1", b"{}", now)
    assert verified(text, headers, b"{}")
    assert verified(
        text, {**headers, "webhook-signature": f"v1,x {headers['webhook-signature']}"}, b"{}"
    )
    assert not verified(text, headers, b"{ }")
    assert not verified(text, {**headers, "webhook-id": "e2"}, b"{}")
    assert not verified(text, {**headers, "webhook-timestamp": str(now + 1)}, b"{}")
    assert not verified("whsec_" + "A" * 43 + "=", headers, b"{}")
    assert not verified(text, delivery.signature_headers(secret, "e1", b"{}", now - 900), b"{}")


def test_the_page_has_every_kind_and_the_numbers_that_hold() -> None:
    for kind in KINDS:
        assert f"`{kind}`" in PAGE
    assert f"within {LIMIT_S:g} seconds" in PAGE
    assert delivery.MOST_TRIES == 8
    assert delivery.LONGEST_DELAY.total_seconds() == 8 * 3600
    assert delivery.AT_ONCE == 2
