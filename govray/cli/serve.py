"""``govray serve``: the service on this machine, without a cluster.

It listens on loopback unless told otherwise. Elsewhere it always authenticates, and leaves TLS to a
proxy in front.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import separation, trust
from govray.cli.option_group import Given, given_place
from govray.cli.output import LogFormat, RevocationLists, TrustRoot, line, note, report
from govray.cli.store import DEFAULT_STORE, Models, Store, indexing_settings, keep_indexed
from govray.errors import Refused, UsageError
from govray.storage.place import Place

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import FrameType

    import uvicorn
    from fastapi import FastAPI
    from sqlalchemy import Engine
    from starlette.types import ASGIApp

    from govray.governance.submission.register_client import RegisterDoor
    from govray.platform.indexing.indexer import IndexSettings as Indexing
    from govray.platform.service.visible.near_records import NearSearch

GRACE_SECONDS = 5
"""How long requests in flight may go on after SIGTERM or SIGINT. Live streams end with it."""


LARGEST_HEAD = 64 * 1024
"""Bytes of a request line and its header fields."""

MOST_CONNECTIONS = 800
"""Of all clients; below the usual 1,024 files of a process."""

RETRY_SECONDS = 30.0
"""How long the indexer waits after an unexpected error."""


def serve(
    store: Store = DEFAULT_STORE,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="The port to listen on; 0: any that is free."
        ),
    ] = 8585,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Make everyone admin; on loopback only.")
    ] = False,
    oidc: Annotated[
        Path | None,
        typer.Option("--oidc", metavar="FILE", help="An identity provider, as YAML."),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="ADDRESS",
            help="A proxy in front, whose X-Forwarded-For is trusted. Repeatable.",
        ),
    ] = None,
    storage: Annotated[
        Given | None,
        typer.Option(
            "--storage",
            metavar="DIR",
            parser=given_place,
            help="Keep the runs below DIR, a path or URL, indexed while serving.",
        ),
    ] = None,
    models: Models = None,
    tasks_port: Annotated[
        int | None,
        typer.Option(
            "--tasks-port",
            min=0,
            max=65535,
            help="Show notebooks, shells and TensorBoard on this port; 0: any.",
        ),
    ] = None,
    tasks_url: Annotated[
        str | None,
        typer.Option(
            "--tasks-url",
            metavar="URL",
            help="Each task's own address, such as https://{task}.tasks.example.org. Default on "
            "loopback: http://{task}.localhost:PORT.",
        ),
    ] = None,
    tasks_network: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks-network",
            metavar="CIDR",
            help="Connect to tasks in this network. Repeatable. Default: where the queue says.",
        ),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", metavar="FILE", help="Answer rights holders' cases, as YAML says."),
    ] = None,
    rights: Annotated[
        Path | None,
        typer.Option(
            "--rights",
            metavar="FILE",
            help="Name the file that says which adapter each caller may download. Default: none.",
        ),
    ] = None,
    presigned: Annotated[
        bool,
        typer.Option(
            "--presigned", help="Let files on an object store be fetched there, by signed URLs."
        ),
    ] = False,
    attestor: Annotated[
        str | None,
        typer.Option(
            "--attestor",
            metavar="URL",
            help="Register what is submitted with this attestor, such as http://127.0.0.1:8686.",
        ),
    ] = None,
    attestor_token: Annotated[
        Path | None,
        typer.Option(
            "--attestor-token", metavar="FILE", help="The attestor's token, in a file of mode 0600."
        ),
    ] = None,
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    jobs_account: Annotated[
        str | None,
        typer.Option(
            "--jobs-account",
            metavar="NAME",
            help="The account that runs the queue's jobs: a name, or UID:GID. Default: this one.",
        ),
    ] = None,
    log_format: LogFormat = "text",
) -> None:
    """Answer over HTTP what was trained on what, until SIGTERM or SIGINT."""
    from contextlib import ExitStack

    from sqlmodel import Session, col, select

    from govray.cli.task_proxy import serving_tasks, task_origins
    from govray.governance.signers.kept_memory import keep_memory
    from govray.governance.submission.http_exchange import is_loopback
    from govray.platform.service.acting.case_desk import read_cases
    from govray.platform.service.app import create_app
    from govray.platform.service.http.prometheus import Registered
    from govray.platform.service.http.settings import Settings
    from govray.platform.service.identity.code_flow import read_provider
    from govray.platform.store.database import open_store
    from govray.platform.store.tables import Token
    from govray.tune.experiment_cost import experiment_cost

    keep_memory()
    local = is_loopback(host)
    if no_auth and not local:
        raise Refused(
            "without authentication the service listens on loopback only",
            where=host,
            do="Leave --no-auth out and make tokens, or listen on 127.0.0.1",
        )
    if trust_root is not None:
        trust.root_path(trust_root)  # refused now, not at the first promotion
    proxies = [_address(each) for each in proxy or ()]
    provider = read_provider(oidc) if oidc else None
    desk = read_cases(cases) if cases else None
    told = (
        indexing_settings(storage, trust_root, revocations, "default", None, store, models=models)
        if storage
        else None
    )
    # The indexer has its own connections: its queries may take longer than the service allows.
    indexed = open_store(store, create=True) if told else None
    names = ("localhost", "127.0.0.1", "[::1]") if no_auth else ()
    shown = listen(host, tasks_port, "--tasks-port") if tasks_port is not None else None
    origins = (
        task_origins(
            shown, storage=storage, url=tasks_url, networks=tasks_network or [], local=local
        )
        if shown
        else None
    )
    settings = Settings(
        store=store,
        auth=not no_auth,
        hosts=names,
        tasks=origins,
        oidc=provider,
        trust_root=trust_root,
        revocations=tuple(revocations or ()),
        pinned=True,
        storage=storage,
        rights=rights,
        presigned=presigned,
        cases=desk,
        attestor=_register_door(attestor, attestor_token),
    )
    near = _near_search() if desk else None
    measures = Registered()
    app = create_app(settings, measures=measures, check=experiment_cost, near=near)
    if not no_auth:
        separation.refuse_several(
            app.state.engine, settings, models, jobs_account, "--jobs-account"
        )
    if not no_auth and provider is None:
        with Session(app.state.engine) as session:
            if session.exec(select(col(Token.id)).limit(1)).first() is None:
                note("There is no token yet, so only public data is served. Make one:")
                note("  govray token new --user NAME --role admin --scope admin")
                if local:
                    note("or, for yourself alone, start with --no-auth.")
    if no_auth:
        note("There is no authentication: everyone on this machine is admin.")
    stop = Event()
    if storage and told and indexed:
        note(f"Reading {storage}: until that is done, answers lack what lies there.")
        Thread(
            target=_index, args=(indexed, storage, told, stop, measures.indexed), daemon=True
        ).start()
    with ExitStack() as ending:
        ending.callback(stop.set)
        listening = ending.enter_context(listen(host, port, "--port"))
        if shown and origins:
            ending.enter_context(serving_tasks(store, origins, shown, proxies))
        _run(app, listening, host, proxies, as_json=log_format == "json")


def _register_door(url: str | None, token: Path | None) -> RegisterDoor | None:
    from govray.governance.submission.http_exchange import check_url
    from govray.governance.submission.register_client import RegisterDoor

    if url is None and token is None:
        return None
    if url is None or token is None:
        raise UsageError("--attestor and --attestor-token go together", do="Give both, or neither")
    return RegisterDoor(url=check_url(url, where="--attestor"), token_file=str(token))


def _near_search() -> NearSearch:
    from govray.data.similarity.near_copies import near_records

    return near_records


def _index(
    engine: Engine, storage: Place, settings: Indexing, stop: Event, passed: Callable[[int], None]
) -> None:
    """Keep ``storage`` indexed until ``stop``. Errors are reported, and indexing is tried again."""
    from govray.cli.error_report import describe

    first = True

    def looked_through(left_out: int) -> None:
        nonlocal first
        if first:
            note(f"{storage} was read: answers have what lies there.")
        first = False
        passed(left_out)

    while not stop.is_set():
        try:
            keep_indexed(engine, storage, settings, stop=stop, passed=looked_through)
        except Exception as error:
            why = describe(error).what
            note(f"Indexing failed: {why}. Trying again in {RETRY_SECONDS:g} s.")
            stop.wait(RETRY_SECONDS)


def listen(host: str, port: int, option: str) -> socket.socket:
    """A socket that accepts connections: a client may connect as soon as its address is printed."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"this address cannot be listened on ({error.strerror})",
            where=f"{host}:{port}",
            do=f"Give another {option}, or stop what listens there",
        ) from None
    return listening


def _run(
    app: FastAPI, listening: socket.socket, host: str, proxies: list[str], *, as_json: bool
) -> None:
    """Serve ``app`` until a signal, then return. ``as_json``: so it logs."""
    import signal

    import uvicorn

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    report({"address": address})
    line(f"govray serves {address}  (stop: Ctrl-C)")

    class Stopping(uvicorn.Server):
        """Tells live streams to end, which would otherwise delay the end of the server."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.streams.stopping = True
            super().handle_exit(sig, frame)

    if as_json:
        from govray.platform.service.identity.request_log import log_as_json

        log_as_json()
    server = Stopping(server_config(app, proxies, own_log=not as_json))
    # When it has stopped, uvicorn raises the signal again, for whoever handled it before.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[listening])


def server_config(
    app: ASGIApp,
    proxies: list[str],
    *,
    max_message: int = 0,
    own_log: bool = True,
    tls: tuple[Path, Path] | None = None,
) -> uvicorn.Config:
    """How uvicorn serves ``app``: within its own limits, nothing logged of a request. It has no
    limit on the time of a request's head: `deploy/haproxy.cfg` has, for strangers.

    Args:
        proxies: Addresses whose X-Forwarded-For is trusted. That of others is ignored, or a client
            could evade its rate limit.
        max_message: Bytes of a WebSocket's message; 0: there are no WebSockets.
        tls: A certificate and its key; None: it speaks plain HTTP.
    """
    import uvicorn
    from uvicorn.config import LOGGING_CONFIG

    return uvicorn.Config(
        app,
        http="h11",  # the one of uvicorn's parsers that bounds a head
        h11_max_incomplete_event_size=LARGEST_HEAD,
        limit_concurrency=MOST_CONNECTIONS,
        ssl_certfile=tls and tls[0],
        ssl_keyfile=tls and tls[1],
        ws="websockets-sansio" if max_message else "none",
        ws_max_size=max_message,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        log_config=LOGGING_CONFIG if own_log else None,
        log_level="warning",
        access_log=False,  # a URL may hold what somebody searches for
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise UsageError(
            f"{text[:60]!r} is not an IP address", where="--proxy", do="Give one, such as 10.0.0.5"
        ) from None
