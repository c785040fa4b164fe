"""Verbs that act through a service: ``govray --server URL train|tune|runs|model``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import (
    group,
    login,
    model,
    project,
    role,
    template,
    token,
    user_files,
    webhook,
    workspace,
)
from govray.cli.output import Overrides, field, line, note, print_table, report, table
from govray.cli.progress import StageBar
from govray.cli.served import service
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.platform.client import Client
    from govray.platform.client.documents import ExperimentCheck, QueueEntry

app = typer.Typer(
    name="govray --server URL",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What acts through a service. Say govray login first, or set GOVRAY_TOKEN.",
)
runs = typer.Typer(
    help="List what was submitted, look into one, stop it, resume it, pin its checkpoints."
)

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="An experiment file, here.")]
Project = Annotated[
    str | None, typer.Option("--project", metavar="NAME", help="What it counts for.")
]
Pool = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Where it runs.")]
Priority = Annotated[
    int | None, typer.Option("--priority", help="Of a pool's queue the highest goes first.")
]
TagList = Annotated[
    list[str] | None, typer.Option("--tag", metavar="WORD", help="To find it by. Repeatable.")
]
Archive = Annotated[
    str | None,
    typer.Option("--archive", metavar="DIGEST", help="A working directory on the cluster."),
]
WorkingDir = Annotated[
    Path | None,
    typer.Option(
        "--working-dir", metavar="DIR", help="A folder here that the job gets; sent if needed."
    ),
]
PolicyDigest = Annotated[
    str | None,
    typer.Option("--policy", metavar="DIGEST", help="The depth policy that it has to have."),
]
Check = Annotated[bool, typer.Option("--check", help="Submit nothing: say what it would take.")]
Follow = Annotated[bool, typer.Option("--follow", help="Wait until it has ended.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="A submission's id.")]

RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id.")]
Step = Annotated[int, typer.Argument(metavar="STEP", min=0, help="Of the checkpoint.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For who reads it later.")]

_STATES = "QUEUED, RUNNING, PREEMPTING, STOPPING, KILLING, COMPLETED, STOPPED, KILLED or ERROR."


@app.command("train")
def train(
    config: Config,
    overrides: Overrides = None,
    project: Project = None,
    pool: Pool = None,
    priority: Priority = None,
    tag: TagList = None,
    archive: Archive = None,
    working_dir: WorkingDir = None,
    policy: PolicyDigest = None,
    check: Check = False,
    follow: Follow = False,
) -> None:
    """Submit an experiment to the service's cluster."""
    asked = _asked(overrides, project, pool, priority, tag, archive, policy)
    _submit("train", config, asked, working_dir, check=check, follow=follow)


@app.command("tune")
def tune(
    config: Config,
    overrides: Overrides = None,
    project: Project = None,
    pool: Pool = None,
    priority: Priority = None,
    tag: TagList = None,
    archive: Archive = None,
    working_dir: WorkingDir = None,
    policy: PolicyDigest = None,
    check: Check = False,
    follow: Follow = False,
) -> None:
    """Submit a search: an experiment file with a search section."""
    asked = _asked(overrides, project, pool, priority, tag, archive, policy)
    _submit("tune", config, asked, working_dir, check=check, follow=follow)


@runs.command("ls")
def list_runs(
    state: Annotated[str | None, typer.Option("--state", metavar="STATE", help=_STATES)] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="NAME", help="Of this project.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Of this user.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="With this tag.")] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="In this pool.")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Those that were archived.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The latest so many, at most.")] = 50,
) -> None:
    """List what was submitted, the latest first."""
    from itertools import islice

    found = service().experiments.list(
        state=state,
        project=project,
        user=user,
        tag=tag,
        pool=pool,
        archived=archived or None,
    )
    items = list(islice(found, limit))
    report([each.model_dump(by_alias=True) for each in items])
    if not items:
        line("No submission is like that. Submit: govray --server URL train FILE")
        return
    grid = table("id", "name", "project", "user", "state", "place", "run", right=("place",))
    for each in items:
        place = "" if each.position is None else str(each.position)
        grid.row(each.id, each.name, each.project, each.user, each.state, place, each.run or "")
    print_table(grid)


@runs.command("show")
def show(submission: Id) -> None:
    """Show one: its state and why, its place in the queue, its run."""
    _tell(service().experiments.get(submission))


@runs.command("stop")
def stop(submission: Id) -> None:
    """Stop one after its current step and a commit."""
    _tell(service().experiments.stop(submission))


@runs.command("kill")
def kill(submission: Id) -> None:
    """End one at once; steps since its last checkpoint are lost."""
    _tell(service().experiments.kill(submission))


@runs.command("resume")
def resume(submission: Id) -> None:
    """Put back into the queue what was stopped, killed or failed."""
    _tell(service().experiments.resume(submission))


@runs.command("pins")
def list_pins(run: RunId) -> None:
    """List the checkpoints of a run that stay whatever its rules say."""
    found = service().runs.pins(run).items
    report([each.model_dump(by_alias=True) for each in found])
    grid = table("step", "why", right=("step",))
    for each in found:
        grid.row(str(each.step), each.reason or "")
    print_table(grid)


@runs.command("pin")
def pin(run: RunId, step: Step, reason: Reason = "") -> None:
    """Keep a checkpoint whatever the run's rules say."""
    done = service().runs.pin(run, step, reason=reason)
    report(done.model_dump(by_alias=True))
    line(f"{run} step {done.step}: {done.reason}")


@runs.command("unpin")
def unpin(run: RunId, step: Step) -> None:
    """Let the run's rules decide about a checkpoint again, unless another run starts from it."""
    done = service().runs.unpin(run, step)
    report(done.model_dump(by_alias=True))
    line(f"{run} step {done.step}: not pinned")


app.add_typer(runs, name="runs")
app.add_typer(model.remote, name="model")
app.add_typer(workspace.app, name="workspace")
app.add_typer(project.app, name="project")
app.add_typer(template.app, name="template")
app.add_typer(group.app, name="group")
app.add_typer(role.app, name="role")
app.add_typer(webhook.app, name="webhook")
app.add_typer(token.remote, name="token")
app.command("login")(login.login)
app.command("logout")(login.logout)


def _asked(
    overrides: list[str] | None,
    project: str | None,
    pool: str | None,
    priority: int | None,
    tags: list[str] | None,
    archive: str | None,
    policy: str | None,
) -> dict[str, Any]:
    return {
        "set": overrides or [],
        "project": project,
        "pool": pool,
        "priority": priority,
        "tags": tags or [],
        "archive": archive,
        "policy": policy,
    }


def _submit(
    verb: str,
    config: Path,
    asked: dict[str, Any],
    working_dir: Path | None,
    *,
    check: bool,
    follow: bool,
) -> None:
    import secrets

    from govray.governance.submission.code_archive import packed

    try:
        text = user_files.read(config).decode()
    except UnicodeDecodeError:
        raise UsageError("not UTF-8", where=str(config)) from None
    if working_dir is not None and asked["archive"] is not None:
        raise UsageError("--archive and --working-dir both name a folder", do="Give one of them")
    folder = None if working_dir is None else packed(working_dir)
    client = service()
    cost = client.experiments.check(file=text, **asked)
    if cost.kind != verb:
        raise UsageError(
            "the file has a search section" if cost.kind == "tune" else "no search section",
            where=str(config),
            do=f"Say govray {cost.kind} {config}",
        )
    if check:
        _tell_cost(cost)
        return
    if folder is not None:
        asked["archive"] = _send(client, folder)
    # One key for one command: if the answer is lost on the way, the same request is safe.
    made = client.experiments.submit(file=text, **asked, idempotency_key=secrets.token_urlsafe(24))
    if follow:
        for now in client.follow(made.id):
            note(f"{now.id}  {now.state}{f': {now.why}' if now.why else ''}")
            made = now
    _tell(made)


def _send(client: Client, folder: bytes) -> str:
    """Send a working directory, unless the service has it; the digest of its archive."""
    sent = False

    with StageBar("sending the working directory", _mib(len(folder))) as bar:

        def told(done: int, whole: int) -> None:
            nonlocal sent
            sent = True
            bar.update(_mib(done), _mib(whole), "MiB")

        digest = client.send_archive(folder, told=told)
    size = f"{len(folder) / (1 << 20):.1f} MiB"
    note(f"sent {size} as {digest}" if sent else f"the service has it already: {digest}")
    return digest


def _mib(size: int) -> int:
    return -(-size // (1 << 20))


def _tell_cost(cost: ExperimentCheck) -> None:
    report(cost.model_dump(by_alias=True))
    line(f"{cost.name}: {cost.kind}, for project {cost.project} in pool {cost.pool}")
    field("workers", f"{cost.slots} at once, {cost.gpus:g} GPUs")
    together = f", of {cost.trials:,} trials together" if cost.trials > 1 else ""
    if cost.steps is not None:
        field("steps", f"at most {int(cost.steps):,}{together}")
    field("rows", f"{cost.rows_per_step:g} a step")
    if cost.tokens is not None:
        field("tokens", f"{int(cost.tokens):,}")
    known = cost.policy
    named = f"{known.name} version {known.version}, {known.digest}" if known else "not known"
    field("policy", f"{cost.policy_place}: {named}")
    for each in cost.unknown:
        field("not said", each)


def _tell(row: QueueEntry) -> None:
    report(row.model_dump(by_alias=True))
    line(f"{row.id}  {row.state}")
    field("name", f"{row.name}, {row.kind}")
    field("by", f"{row.user}, project {row.project}, pool {row.pool}")
    if row.position is not None:
        field("place", f"{row.position} of its pool's queue, by priority and time")
    for name, value in (("run", row.run), ("job", row.job), ("why", row.why)):
        if value:
            field(name, value)
    if row.tags:
        field("tags", ", ".join(row.tags))
