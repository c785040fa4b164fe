"""``govray corpus``: turn files into a corpus with an unsigned credential, and list corpora.

Building needs pyarrow (the ``train`` extra). It signs nothing. The issuer completes
``credential.yaml`` and runs ``govray sign``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import source_files, user_files
from govray.cli.credential_options import LicenseCategory, Sensitivity, Use
from govray.cli.output import field, line, print_table, report, table
from govray.errors import Malformed, UsageError

if TYPE_CHECKING:
    from govray.governance.formats.document import Document
    from govray.governance.policy.credential import Credential, Period

app = typer.Typer(help="Build corpora and list them.")

SOURCE = "credential.yaml"


@app.command()
def build(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The folder with the files.")],
    name: Annotated[str, typer.Option("--name", help="The corpus's name.")],
    license: Annotated[
        str, typer.Option("--license", metavar="SPDX", help="An SPDX licence expression.")
    ],
    issuer: Annotated[
        str, typer.Option("--issuer", help="The authority that will sign the credential.")
    ],
    jurisdiction: Annotated[
        str, typer.Option("--jurisdiction", metavar="CC", help="ISO 3166-1; ZZ if none is known.")
    ],
    out_folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder of corpora.")
    ] = Path("data/corpora"),
    license_category: Annotated[
        LicenseCategory | None,
        typer.Option(
            "--license-category", help="Required for LicenseRef-*: the category of its terms."
        ),
    ] = None,
    sensitivity: Annotated[
        Sensitivity,
        typer.Option("--sensitivity", help="The sensitivity of the most sensitive record."),
    ] = "public",
    use: Annotated[
        Use | None,
        typer.Option("--use", help="What the terms allow. Default: what follows from the licence."),
    ] = None,
    valid_from: Annotated[
        str | None, typer.Option("--valid-from", metavar="TIME", help="Default: now.")
    ] = None,
    valid_until: Annotated[
        str | None, typer.Option("--valid-until", metavar="TIME", help="Default: 365 days later.")
    ] = None,
) -> None:
    """Hash the files below SRC into a corpus and write its unsigned credential."""
    from govray.data import corpus

    period = _period(valid_from, valid_until)

    def credential(built: corpus.Built) -> Credential:
        try:
            return corpus.unsigned_credential(
                built,
                license=license,
                issuer=issuer,
                valid=period,
                license_category=license_category,
                use=use,
                jurisdiction=jurisdiction,
                sensitivity=sensitivity,
            )
        except Malformed as error:
            raise UsageError(error.what, where=error.where, do=error.do) from None

    # A wrong option is found before an hour of hashing, not after.
    corpus.check_name(name)
    credential(corpus.Built(out_folder / name, name, "sha256:" + "0" * 64, 1, 0))
    built = corpus.build(out_folder, name, corpus.files_below(source))
    stated = credential(built)
    path = built.folder / SOURCE
    user_files.write(path, _yaml(stated))
    report(
        {
            "corpus": built.name,
            "folder": str(built.folder),
            "root": built.root,
            "records": built.count,
            "bytes": built.bytes,
            "credential": str(path),
        }
    )
    line(f"Corpus {built.name}: {built.count:,} records, {built.bytes:,} bytes")
    field("folder", built.folder)
    field("root", built.root)
    field("licence", f"{stated.license} ({stated.license_category})")
    line()
    line(f"Next  read {path}, complete it, then: govray sign {path} --key KEY")


@app.command()
def ls(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of corpora.")],
) -> None:
    """List the corpora in DIR with what their credentials state. Verifies nothing."""
    from govray.data import corpus

    rows = [_row(folder / name, corpus.CREDENTIAL_FILE) for name in corpus.list_corpora(folder)]
    report({"verified": False, "corpora": rows})
    grid = table("corpus", "records", "licence", "category", "sensitivity", "issuer", "credential")
    grid.columns[1].justify = "right"
    for row in rows:
        stated = row.get("credential", {})
        grid.row(
            row["corpus"],
            stated.get("records", {}).get("count", ""),
            stated.get("license", ""),
            stated.get("licenseCategory", ""),
            stated.get("sensitivity", ""),
            stated.get("issuer", ""),
            row["state"],
        )
    print_table(grid)


def _row(folder: Path, envelope_name: str) -> dict[str, Any]:
    from govray.governance.formats.dsse import Envelope
    from govray.governance.formats.statement import read
    from govray.governance.policy.credential import Credential

    envelope, source = folder / envelope_name, folder / SOURCE
    if envelope.is_file():
        where = str(envelope)
        opened = Envelope.parse(user_files.read(envelope), where=where)
        return _stated(folder, "signed", read(Credential, opened, where=where).document)
    if source.is_file():
        return _stated(folder, "unsigned", source_files.read(source).document)
    return {"corpus": folder.name, "state": "missing"}


def _stated(folder: Path, state: str, credential: Document) -> dict[str, Any]:
    return {"corpus": folder.name, "state": state, "credential": credential.to_json()}


def _period(start: str | None, stop: str | None) -> Period:
    from govray.governance.formats.document import format_time, parse_time
    from govray.governance.policy.credential import Period

    try:
        first = parse_time(start) if start else datetime.now(UTC)
        last = parse_time(stop) if stop else first + timedelta(days=365)
        period = {"from": format_time(first), "until": format_time(last)}
        return Period.from_json(period)
    except Malformed as error:
        raise UsageError(error.what, where="--valid-from, --valid-until", do=error.do) from None


def _yaml(credential: Credential) -> bytes:
    import yaml

    value = credential.model_dump(mode="json", by_alias=False, exclude_none=True)
    value["valid"] = {"from": credential.valid.from_, "until": credential.valid.until}
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return f"# Unsigned. Sign with: govray sign {SOURCE} --key KEY\n{text}".encode()
