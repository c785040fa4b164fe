"""The proxy of ``govray serve --tasks-port``: a second server, in a thread, on another port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from govray.cli.output import note
from govray.errors import UsageError
from govray.storage.place import Place

if TYPE_CHECKING:
    from govray.platform.service.http.origin import TaskOrigins

END_SECONDS = 10.0


def task_origins(
    listening: socket.socket,
    *,
    storage: Place | None,
    url: str | None,
    networks: list[str],
    local: bool,
) -> TaskOrigins:
    """Where tasks are shown by a server on ``listening``.

    Args:
        listening: Bound already, so that its port is known.
        url: As the user gave it; of a server on loopback there is a default.
        networks: As the user gave them. Without any, the queue says on which node a task runs.
    """
    from govray.platform.service.http.origin import TaskOrigins, network

    if storage is None:
        raise UsageError(
            "tasks say in the storage where they answer", where="--tasks-port", do="Give --storage"
        )
    if url is None and local:
        url = f"http://{{task}}.localhost:{listening.getsockname()[1]}"
    if url is None:
        raise UsageError(
            "each task is shown under a name of its own",
            where="--tasks-port",
            do="Give --tasks-url, such as https://{task}.tasks.example.org",
        )
    return TaskOrigins(url=url, storage=storage, networks=tuple(network(each) for each in networks))


@contextmanager
def serving_tasks(
    store: str, origins: TaskOrigins, listening: socket.socket, proxies: list[str]
) -> Iterator[None]:
    """Meanwhile, tasks are shown on ``listening``."""
    import uvicorn

    from govray.cli.serve import server_config
    from govray.platform.service.tasks.app import ProxyBounds, create_tasks_app
    from govray.platform.store.database import open_store

    app = create_tasks_app(open_store(store), origins)
    server = uvicorn.Server(server_config(app, proxies, max_message=ProxyBounds().max_message))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    note(f"Tasks are shown at {origins.of('ID')}")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(END_SECONDS)
