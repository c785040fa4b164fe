"""``govray queue``: work off the queue in front of Ray Jobs, and look into it.

``run`` is the reconciler. The others read and write the store alone, and need no cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli.changer import changer
from govray.cli.output import field, line, note, print_table, report, table
from govray.cli.place_argument import Given, given_place
from govray.cli.store import DEFAULT_STORE, Store, opened, opened_session
from govray.errors import CouldNotCheck, GovrayError, UsageError

if TYPE_CHECKING:
    from threading import Event

    from sqlmodel import Session

    from govray.platform.queue.reconcile import QueuePass, Reconciler
    from govray.platform.store.tables import Submission

app = typer.Typer(help="Queue experiments in front of a plain Ray cluster, by priority and share.")

Tell = Callable[..., None]
"""Says a line, with facts about it by name."""

LogFormat = Annotated[
    str, typer.Option("--log-format", help="text, or json: an object a line, on stderr.")
]

LOOK_S = 2.0
"""Between passes. Each asks the cluster for every job that runs."""
GLANCE_S = 0.25
"""Between looks for a new entry, which only ask the store. One is placed at once."""
RETRY_S = 15.0
"""How long the reconciler waits after the store failed."""

Entry = Annotated[str, typer.Argument(metavar="ID", help="The submission's id, from ls.")]
User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Who does it. Default: you.")
]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As deploy/queue.yaml.")],
    once: Annotated[bool, typer.Option("--once", help="Make one pass, and end.")] = False,
    log_format: LogFormat = "text",
) -> None:
    """Start, stop and follow jobs as the queue's order says, until SIGTERM or SIGINT."""
    from threading import Event

    from govray.platform.queue.progress import committed_below
    from govray.platform.queue.ray_jobs import RayJobs
    from govray.platform.queue.reconcile import Reconciler
    from govray.platform.queue.run_limits import RunLimits
    from govray.platform.queue.settings import read_queue
    from govray.platform.store.database import open_store
    from govray.storage.place import place
    from govray.train.run_folder.clock import instant

    tell = _teller(log_format)
    queue = read_queue(file)
    storage = place(queue.storage)
    token = queue.token()
    cluster = RayJobs(
        queue.address,
        storage,
        token=token,
        working_dir=queue.working_dir,
        runtime_env=_runtime_env,
    )
    stop = Event()
    with opened(open_store(queue.store)) as engine:
        reconciler = Reconciler(
            engine,
            cluster,
            queue.limits,
            holder=_own_name(),
            clock=instant,
            committed=committed_below(storage),
            run_limits=RunLimits(storage),
            retries=queue.retries,
        )
        if once:
            _one_pass(reconciler, tell)
            return
        _until_signal(stop)
        report({"address": queue.address})
        line(f"govray works off the queue on {queue.address}  (stop: Ctrl-C)")
        _passes(reconciler, stop, tell)
        reconciler.release()


@app.command("ls")
def ls(
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="Of this project alone.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The newest.")] = 100,
    store: Store = DEFAULT_STORE,
) -> None:
    """List the queue: what runs, what waits and where in its line, and what has ended."""
    from sqlalchemy.orm import defer
    from sqlmodel import col, select

    from govray.platform.store.tables import Submission

    statement = select(Submission).options(defer(Submission.config))  # type: ignore[arg-type]
    if project is not None:
        statement = statement.where(col(Submission.project) == project)
    newest = statement.order_by(col(Submission.submitted).desc(), col(Submission.id).desc())
    with opened_session(store) as session:
        rows = list(reversed(session.exec(newest.limit(limit)).all()))
        report([_to_json(row) for row in rows])
    if not rows:
        line("Nothing was submitted yet. Submit: govray queue submit FILE --project NAME")
        return
    grid = table(
        *("submission", "name", "project", "user", "state", "place", "pool", "priority", "slots"),
        *("tries", "why"),
        right=("place", "priority", "slots", "tries"),
    )
    for row in rows:
        grid.row(
            *(row.id, row.name, row.project, row.user, row.state, str(row.position or "")),
            *(row.pool, str(row.priority), str(row.slots), str(row.attempt), row.why or ""),
        )
    print_table(grid)


@app.command("show")
def show(id: Entry, store: Store = DEFAULT_STORE) -> None:
    """Show one submission, with the file that was sent."""
    with opened_session(store) as session:
        row = _find(session, id)
        report({**_to_json(row), "config": row.config})
        _show(row)
        line(row.config.rstrip())


@app.command("submit")
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    project: Annotated[str, typer.Option("--project", metavar="NAME")],
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            min=-1000,
            max=1000,
            help="Higher goes first. Else as the file says, or 0.",
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="NAME", help="Else as the file says, or default."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Repeatable.")
    ] = None,
    working_dir: Annotated[
        Path | None,
        typer.Option("--working-dir", metavar="DIR", help="What the job gets; archived now."),
    ] = None,
    storage: Annotated[
        Given | None,
        typer.Option(
            "--storage",
            metavar="DIR",
            parser=given_place,
            help="Where it is archived: the storage of queue.yaml.",
        ),
    ] = None,
    user: User = None,
    store: Store = DEFAULT_STORE,
) -> None:
    """Put an experiment into the queue, straight into the store."""
    from govray.governance.submission.code_archive import archive_folder
    from govray.platform.store import submissions
    from govray.tune.experiment_cost import experiment_cost

    text = _read(file)
    if (working_dir is None) != (storage is None):
        raise UsageError("a working directory is archived beside the runs", do="Give both options")
    archive = archive_folder(working_dir, storage) if working_dir and storage else None
    with opened_session(store) as session:
        text = _with_room(session, text, str(file), pool)
        asked = experiment_cost(text, name=str(file))
        row = submissions.submit(
            session,
            kind=asked.kind,
            name=asked.name,
            project=project,
            config=text,
            slots=asked.slots,
            least=asked.least,
            by=changer(user),
            pool=pool or asked.pool or "default",
            priority=priority if priority is not None else asked.priority or 0,
            archive=archive,
            tags=tag or (),
        )
        session.commit()
        report(_to_json(row))
        line(f"{row.id}  {row.state}")


@app.command("helm")
def helm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    project: Annotated[str, typer.Option("--project", metavar="NAME")],
) -> None:
    """Print an experiment as values of the Helm chart: on Kubernetes, Kueue holds the queue."""
    import yaml

    from govray.tune.chart_job import chart_job

    values = chart_job(_read(file), name=str(file), project=project)
    report(values)
    for each in yaml.safe_dump(values, sort_keys=False, allow_unicode=True).splitlines():
        line(each)


@app.command("stop")
def stop(id: Entry, user: User = None, store: Store = DEFAULT_STORE) -> None:
    """Let a submission commit and stop; a waiting one leaves the line at once."""
    _ask(id, "stop", user, store)


@app.command("kill")
def kill(id: Entry, user: User = None, store: Store = DEFAULT_STORE) -> None:
    """End a submission for good, unless somebody resumes it."""
    _ask(id, "kill", user, store)


@app.command("resume")
def resume(id: Entry, user: User = None, store: Store = DEFAULT_STORE) -> None:
    """Put what was stopped, killed or ended in an error back into the queue."""
    _ask(id, "resume", user, store)


def _runtime_env(row: Submission, folder: Path) -> dict[str, Any]:
    """What Ray is given for a submission: its folder, and what its experiment's environment says.
    Files that the environment names are those of the folder."""
    from govray.train.driver.job_environment import runtime_env
    from govray.tune.experiment_cost import parsed

    if row.kind not in ("train", "tune"):
        return {"working_dir": str(folder)}
    experiment, _, _ = parsed(row.config, name=f"submission {row.id}")
    environment = experiment.environment
    if environment is not None:
        named = {
            name: _inside(folder, str(value), f"environment.{name}")
            for name in ("pip", "uv_lock")
            if isinstance(value := getattr(environment, name), str | Path)
        }
        environment = environment.model_copy(update=named)
    return runtime_env(environment, str(folder))


def _inside(folder: Path, name: str, where: str) -> str:
    """A file of the folder: one of this machine would be sent to the cluster."""
    found = (folder / name).resolve()
    if not found.is_relative_to(folder.resolve()):
        raise UsageError(
            f"{name!r} lies outside the working directory", where=where, do="Name a file in it"
        )
    return str(found)


def _teller(log_format: str) -> Tell:
    """What says what happens: a note for people, or a line of JSON for programs."""
    if log_format not in ("text", "json"):
        raise UsageError(f"{log_format[:40]!r} is neither text nor json", where="--log-format")
    if log_format == "text":
        return lambda text, **_facts: note(text)
    import logging

    from govray.platform.service.identity.request_log import log_as_json

    log_as_json()
    log = logging.getLogger("govray.queue")

    def tell(text: str, *, wrong: bool = False, **facts: str | None) -> None:
        log.log(logging.WARNING if wrong else logging.INFO, "%s", text, extra=facts)

    return tell


def _one_pass(reconciler: Reconciler, tell: Tell) -> None:
    done = reconciler.once()
    reconciler.release()
    if done.unreachable or not done.holder:
        raise CouldNotCheck(done.unreachable or "another process works off the queue")
    report([{"id": each.id, "before": each.before, "after": each.after} for each in done.moves])
    _tell(done, None, tell)


def _passes(reconciler: Reconciler, stop: Event, tell: Tell) -> None:
    """Make passes until ``stop``. What fails is told once, and tried again."""
    from sqlalchemy.exc import DBAPIError

    from govray.cli.error_report import describe

    before: QueuePass | None = None
    while not stop.is_set():
        try:
            done = reconciler.once()
            _tell(done, before, tell)
            before = done
        except (GovrayError, DBAPIError, OSError) as error:
            failed = f"A pass failed: {describe(error).what}. Trying again in {RETRY_S:g} s."
            tell(failed, wrong=True)
            stop.wait(RETRY_S)
            continue
        _await_next(reconciler, stop)


def _await_next(reconciler: Reconciler, stop: Event) -> None:
    """Return when the next pass is due: after a while, or as soon as something was submitted."""
    import time

    from sqlalchemy.exc import DBAPIError

    due = time.monotonic() + LOOK_S
    while not stop.wait(GLANCE_S) and time.monotonic() < due:
        try:
            if reconciler.submitted():
                return
        except DBAPIError:
            return  # the pass tells it


def _tell(done: QueuePass, before: QueuePass | None, tell: Tell) -> None:
    if before is None or done.holder != before.holder:
        tell("This process works off the queue." if done.holder else "Another process does it.")
    if done.unreachable and (before is None or done.unreachable != before.unreachable):
        tell(f"Nothing moves for now: {done.unreachable}", wrong=True)
    for each in done.moves:
        why = f"  {each.why}" if each.why else ""
        tell(
            f"{each.id}  {each.name}  {each.before} → {each.after}{why}",
            submission=each.id,
            before=each.before,
            after=each.after,
        )
    for job in done.stray:
        tell(f"{job}  nobody follows it: told to stop", wrong=True, job=job)


def _until_signal(stop: Event) -> None:
    import signal

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stop.set())


def _own_name() -> str:
    """This process, by a name that no other has."""
    import os
    import secrets
    import socket

    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(
            f"the file cannot be read ({why})",
            where=str(file),
            do="Give an experiment file, such as jobs/train.yaml",
        ) from None


def _with_room(session: Session, text: str, name: str, pool: str | None) -> str:
    """The file, with how many workers a search may have where it does not say."""
    from govray.governance.submission.search_room import lacks_room, stated_pool, with_room
    from govray.governance.submission.yaml_overrides import read_mapping, written
    from govray.platform.store.pools import search_room

    config = read_mapping(text, name=name)
    if not lacks_room(config):
        return text
    room = search_room(session, pool or stated_pool(config) or "default")
    return text if room is None else written(with_room(config, room))


def _ask(id: str, what: str, user: str | None, store: str) -> None:
    from govray.platform.store import submissions

    with opened_session(store) as session:
        row = submissions.ask(session, _find(session, id), what, by=changer(user))
        session.commit()
        report(_to_json(row))
        line(f"{row.id}  {row.state}")


def _find(session: Session, id: str) -> Submission:
    from govray.platform.store.tables import Submission

    row = session.get(Submission, id)
    if row is None:
        raise UsageError(
            f"there is no submission {id[:80]!r}", where="ID", do="Run `govray queue ls`"
        )
    return row


def _show(row: Submission) -> None:
    line(f"{row.id}  {row.state}")
    shown = {
        "name": f"{row.name}  ({row.kind})",
        "project": row.project,
        "user": row.user,
        "pool": f"{row.pool}, {row.slots} slots, priority {row.priority}",
        "slots": _given(row),
        "place": row.position,
        "job": row.job,
        "tries": row.attempt or None,
        "failures": row.failures or None,
        "submitted": row.submitted,
        "started": row.started,
        "finished": row.finished,
        "why": row.why,
        "tags": " ".join(row.tags) or None,
    }
    for name, value in shown.items():
        if value is not None:
            field(name, value)


def _given(row: Submission) -> str | None:
    """What an elastic entry gave back, and to which; None if it has all its slots."""
    if row.cap is None:
        return None
    held = row.slots if row.held is None else row.held
    verb = "gives" if held > row.cap else "gave"
    return f"{verb} back {row.slots - row.cap} of {row.slots} slots to {row.gives_to}"


def _to_json(row: Submission) -> dict[str, Any]:
    """As the service shows it, and what it gives back: names in lowerCamelCase, no file."""
    names = {
        **{name: name for name in ("id", "kind", "name", "project", "user", "state", "position")},
        **{name: name for name in ("pool", "priority", "slots", "policy", "archive")},
        **{"forked_from": "forkedFrom", "run": "run", "job": "job", "attempt": "attempt"},
        **{name: name for name in ("failures", "submitted", "started", "finished", "why")},
        **{"archived": "archived", "tags": "tags"},
        **{"least": "least", "held": "held", "cap": "cap", "gives_to": "givesTo"},
    }
    return {shown: getattr(row, name) for name, shown in names.items()}
