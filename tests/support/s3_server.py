"""moto's S3 as a process: ``python -m tests.support.s3_server PORT``.

``python -m moto.server`` lists its modules from the disk at each request, and opens a connection
and a thread for each. This one remembers, and keeps connections open as S3 does. Writes come one
after the other, since moto takes two of one condition that come at once.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple


class Dispatcher(DomainDispatcherApplication):
    """Looks for the service of a host once."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        self._known: dict[str | None, Any] = {}
        self._writing = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] not in ("PUT", "DELETE"):
            return super().__call__(environ, start_response)
        with self._writing:  # between moto's look at the tag and its write another may write
            return super().__call__(environ, start_response)

    def get_backend_for_host(self, host: str | None) -> Any:
        if host not in self._known:
            self._known[host] = super().get_backend_for_host(host)
        return self._known[host]


class KeptOpen(MotoRequestHandler):
    """Takes many requests by one connection, and notes none."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Nobody would read it."""


if __name__ == "__main__":
    port = int(sys.argv[1])
    run_simple("127.0.0.1", port, Dispatcher(), threaded=True, request_handler=KeptOpen)
