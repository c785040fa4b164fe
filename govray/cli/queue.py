"""``govray queue``: work off the queue in front of Ray Jobs or Kubernetes, and look at its pools.

``run`` is the reconciler, and ``helm`` needs nothing but a file. ``pools`` asks the service.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import process, separation, user_files
from govray.cli.listing_verbs import add_listings
from govray.cli.output import LogFormat, line, note, report
from govray.cli.store import opened
from govray.errors import CouldNotCheck, GovrayError, UsageError

if TYPE_CHECKING:
    from threading import Event

    from govray.platform.queue.attestor_register import AttestorRegister
    from govray.platform.queue.job import Cluster
    from govray.platform.queue.reconcile import QueuePass, Reconciler
    from govray.platform.queue.settings import Queue
    from govray.platform.store.tables import QueueEntry
    from govray.storage.place import Place

app = typer.Typer(help="Queue experiments in front of a plain Ray cluster, by priority and share.")
remote = typer.Typer(help="List the pools of the queue, as the service has them.")

Tell = Callable[..., None]
"""Says a line, with facts about it by name."""

LOOK_S = 2.0
"""Between passes. Each asks the cluster for every job that runs."""
GLANCE_S = 0.25
"""Between looks for a new entry, which only ask the store. One is placed at once."""
RETRY_S = 15.0
"""How long the reconciler waits after the store failed."""


@app.command()
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The queue's file, such as deploy/queue.yaml.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Make one pass, and end.")] = False,
    log_format: LogFormat = "text",
) -> None:
    """Start, stop and follow jobs as the queue's order says, until SIGTERM or SIGINT.

    While the account that runs jobs reaches what signs or what others submitted, it starts jobs of
    one user alone. `govray doctor` says what is in reach.
    """
    from threading import Event

    from sqlmodel import Session

    from govray.governance.signers.kept_memory import keep_memory
    from govray.platform.queue.attestor_register import AttestorRegister
    from govray.platform.queue.outcome import committed_below
    from govray.platform.queue.reconcile import Reconciler
    from govray.platform.queue.run_limits import RunLimits
    from govray.platform.queue.settings import read_queue
    from govray.platform.store import queue_entries
    from govray.platform.store.database import open_store
    from govray.storage.place import place
    from govray.train.run_folder.clock import instant

    keep_memory()
    tell = _teller(log_format)
    queue = read_queue(file)
    storage = place(queue.storage)
    register = AttestorRegister(queue.attestor.client()) if queue.attestor else None
    cluster = _cluster(queue, storage, register)
    stop = Event()
    open_to_jobs = next(separation.queue_findings(queue, file, separation.jobs_of(queue)), None)
    with opened(open_store(queue.store)) as engine:
        with Session(engine) as session:
            if open_to_jobs and len(queue_entries.users(session)) > 1:
                raise open_to_jobs
        reconciler = Reconciler(
            engine,
            cluster,
            queue.limits,
            holder=process.own_name(),
            clock=instant,
            committed=committed_below(storage),
            # Kueue admits a job with one number of pods: an elastic run there gives way whole.
            run_limits=None if queue.kubernetes else RunLimits(storage),
            retries=queue.retries,
            labels={name: slot.labels for name, slot in queue.slots.items()},
            gpus={name: slot.gpus for name, slot in queue.slots.items()},
            folder=queue.working_dir is not None,
            decided=register.decided if register else None,
            shared=str(open_to_jobs) if open_to_jobs else None,
        )
        if once:
            _one_pass(reconciler, tell)
            return
        process.until_signal(stop)
        report({"address": queue.address})
        line(f"govray works off the queue on {queue.address}  (stop: Ctrl-C)")
        _passes(reconciler, stop, tell)
        reconciler.release()


add_listings(remote, "queue")


@app.command("helm")
def helm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    project: Annotated[str, typer.Option("--project", metavar="NAME")],
) -> None:
    """Print an experiment as values of the Helm chart: on Kubernetes, Kueue holds the queue."""
    import yaml

    from govray.tune.chart_job import chart_job

    values = chart_job(user_files.read_text(file), name=str(file), project=project)
    report(values)
    for each in yaml.safe_dump(values, sort_keys=False, allow_unicode=True).splitlines():
        line(each)


def _cluster(queue: Queue, storage: Place, register: AttestorRegister | None) -> Cluster:
    """The back end that the queue's file names."""
    if queue.kubernetes is None:
        from govray.cli.init import deployment
        from govray.platform.queue.ray_jobs import RayJobs

        return RayJobs(
            queue.address,
            storage,
            token=queue.token(),
            working_dir=queue.working_dir,
            jobs=deployment() / "jobs",
            slots=queue.slots,
            runtime_env=_runtime_env,
            register=register,
        )
    from govray.platform.queue.kubernetes_api import KubernetesApi
    from govray.platform.queue.kubernetes_jobs import KubernetesJobs

    assert register is not None  # its section is checked
    api = KubernetesApi(queue.address, token=lambda: queue.token() or "", ca_file=queue.ca_file())
    return KubernetesJobs(
        api,
        storage,
        tenants=queue.kubernetes.projects,
        pods=queue.kubernetes,
        slots=queue.slots,
        working_dir=queue.working_dir,
        runtime_env=_runtime_env,
        asked=_asked,
        register=register,
    )


def _asked(row: QueueEntry) -> tuple[dict[str, str], str | None, int | None]:
    """What an experiment asks of the nodes of its workers."""
    from govray.tune.experiment_cost import parsed

    if row.kind not in ("train", "tune"):
        return {}, None, None
    resources = parsed(row.config, name=f"experiment {row.id}")[0].resources
    return resources.labels, resources.accelerator_type, resources.memory


def _runtime_env(row: QueueEntry, folder: Path) -> dict[str, Any]:
    """What Ray is given for an entry: its folder, and what its experiment's environment says.
    Files that the environment names are those of the folder."""
    from govray.train.driver.job_environment import runtime_env
    from govray.tune.experiment_cost import parsed

    if row.kind not in ("train", "tune"):
        return {"working_dir": str(folder)}
    experiment, _, _ = parsed(row.config, name=f"experiment {row.id}")
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
            entry=each.id,
            before=each.before,
            after=each.after,
        )
    for job in done.stray:
        tell(f"{job}  nobody follows it: told to stop", wrong=True, job=job)


app.registered_commands += remote.registered_commands
