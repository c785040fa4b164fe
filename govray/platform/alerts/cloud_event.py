"""An alert as it is sent: a CloudEvent in structured mode, one JSON object.

Source: CloudEvents 1.0.2, https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md, and
its JSON format, ``formats/json-format.md``. ``source`` and ``id`` together tell events apart, so a
receiver that has seen a pair drops the second.
"""

from __future__ import annotations

import json
from typing import Any

from govray.platform.store.tables import Alert

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX = "dev.govray."
"""Before a kind: the reverse of a domain name, as the specification asks for."""

_SUBJECTS = {
    "run": "trials",
    "search": "experiments",
    "submission": "submissions",
    "credential": "corpora",
    "model": "attestations",
    "webhook": "webhooks",
}


def body(alert: Alert, source: str) -> bytes:
    """The event as JSON, the same bytes at every try. ``source``: a URI reference that names the
    service, from its operator."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": alert.id,
        "source": source,
        "type": TYPE_PREFIX + alert.kind,
        "subject": f"{_SUBJECTS[alert.kind.partition('.')[0]]}/{alert.subject}",
        "time": alert.at,
        "datacontenttype": "application/json",
        "data": {**alert.data, "project": alert.project},
    }
    return json.dumps(event, ensure_ascii=False, sort_keys=True, allow_nan=False).encode()
