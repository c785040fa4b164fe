"""An application over HTTP, on a free port of this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The application's address while it listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(128)
        # uvicorn's own settings would close every handler, and absl's closes the stream it holds.
        config = uvicorn.Config(app, log_config=None, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        server.should_exit = server.force_exit = True
        thread.join(timeout=20)
