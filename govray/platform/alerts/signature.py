"""The signature of what is sent: HMAC-SHA256 under the webhook's secret, in three headers.

Source: Standard Webhooks,
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md. A
receiver checks it with that project's libraries, or with the lines in docs/alerts.md. The time is
signed too, so that a receiver can refuse what is sent again by somebody else later.
"""

from __future__ import annotations

import base64
import hmac


def headers(secret: bytes, event: str, body: bytes, at: int) -> dict[str, str]:
    """The headers that go with ``body``. ``secret``: the webhook's 32 bytes. ``event``: the event's
    id, the same at every try. ``at``: now, in seconds since 1970."""
    signed = b"%s.%d.%s" % (event.encode(), at, body)
    mac = base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
    return {
        "webhook-id": event,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{mac}",
    }
