"""``govray model``: versions of models, the stage of each, and a copy of one.

A version is a folder that verifies. `register` verifies a folder of this machine, indexes it, and
binds the name and version to its attestation. The others ask the service.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from govray.cli import trust
from govray.cli.completion import ids
from govray.cli.fetched import Into, tell, with_bar
from govray.cli.option_group import option_groups
from govray.cli.output import field, line, report
from govray.cli.process import account_name
from govray.cli.run_records import run_corpora, run_records
from govray.cli.server_option import service
from govray.cli.store import DEFAULT_STORE, Store, opened_session
from govray.cli.told import tell_rows
from govray.cli.trust import Trusted
from govray.errors import UsageError

app = typer.Typer(help="Sign, export and register models; list, find, promote, download versions.")
remote = typer.Typer(help="Versions of models: register, list, find, promote, download.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The model's name.", autocompletion=ids)]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=TEXT", help="A label. Repeatable.")
]
Notes = Annotated[str, typer.Option("--notes", metavar="TEXT", help="Notes for people.")]


@app.command()
@option_groups
def register(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The model's name.")],
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="The version: MAJOR.MINOR.PATCH.")
    ],
    trusted: Trusted,
    label: Labels = None,
    notes: Notes = "",
    public: Annotated[
        bool, typer.Option("--public", help="Let anyone read the attestation.")
    ] = False,
    store: Store = DEFAULT_STORE,
) -> None:
    """Verify FOLDER, index it, and make a version of it.

    Nothing is written unless it verifies.
    """
    from govray.governance.formats.document import format_time
    from govray.governance.policy.record_commitment import read_secrets
    from govray.governance.verify.verifier import verify
    from govray.platform.store import registry
    from govray.platform.store.audit_log import ChangedBy
    from govray.platform.store.model_index import index_model
    from govray.platform.store.semantic_version import parse_version
    from govray.platform.store.store_secret import indexing_key

    anchor = trusted.anchor()
    registry.check_name(name)
    number = str(parse_version(version))
    labels = pairs(label or [], "--label")
    verified = verify(
        folder,
        trust_root=anchor,
        at=trusted.time(),
        records=run_records(folder),
    )
    counts = {name: each.document.records for name, each in verified.credentials.items()}
    with opened_session(store, create=True) as session:
        index_model(
            session,
            verified,
            trust_root=anchor.root,
            key=indexing_key(session, store),
            public=public or None,
            folder=str(verified.path.resolve()),
            secrets=read_secrets(run_corpora(verified.path), counts)[0],
        )
        row = registry.register(
            session,
            model=name,
            version=number,
            attestation=verified.digest,
            by=ChangedBy(user=account_name(), at=format_time(trust.reference_time(None))),
            labels=labels,
            notes=notes,
        )
        session.commit()
    judged = verified.attestation.validation
    stated = judged and {**judged.to_json(), "corpora": sorted(judged.corpora or ())}
    report({name: getattr(row, name) for name in _TOLD} | {"validation": stated})
    line(f"Registered {name} {number}", style="bold")
    field("verified", f"{len(verified.subjects)} files, signer {verified.signer}")
    field("attests", verified.digest)
    if verified.depth == "summary":
        field("records", "not at hand, so nobody finds them: register it beside its run's data")
    field("stage", "none: nothing uses it until it is promoted")


@remote.command()
def versions(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A model; without it: all models.")
    ] = None,
) -> None:
    """List the versions of a model, the highest first, or the models."""
    models = service().models
    none = "No model is registered. Register one: govray model register FOLDER --name NAME …"
    if name is None:
        tell_rows(models.list(), "model: name, in production: production", none)
        return
    columns = "version, stage, made: created, by: user, attestation: {attestation:.19}…"
    tell_rows(models.versions(name), columns, none)


@dataclass(frozen=True, kw_only=True)
class FindOptions:
    """What is asked of versions' attestations."""

    best: Annotated[
        int | None,
        typer.Option("--best", metavar="N", min=1, help="Show only the N best, by validation."),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="NAME", help="The validation's metric to judge by."),
    ] = None
    validated_on: Annotated[
        str | None,
        typer.Option(
            "--validated-on", metavar="CORPORA", help="The validation's corpora to judge by: a,b."
        ),
    ] = None
    at_least: Annotated[
        float | None,
        typer.Option("--at-least", metavar="NUMBER", help="The least value of the metric."),
    ] = None
    at_most: Annotated[
        float | None,
        typer.Option("--at-most", metavar="NUMBER", help="The greatest value of the metric."),
    ] = None
    license: Annotated[
        list[str] | None,
        typer.Option(
            "--license", metavar="CATEGORY", help="A licence that reached such a layer. Repeatable."
        ),
    ] = None
    without_license: Annotated[
        list[str] | None,
        typer.Option(
            "--without-license",
            metavar="CATEGORY",
            help="A licence that reached no such layer, nor may have. Repeatable.",
        ),
    ] = None
    without_corpus: Annotated[
        list[str] | None,
        typer.Option(
            "--without-corpus",
            metavar="CORPUS",
            help="A corpus that reached no such layer, nor may have. Repeatable.",
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="The layers meant, such as 'block.*'."),
    ] = None
    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            metavar="PATH",
            help="What counts as reaching: direct, or any (through other layers too).",
        ),
    ] = None
    assurance: Annotated[
        list[str] | None, typer.Option("--assurance", metavar="LEVEL", help="A label. Repeatable.")
    ] = None
    isolation: Annotated[
        list[str] | None, typer.Option("--isolation", metavar="WORD", help="A label. Repeatable.")
    ] = None
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="STAGE", help="List those in this stage.")
    ] = None


@remote.command()
@option_groups
def find(
    asked: FindOptions,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A model; without it: all models.")
    ] = None,
) -> None:
    """Find versions by what their attestations state.

    What one leaves open does not count as absent: unknown licences, unknown starts, and layers
    that the model has not.
    """
    wanted = vars(asked) | {"model": name, "best": True if asked.best else None}
    tell_rows(
        service().models.find(**wanted),
        "version: {model} {version}, stage, "
        "validation: {validation[metric]} {validation[value]:.6g}, on: validation, "
        "assurance, isolation, attestation: {attestation:.19}…",
        "No version is like that, of those whose attestation you may read whole",
        limit=asked.best,
        cells={"on": _judged_on},
    )


def _judged_on(row: dict[str, Any]) -> str:
    if row["validation"] is None:
        return "-"
    return ", ".join(row["validation"]["corpora"]) or "by its own loop"


@remote.command()
def promote(
    name: Name,
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="The version: MAJOR.MINOR.PATCH.")
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="STAGE", help="The stage: staging, production or archived."),
    ],
) -> None:
    """Move a version to a stage, if every gate of the service holds.

    Exit code 1: gates failed; each is named, and nothing was changed.
    """
    done = service().models.promote(name, version, stage=to)
    report(done.model_dump(by_alias=True))
    line(f"{name} {done.version}: {done.before} → {done.after}", style="bold")
    if done.replaced is not None:
        field("archived", f"{done.replaced}, which was in production")


@remote.command()
@option_groups
def download(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@VERSION]",
            help="A model. Default: its version in production.",
            autocompletion=ids,
        ),
    ],
    into: Into,
    trusted: Trusted,
) -> None:
    """Download a version's files to the new folder DIR, and verify them.

    DIR appears only once all is there, each file has its digest, and the model verifies. Without an
    adapter that you have no right to, the rest is downloaded and not verified.
    """
    from govray.governance.verify.verifier import verify

    anchor, at = trusted.anchor(), trusted.time()
    model, _, number = name.partition("@")
    signer: list[str] = []

    def check(folder: Path, whole: bool) -> None:
        if whole:
            signer.append(verify(folder, trust_root=anchor, at=at).signer)

    models = service().models
    version, done = with_bar(
        lambda told: models.download(model, number or None, into=into, told=told, check=check)
    )
    tell(
        f"{model} {version.version}",
        done,
        model=model,
        version=version.version,
        attestation=version.attestation,
        signer=signer[0] if signer else None,
    )
    field("verified", f"signer {signer[0]}" if signer else "no: files that it attests are left out")
    field("attests", version.attestation)


_TOLD = ("model", "version", "stage", "attestation", "labels", "notes", "created", "user")


def pairs(words: list[str], option: str) -> dict[str, str]:
    """NAME=VALUE words by name. Raises ``UsageError``: one isn't, or repeats a name."""
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key or key in found:
            raise UsageError(
                f"{word!r} is not NAME=VALUE, or repeats a name",
                where=option,
                do="Give each name once, as NAME=VALUE.",
            )
        found[key] = value
    return found


app.registered_commands += remote.registered_commands
