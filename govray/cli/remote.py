"""Verbs that act through a service: ``govray --server URL train|tune|experiments|runs|model …``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import (
    catalogue,
    checkpoint,
    experiments,
    login,
    model,
    project,
    queue,
    remote_runs,
    role,
    task,
    token,
    usage,
    user_files,
    webhook,
)
from govray.cli.fetched import mib
from govray.cli.guessed_verbs import Family
from govray.cli.listing_verbs import listing_verb
from govray.cli.option_group import option_groups
from govray.cli.output import Overrides, StageBar, field, line, note, report
from govray.cli.server_option import service
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.platform.client import Client
    from govray.platform.wire.answers import ExperimentCheck, Run

app = typer.Typer(
    name="govray --server URL",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FAMILIES = {
    "experiments": experiments.app,
    "workspace": project.workspaces,
    "project": project.app,
    "role": role.app,
    "webhook": webhook.app,
    "task": task.app,
    "attestation": catalogue.attestations,
}
"""What only a service does, with ``--server`` or by the variable."""


@app.callback()
def there(
    server: Annotated[
        str | None,
        typer.Option("--server", hidden=True, help="For completion; it is taken before."),
    ] = None,
) -> None:
    """What acts through a service. Say govray login first, or set GOVRAY_TOKEN."""


Config = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="An experiment file, here; or --fork.")
]


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """What an experiment is submitted with."""

    overrides: Overrides = None
    fork: Annotated[
        str | None,
        typer.Option(
            "--fork", metavar="ID", help="Submit the file of an earlier experiment again."
        ),
    ] = None
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="NAME", help="The project that it counts for."),
    ] = None
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="The pool that it runs in.")
    ] = None
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", help="The priority in the pool's queue; the highest goes first."
        ),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="WORD", help="A tag to find it by. Repeatable."),
    ] = None
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIGEST", help="A working directory on the cluster."),
    ] = None
    working_dir: Annotated[
        Path | None,
        typer.Option(
            "--working-dir", metavar="DIR", help="A folder here that the job gets; sent if needed."
        ),
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", metavar="DIGEST", help="Refuse to run under another depth policy."
        ),
    ] = None
    check: Annotated[
        bool, typer.Option("--check", help="Submit nothing: say what it would take.")
    ] = False
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait until it has ended, and show step and loss.")
    ] = False


@app.command("train")
@option_groups
def train(options: SubmitOptions, config: Config = None) -> None:
    """Submit an experiment to the service's cluster."""
    _submit("train", config, options)


@app.command("tune")
@option_groups
def tune(options: SubmitOptions, config: Config = None) -> None:
    """Submit a search: an experiment file with a search section."""
    _submit("tune", config, options)


app.add_typer(queue.remote, name="queue", cls=Family)
app.add_typer(remote_runs.app, name="runs", cls=Family)
app.add_typer(model.remote, name="model", cls=Family)
app.add_typer(checkpoint.remote, name="checkpoint", cls=Family)
for _name, _family in FAMILIES.items():
    app.add_typer(_family, name=_name, cls=Family)
app.add_typer(catalogue.policies, name="policy", cls=Family)
app.add_typer(catalogue.corpora, name="corpus", cls=Family)
app.add_typer(token.remote, name="token", cls=Family)
app.command("login")(login.login)
app.command("logout")(login.logout)
app.command("whoami")(login.whoami)
app.command("usage")(usage.usage)
app.command("audit-log")(listing_verb("audit-log"))


def _submit(verb: str, config: Path | None, given: SubmitOptions) -> None:
    import secrets

    from govray.governance.formats.canonical_json import sha256
    from govray.governance.submission.code_archive import archived_names, packed
    from govray.train.inputs.own_code import require_sent
    from govray.tune.experiment_cost import parsed

    asked = {
        "set": given.overrides or [],
        "project": given.project,
        "pool": given.pool,
        "priority": given.priority,
        "tags": given.tag or [],
        "archive": given.archive,
        "policy": given.policy,
    }
    if (config is None) == (given.fork is None):
        raise UsageError("no experiment is given", do="Give a file, or --fork with an experiment")
    if config is not None:
        asked["file"] = user_files.read_text(config)
    if given.working_dir is not None and given.archive is not None:
        raise UsageError("--archive and --working-dir both name a folder", do="Give one of them")
    folder = None if given.working_dir is None else packed(given.working_dir)
    client = service()
    if given.fork is not None:
        asked["fork_of"] = given.fork
    if folder is not None:
        asked["archive"] = sha256(folder)
    cost = client.experiments.check(**asked)
    if given.fork is None and given.archive is None:
        sent = archived_names(folder, str(given.working_dir)) if folder is not None else None
        require_sent(
            parsed(cost.file, name=str(config))[0],
            sent or (),
            option="--working-dir .",
            starts=None if sent is None else f"jobs/{cost.kind}.py",
        )
    if cost.kind != verb:
        raise UsageError(
            "the file has a search section" if cost.kind == "tune" else "no search section",
            where=str(config or given.fork),
            do=f"Say govray {cost.kind}",
        )
    if given.check:
        _tell_cost(cost)
        return
    if folder is not None:
        _send(client, folder)
    # One key for one command: if the answer is lost on the way, the same request is safe.
    made = client.experiments.submit(**asked, idempotency_key=secrets.token_urlsafe(24))
    if given.follow:
        for now in client.follow(made.id, told=_tell_run):
            note(f"{now.id}  {now.state}{f': {now.why}' if now.why else ''}")
            made = now
    experiments.tell(made)


def _tell_run(run: Run) -> None:
    loss = "" if run.loss is None else f", loss {run.loss:.3f}"
    note(f"{run.id}  {run.state}: step {run.step} of {run.max_steps}{loss}")


def _send(client: Client, folder: bytes) -> None:
    """Send a working directory, unless the service has it."""
    sent = False

    with StageBar("sending the working directory", mib(len(folder))) as bar:

        def told(done: int, whole: int) -> None:
            nonlocal sent
            sent = True
            bar.update(mib(done), mib(whole), "MiB")

        digest = client.send_archive(folder, told=told)
    size = f"{len(folder) / (1 << 20):.1f} MiB"
    note(f"sent {size} as {digest}" if sent else f"the service has it already: {digest}")


def _tell_cost(cost: ExperimentCheck) -> None:
    report(cost.model_dump(by_alias=True))
    line(f"{cost.name}: {cost.kind}, for project {cost.project} in pool {cost.pool}")
    field("workers", f"{cost.slots} at once, {cost.gpus:g} GPUs")
    together = f", of {cost.runs:,} runs together" if cost.runs > 1 else ""
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
