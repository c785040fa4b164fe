"""The servers of `benchmarks.service`: ``-m benchmarks.service_app KIND STORE PORT REPLICAS``

KIND is ``uvicorn`` or ``serve``. The application is measured as it is served. ``/empty`` is a
second application in the same process and on the same port, whose handler does nothing.
``/v1/empty`` is such a handler inside the application, behind its layers and for a known caller.
``/pid`` names the process, so that the benchmark can kill it. It prints READY when it answers, and
ends when standard input ends.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.service.identity.access import needs

READY = "READY"
UNLIMITED = 10**9


class Beside:
    """The application, and an empty one that shares only the server with it."""

    def __init__(self, app: FastAPI) -> None:
        self._app: ASGIApp = app
        self._empty = FastAPI()

        @self._empty.get("/empty")
        async def empty() -> dict[str, bool]:
            return {"ok": True}

        @self._empty.get("/pid")
        async def pid() -> dict[str, int]:
            return {"pid": os.getpid()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and scope["path"] in ("/empty", "/pid")
        await (self._empty if ours else self._app)(scope, receive, send)


def build(store: str) -> Beside:
    """The measured application, without a rate limit for one token."""
    app = create_app(Settings(store=store, rate=UNLIMITED, burst=UNLIMITED))

    @app.get("/v1/empty", dependencies=[needs("audit", whole=True)])
    async def empty() -> dict[str, bool]:
        return {"ok": True}

    return Beside(app)


def on_uvicorn(store: str, port: int) -> None:
    """Serve until standard input ends."""
    import uvicorn

    config = uvicorn.Config(build(store), port=port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)

    def watch() -> None:
        while not server.started:
            threading.Event().wait(0.02)
        print(READY, flush=True)
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run()


def on_serve(store: str, port: int, replicas: int) -> None:
    """The same on Ray Serve, as ``serve/`` configures it, with a fixed number of replicas."""
    import ray
    from ray import serve

    ray.init(num_cpus=4, log_to_driver=False)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": "127.0.0.1", "port": port},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )

    def built() -> Any:
        return build(store)

    @serve.deployment(
        name="govray",
        num_replicas=replicas,
        max_ongoing_requests=200,
        health_check_period_s=1,
        health_check_timeout_s=5,
        graceful_shutdown_timeout_s=2,
        ray_actor_options={"num_cpus": 0.5},
    )
    @serve.ingress(built)
    class Service:
        pass

    serve.run(Service.bind())
    print(READY, flush=True)
    sys.stdin.read()
    ray.shutdown()


def main() -> None:
    """Serve what the command line asks for."""
    kind, store, port, *more = sys.argv[1:]
    if kind == "uvicorn":
        on_uvicorn(store, int(port))
    else:
        on_serve(store, int(port), int(more[0]))


if __name__ == "__main__":
    main()
