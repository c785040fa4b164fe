"""``govray store``: make, upgrade, fill and rebuild the index of what runs left on storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import trust
from govray.cli.option_group import Given, Storage, given_place
from govray.cli.output import RevocationLists, TrustRoot, field, line, note, report
from govray.cli.process import account_name
from govray.cli.run_records import run_corpora, run_records
from govray.errors import Refused, UsageError
from govray.storage.place import Place

if TYPE_CHECKING:
    from threading import Event

    from sqlalchemy import Engine
    from sqlmodel import Session

    from govray.governance.trust.anchor import TrustAnchor
    from govray.platform.indexing.indexer import IndexReport, IndexSettings
    from govray.platform.indexing.sweep import Swept
    from govray.platform.indexing.unnamed_archives import Unnamed

app = typer.Typer(help="Make, fill and rebuild the index of runs and models.")

DEFAULT_STORE = "sqlite:///govray.db"
_LOOK_S = 2.0
_RETAIN_S = 600.0
"""Between looks for runs that no project's retention keeps."""
_ARCHIVES_S = 86_400.0
"""Between looks for archives that nothing names: each reads the records of all runs."""

Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="GOVRAY_STORE",
        help="sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE.",
    ),
]
Models = Annotated[
    Path | None,
    typer.Option(
        "--models", metavar="DIR", help="Take models from DIR alone, where an attestor puts them."
    ),
]
Project = Annotated[
    str, typer.Option("--project", metavar="NAME", help="Count new experiments for this project.")
]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", help="Count new experiments for this user. Default: you."
    ),
]


@app.command("upgrade")
def upgrade(store: Store = DEFAULT_STORE) -> None:
    """Make a store, or upgrade its tables."""
    from govray.platform.store import database
    from govray.platform.store import database as upgrading

    address = database.parse_url(store)
    shown = address.render_as_string(hide_password=True)
    with opened(database.connect(address)) as engine:
        with engine.connect() as connection:
            before = upgrading.revision(connection)
        if before is None or before in upgrading.revisions():
            upgrading.to_head(engine)
    database.open_store(store).dispose()  # refuses a newer govray's
    report({"store": shown, "before": before, "revision": upgrading.head()})
    line(f"{shown}  at revision {upgrading.head()}")


@app.command("index")
def index(
    storage: Storage,
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    models: Models = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Look again every 2 s, until interrupted.")
    ] = False,
    project: Project = "default",
    user: User = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Index the runs below a storage path, and their models that verify."""
    from threading import Event

    from govray.platform.store.database import open_store

    settings = indexing_settings(
        storage, trust_root, revocations, project, user, store, models=models
    )
    with opened(open_store(store, create=True)) as engine:
        if follow:
            keep_indexed(engine, storage, settings, stop=Event(), passed=lambda left_out: None)
        done = _index(engine, storage, settings)
    _tell(done)


def keep_indexed(
    engine: Engine,
    storage: Place,
    settings: IndexSettings,
    *,
    stop: Event,
    passed: Callable[[int], None],
) -> None:
    """Index every `_LOOK_S` seconds until ``stop``; report what is left out when it changes.
    ``passed`` is called when all of it was looked through, with how many are left out."""
    import time

    told: dict[str, str] = {}
    begin, retain_next, archives_next = "", 0.0, 0.0
    while not stop.is_set():
        done = _look(engine, storage, settings, begin)
        _tell_left_out({k: v for k, v in done.left_out.items() if told.get(k) != v})
        told, begin = (told if begin or done.next else {}) | done.left_out, done.next or ""
        if not begin and not done.behind:
            passed(len(told))
            retaining = time.monotonic() >= retain_next
            if retaining:
                retain_next = time.monotonic() + _RETAIN_S
            _sweep(engine, storage, attestor=settings.models is not None, retaining=retaining)
            if time.monotonic() >= archives_next:
                archives_next = time.monotonic() + _ARCHIVES_S
                for name, why in _remove_unnamed(engine, storage).stay.items():
                    note(f"What nothing names stays, for {name}: {why}")
            stop.wait(_LOOK_S)


@app.command("sweep")
def sweep(storage: Storage, models: Models = None, store: Store = DEFAULT_STORE) -> None:
    """Remove what is marked and due below a storage path, and archives that nothing names.

    A service with --storage, and index --follow, do the same.
    """
    from govray.platform.store.database import open_store

    with opened(open_store(store)) as engine:
        done = _sweep(engine, storage, attestor=models is not None)
        unnamed = _remove_unnamed(engine, storage)
    report(
        asdict(done)
        | {
            "archives": unnamed.removed,
            "prepared": unnamed.prepared,
            "unnamedStay": unnamed.stay,
        }
    )
    line(
        f"SWEPT  {len(done.removed)} runs, {len(unnamed.removed)} archives of code and "
        f"{len(unnamed.prepared)} of prepared data removed"
    )
    for below in done.left:
        field("gone", f"files in {below}")
    for run, why in done.kept.items():
        field("kept", f"{run}: {why}")
    for name, why in unnamed.stay.items():
        field("unnamed stay", f"{name}: {why}")


def _sweep(engine: Engine, storage: Place, *, attestor: bool, retaining: bool = True) -> Swept:
    from govray.governance.formats.document import format_time
    from govray.platform.indexing.sweep import retain
    from govray.platform.indexing.sweep import sweep as remove_due
    from govray.train.run_folder.clock import instant

    at = format_time(instant())
    if retaining:
        retain(engine, storage, at=at, attestor=attestor)
    return remove_due(engine, storage, at=at, attestor=attestor)


def _remove_unnamed(engine: Engine, storage: Place) -> Unnamed:
    from govray.governance.formats.document import format_time
    from govray.platform.indexing.unnamed_archives import remove_unnamed
    from govray.train.run_folder.clock import instant

    return remove_unnamed(engine, storage, at=format_time(instant()))


@app.command("rebuild")
def rebuild(
    storages: Annotated[
        list[Given],
        typer.Argument(
            metavar="STORAGE…", parser=given_place, help="Every storage path to index, or its URL."
        ),
    ],
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    models: Models = None,
    project: Project = "default",
    user: User = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Make the index again from storage alone, and replace the old one.

    Kept, because storage does not hold them: accounts, tokens, the registry, the audit log, the
    projects and users of experiments, and what is public. Rows of what storage no longer has are
    dropped.
    """
    from sqlmodel import Session

    from govray.governance.signers.kept_memory import keep_memory
    from govray.platform.indexing.indexer import LEFT_OUT, IndexReport, why_left_out
    from govray.platform.indexing.model_rows import index_folder
    from govray.platform.store.database import open_store
    from govray.platform.store.rebuild import rebuild as make_again
    from govray.platform.store.rebuild import registered_folders
    from govray.platform.store.store_secret import load_key

    keep_memory()
    whole = IndexReport()
    key = load_key(store)  # also a new one: the old index goes
    settings = [
        indexing_settings(
            each, trust_root, revocations, project, user, store, key=key, models=models
        )
        for each in storages
    ]
    engine = open_store(store)

    def fill(new: Engine) -> None:
        for storage, told in zip(storages, settings, strict=True):
            part = _index(new, storage, replace(told, queue=engine))
            whole.add(part)
        # Models that were registered from elsewhere than a run's folder.
        for folder in registered_folders(engine, new).values():
            try:
                with Session(new) as session:
                    index_folder(
                        session,
                        given_place(folder),
                        settings[0].anchor(),
                        settings[0].key,
                        corpora=run_corpora(given_place(folder)),
                        records=run_records(given_place(folder)),
                    )
                    session.commit()
                whole.models += 1
            except LEFT_OUT as error:
                whole.left_out[folder] = why_left_out(error)

    with opened(engine):
        make_again(engine, fill)
    _tell(whole)


@contextmanager
def opened(engine: Engine) -> Iterator[Engine]:
    """``engine``, whose driver's errors become ones that a user can read."""
    from sqlalchemy.exc import DBAPIError

    from govray.platform.store.database import unreachable

    try:
        yield engine
    except DBAPIError as error:
        raise unreachable(error, engine.url.render_as_string(hide_password=True)) from None
    finally:
        engine.dispose()


@contextmanager
def opened_session(store: str, *, create: bool = False) -> Iterator[Session]:
    """A session on the store at this URL, made first if ``create`` says so."""
    from sqlmodel import Session

    from govray.platform.store.database import open_store

    with (
        opened(open_store(store, create=create)) as engine,
        Session(engine, expire_on_commit=False) as session,
    ):
        yield session


def indexing_settings(
    storage: Place,
    trust_root: Path | None,
    revocations: Sequence[Path] | None,
    project: str,
    user: str | None,
    store: str,
    *,
    key: bytes | None = None,
    models: Path | None = None,
) -> IndexSettings:
    """What the indexer is told, checked before the first look. Raises `Refused`: the trust root
    lies below the storage, or is no trust root."""
    if not storage.is_dir():
        raise UsageError("no such folder", where=str(storage), do="Give a storage path of runs")

    from govray.platform.indexing.indexer import IndexSettings

    root = trust.root_path(trust_root)
    if isinstance(storage, Path) and root.resolve().is_relative_to(storage.resolve()):
        raise Refused(
            "a trust root inside the storage that it verifies is never trusted",
            where=str(root),
            do="Get the trust root from its owner, not from the storage",
        )

    def anchor() -> TrustAnchor:
        return trust.anchor(trust_root, revocations).as_feed()  # for models of many suppliers

    anchor().load(at=trust.reference_time(None))  # refused now, not run by run
    return IndexSettings(
        anchor=anchor,
        key=key or _key(store),
        project=project,
        user=user or account_name(),
        models=models,
    )


def _key(store: str) -> bytes:
    """The secret that ``store`` is indexed under, made where nothing is indexed yet."""
    from govray.governance.signers.kept_memory import keep_memory
    from govray.platform.store.store_secret import indexing_key

    keep_memory()
    with opened_session(store, create=True) as session:
        return indexing_key(session, store)


def _index(engine: Engine, storage: Place, settings: IndexSettings) -> IndexReport:
    """Look until all is indexed."""
    from govray.platform.indexing.indexer import IndexReport

    whole = IndexReport(next="")
    while whole.next is not None or whole.behind:
        whole.add(_look(engine, storage, settings, whole.next or ""))
    return whole


def _look(engine: Engine, storage: Place, settings: IndexSettings, begin: str) -> IndexReport:
    from govray.platform.indexing.indexed_search import IndexedSearch
    from govray.platform.indexing.indexer import index_storage

    found: list[IndexedSearch] = []
    left_out: dict[str, str] = {}
    # Searches lie on a disk; what reads them loads Ray.
    if isinstance(storage, Path) and any(storage.glob("*/search.json")):
        from govray.platform.indexing.index_source import searches

        found, left_out = searches(storage)
    done = index_storage(engine, storage, settings, found, begin=begin)
    done.left_out |= left_out
    return done


def _tell(done: IndexReport) -> None:
    report({"runs": done.runs, "newModels": done.models, "leftOut": done.left_out})
    line(f"INDEXED  {done.runs} runs, {done.models} models new")
    for folder, why in done.left_out.items():
        field("left out", f"{folder}: {why}")
    if done.left_out:
        raise typer.Exit(1)


def _tell_left_out(left_out: dict[str, str]) -> None:
    for folder, why in left_out.items():
        note(f"left out  {folder}: {why}")
