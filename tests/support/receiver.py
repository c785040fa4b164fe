"""A receiver of webhooks on this machine, which keeps what it gets and answers as it is told."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """What came, and how it is answered."""

    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    slow: float = 0.0
    dribble: float = 0.0
    location: str | None = None


@contextmanager
def receiving(context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver on a free port; over TLS if a context is given."""
    told = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
            time.sleep(told.slow)
            try:
                if told.dribble:
                    while True:
                        self.wfile.write(b"H")
                        time.sleep(told.dribble)
                self.send_response(told.statuses.pop(0) if told.statuses else 204)
                if told.location:
                    self.send_header("Location", told.location)
                self.end_headers()
            except OSError:
                pass  # the sender has gone

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    told.url = f"{scheme}://localhost:{server.server_address[1]}/hook?a=1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield told
    server.shutdown()
    server.server_close()
