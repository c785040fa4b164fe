"""The table of verbs.

One module per verb family, each a plain function or a small `typer.Typer`. To
add a verb: write ``govray/cli/<verb>.py`` and add its line to a table.

The modules are imported at every start, so at their top they import only the
standard library, typer, rich, `govray.errors` and `govray.cli`. What a verb
needs beyond that it imports inside its function: `govray --help` stays quick,
and a verb runs with exactly the extras that it uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer

from govray import __version__
from govray.cli import (
    adapter,
    alerts,
    audit,
    checkpoint,
    completion,
    corpus,
    cosign,
    doctor,
    export,
    influence,
    init,
    interactive,
    keys,
    login,
    model,
    policy,
    queue,
    remote,
    replay,
    report,
    runs,
    schema,
    serve,
    server_option,
    show,
    sign,
    store,
    token,
    trace,
    train,
    tune,
    usage,
    verify,
    view,
    witness,
)
from govray.cli.demo import command as demo
from govray.cli.guessed_verbs import Family
from govray.cli.listing_verbs import listing_verb
from govray.errors import UsageError
from govray.storage.storage_url import check_path

HELP = ("--help", "-h")


class Verbs(Family):
    """The verbs. To a verb that stands in a family, such as ``lint``, an error names the family."""

    def hint(self, family: str, word: str) -> str | None:
        whole = [
            f"'{family} {word}'"
            for family, command in self.commands.items()
            if word in getattr(command, "commands", {})
        ]
        return f" Did you mean {' or '.join(whole)}?" if whole else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each daily verb, and the names of all else by topic."""
        with formatter.section("Every day"):
            shown = {name: self.commands[name] for name in DAILY}
            formatter.write_dl([(name, each.short_help) for name, each in shown.items()])
        with formatter.section("The rest, by topic (govray NAME --help says more)"):
            rows = [(topic, ", ".join(verbs)) for topic, verbs in TOPICS.items()]
            formatter.write_dl(rows, col_max=20)


app = typer.Typer(
    name="govray",
    cls=Verbs,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": [*reversed(HELP)]},
)

_there = remote.FAMILIES
DAILY: Mapping[str, Callable[..., None]] = {
    "demo": demo.demo,
    "init": init.init,
    "doctor": doctor.doctor,
    "sign": sign.sign,
    "show": show.show,
    "train": train.train,
    "tune": tune.tune,
    "verify": verify.verify,
    "replay": replay.replay,
    "trace": trace.trace,
    "serve": serve.serve,
    "login": login.login,
}
"""What ``govray --help`` explains in a line each."""

TOPICS: Mapping[str, Mapping[str, Callable[..., None] | typer.Typer]] = {
    "data and policy": {
        "corpus": corpus.app,
        "policy": policy.app,
        "keys": keys.app,
        "schema": schema.schema,
        "prepare": train.prepare,
    },
    "runs": {
        "runs": runs.app,
        "checkpoint": checkpoint.app,
        "experiments": _there["experiments"],
        "task": interactive.app,
        "queue": queue.app,
    },
    "models": {
        "model": model.app,
        "attest": train.attest,
        "attestation": _there["attestation"],
        "adapter": adapter.app,
        "report": report.app,
        "view": view.app,
        "witness": witness.app,
    },
    "service": {
        "store": store.app,
        "alerts": alerts.app,
        "webhook": _there["webhook"],
        "usage": usage.usage,
        "audit-log": listing_verb("audit-log"),
    },
    "people": {
        "whoami": login.whoami,
        "logout": login.logout,
        "workspace": _there["workspace"],
        "project": _there["project"],
        "role": _there["role"],
        "token": token.app,
    },
    "shell": {"completion": completion.completion},
}
"""Topic → name → verb or family, as ``govray --help`` names them."""

BELOW: Mapping[typer.Typer, Mapping[str, Callable[..., None]]] = {
    model.app: {
        "cosign": cosign.cosign,
        "timestamp": cosign.timestamp,
        "export": export.export,
        "evidence": export.evidence,
        "influence": influence.influence,
    },
    runs.app: {"audit": audit.audit, "tensorboard": interactive.tensorboard},
    view.app: {"disclose": view.disclose},
}
"""Verbs of a family that stand in modules of their own."""

for _family, _below in BELOW.items():
    for _name, _verb in _below.items():
        _family.command(_name)(_verb)
for _verbs in (DAILY, *TOPICS.values()):
    for _name, _each in _verbs.items():
        if isinstance(_each, typer.Typer):
            app.add_typer(_each, name=_name, cls=Family)
        else:
            app.command(_name)(_each)


def verbs_here() -> frozenset[str]:
    """The verbs of this machine that stand in no family."""
    every = (DAILY, *TOPICS.values())
    return frozenset(
        name for each in every for name, one in each.items() if not isinstance(one, typer.Typer)
    )


def _verbs_of(of: typer.Typer, family: str) -> Mapping[str, Any]:
    return getattr(_command(of, family).commands.get(family), "commands", {})


def verbs_there(family: str) -> Mapping[str, Any]:
    """The verbs that a service has in a family."""
    return _verbs_of(remote.app, family)


@cache
def _command(of: typer.Typer, word: str | None = None) -> Any:
    """The verbs of ``of``: all, or what a line that begins with ``word`` needs of them. Reading the
    signatures of all takes a quarter of a second, so it is done for what is named."""
    command = typer.main.get_command(_needed(of, word) if word else of)
    _complete(command)
    return command


def _needed(of: typer.Typer, word: str) -> typer.Typer:
    """``of`` with the one verb or family that ``word`` names; all of it if it names none. For help
    it has all, with families whose verbs are left out: their names are not shown."""
    part = copy(of)
    if word in HELP:
        part.registered_groups = [copy(each) for each in of.registered_groups]
        for each in part.registered_groups:
            assert each.typer_instance is not None  # `add_typer` gives one
            each.typer_instance = copy(each.typer_instance)
            each.typer_instance.registered_commands = []
            each.typer_instance.registered_groups = []
        return part
    part.registered_commands = [each for each in of.registered_commands if each.name == word]
    part.registered_groups = [each for each in of.registered_groups if each.name == word]
    return part if part.registered_commands or part.registered_groups else of


def _complete(command: Any) -> None:
    """Let every verb below ``command`` refuse a URL where it takes a path. Where verbs are listed,
    the first sentence of its help stands whole."""
    for each in getattr(command, "commands", {}).values():
        each.short_help = each.get_short_help_str(limit=1000)
        _complete(each)
    verb = command.callback
    names = {
        each.name: next((opt for opt in each.opts if opt.startswith("-")), each.metavar)
        for each in command.params
    }

    def checked(**given: Any) -> Any:
        for name, value in given.items():
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path):
                    try:
                        check_path(path)
                    except ValueError as error:
                        raise UsageError(str(error), where=names[name]) from None
        return verb(**given)

    if verb is not None:
        command.callback = checked


def _chosen(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The verbs that a line can name, those of this machine or of a service; and its words."""
    named, rest = server_option.taken(words)
    server = named or os.environ.get(server_option.VARIABLE) or None
    there = _command(remote.app) if server else None
    if there and server_option.acts_there(
        rest, there.commands, partial(_verbs_of, app), option=named is not None
    ):
        server_option.use(server)
        return there, rest
    server_option.use(None)
    word = rest[0] if rest else HELP[0]
    return _command(app, word), rest


def run(words: Sequence[str]) -> int:
    """Parse and run one command line. Raises what the verb raises; returns the exit code."""
    if completion.ASKED in os.environ:
        before = completion.words()[:-1]  # the last one is begun
        _, verbs = server_option.taken(before)
        return completion.complete(_chosen(before if verbs else [*before, HELP[0]])[0])
    option, _ = server_option.taken(words)
    command, words = _chosen(words)
    try:
        # Not `command.main`: it would turn interrupts and broken pipes into
        # exits of its own before `govray.cli.main` sees them.
        with command.make_context("govray", list(words) or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        if server_option.chosen() and option is None:  # its words may be those of this machine
            variable = server_option.VARIABLE
            error.message += f" {variable} names a service; {variable}= before govray acts here."
        raise
    return 0


def _version(asked: bool) -> None:
    if not asked:
        return
    # These imports take a fifth of the start-up time, and the option is rare.
    import platform
    from importlib import metadata

    parts = [f"govray {__version__}", f"Python {platform.python_version()}"]
    for name in ("cryptography", "pydantic", "ray", "torch", "pyarrow"):
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            parts.append(f"{name} not installed")
    typer.echo(" · ".join(parts))
    raise typer.Exit


@app.callback()
def govray(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the versions."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error. Works after a verb too."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document, not text. Works after a verb too."),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Act through a service: train, tune, experiments, model. Others refuse it. "
            "govray --server URL --help shows how.",
        ),
    ] = None,
) -> None:
    """Train models so that each corpus reaches only the layers its signed policy allows.

    Exit codes: 0 done, 1 a check failed, 2 usage, 3 could not check, 75 stopped as requested.
    69: processes, nodes or the network failed, and another try may go well.
    """
