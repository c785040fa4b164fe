"""When a Jupyter server was last used, as it says itself.

Its ``/api/status`` knows of HTTP requests, WebSocket messages, terminals and what
jupyter-server-proxy forwards. A kernel that computes counts as used, whether anyone watches or not.
To ask counts as no use.

Source: Jupyter Server's REST API, ``/api/status`` and ``/api/kernels``; in its 2.21.1
``APIHandler.update_api_activity`` and ``ServerWebApplication.last_activity``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

_SECONDS = 10.0
_LONGEST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class JupyterServer:
    """A server that is running. ``address``: ``http://IP:PORT``. ``base``: the path that all of its
    addresses begin with, with a slash at either end."""

    address: str
    base: str
    token: str

    def idle(self, now: datetime) -> timedelta:
        """How long nobody has used it.

        Raises:
            OSError: It does not answer.
            ValueError: It answers something else.
        """
        status = self._ask("api/status")
        if any(each.get("execution_state") == "busy" for each in self._ask("api/kernels")):
            return timedelta()
        last = datetime.fromisoformat(str(status["last_activity"]).replace("Z", "+00:00"))
        return now - last.astimezone(UTC)

    def answers(self) -> bool:
        try:
            self._ask("api/status")
        except (OSError, ValueError):
            return False
        return True

    def _ask(self, path: str) -> Any:
        parts = urlsplit(self.address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
        try:
            connection.request(
                "GET",
                f"{self.base}{path}?no_track_activity=1",
                headers={"Authorization": f"token {self.token}"},
            )
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"{path}: {response.status}")
            return json.loads(response.read(_LONGEST))
        except HTTPException as error:
            raise ValueError(str(error)) from None
        finally:
            connection.close()
