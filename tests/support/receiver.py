"""A receiver of webhooks on this machine, which keeps what it gets and answers as it is told."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.web_server import Handler, web_server


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

    class Kept(Handler):
        def do_POST(self) -> None:
            told.got.append(({k.lower(): v for k, v in self.headers.items()}, self.body()))
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

    with web_server(Kept, tls=context) as port:
        told.url = f"{'https' if context else 'http'}://localhost:{port}/hook?a=1"
        yield told
