"""``govray corpus``: turn files into a corpus with an unsigned credential; list, compare, index.

Building needs pyarrow (the ``trace`` extra). It signs nothing. The issuer completes
``credential.yaml`` and runs ``govray sign``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import source_files, user_files
from govray.cli.corpus_source import CorpusSource, FlawOption, SourceArgument
from govray.cli.option_group import LicenseCategory, Sensitivity, Use, option_groups
from govray.cli.output import field, line, print_table, report, table
from govray.errors import Malformed, UsageError

if TYPE_CHECKING:
    from govray.data import corpus
    from govray.data.similarity.index_build import BuildParts
    from govray.data.sources.quarantine import RecordFilter
    from govray.governance.formats.document import Document
    from govray.governance.policy.credential import Credential
    from govray.governance.policy.pii_scan import PiiScan

app = typer.Typer(help="Build corpora, list, compare and index them, and open single records.")

SOURCE = "credential.yaml"

_NO_DIGEST = "sha256:" + "0" * 64  # of a corpus that is not built yet
_SHOWN = 20  # rows of the quarantine that go to the terminal; the file has all


@app.command()
@option_groups
def build(
    source: SourceArgument,
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
    made_of: CorpusSource,
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
    ] = "restricted",
    use: Annotated[
        Use | None,
        typer.Option("--use", help="What the terms allow. Default: what follows from the licence."),
    ] = None,
    on_flaw: FlawOption = "refuse",
) -> None:
    """Hash the records of SRC into a corpus and write its unsigned credential."""
    from govray.data import corpus
    from govray.data.sources.objects import find
    from govray.data.sources.quarantine import one_corpus

    languages: set[str] = set()

    def credential(built: corpus.Built) -> Credential:
        return _stated_credential(
            built,
            license=license,
            issuer=issuer,
            license_category=license_category,
            use=use,
            jurisdiction=jurisdiction,
            sensitivity=sensitivity,
            **made_of.stated(languages),
        )

    # A wrong option is found before an hour of hashing, not after.
    corpus.check_name(name)
    if license_category is None:
        _check_known(license)
    credential(corpus.Built(out_folder / name, name, _NO_DIGEST, 1, 0, _NO_DIGEST))
    found = find(source, made_of.format)
    reading = made_of.reading(on_flaw)
    selection = reading.filter()
    if made_of.parallel:
        with made_of.several():
            from govray.data.sources import parallel_split

            [made] = parallel_split.split(out_folder, name, found, reading, None, selection)
        built, languages = made.built, made.languages
    else:
        records = one_corpus(made_of.records(found, reading, selection), languages)
        built = corpus.build(out_folder, name, records)
    stated = credential(built)
    path = built.folder / SOURCE
    user_files.write(path, _yaml(stated))
    kept_out = _write_quarantine(out_folder, name, selection, made_of.scan)
    report(
        {
            "corpus": built.name,
            "folder": str(built.folder),
            "root": built.root,
            "records": built.count,
            "bytes": built.bytes,
            "credential": str(path),
            **kept_out,
        }
    )
    line(f"Corpus {built.name}: {built.count:,} records, {built.bytes:,} bytes")
    field("folder", built.folder)
    field("root", built.root)
    field("licence", f"{stated.license} ({stated.license_category})")
    if made_of.schema is not None:
        field("rows", made_of.schema.run_kind)
    _tell_kept_out(kept_out)
    line()
    line(f"Next  read {path}, complete it, then: govray sign {quote(str(path))} --key KEY")


@app.command()
@option_groups
def split(
    source: SourceArgument,
    name: Annotated[str, typer.Option("--name", help="What the names of the corpora begin with.")],
    issuer: Annotated[
        str, typer.Option("--issuer", help="The authority that will sign the credentials.")
    ],
    made_of: CorpusSource,
    out_folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder of corpora.")
    ] = Path("data/corpora"),
    license: Annotated[
        str | None,
        typer.Option("--license", metavar="SPDX", help="The licence of records that state none."),
    ] = None,
    jurisdiction: Annotated[
        str,
        typer.Option(
            "--jurisdiction", metavar="CC", help="The jurisdiction of records that state none."
        ),
    ] = "ZZ",
    sensitivity: Annotated[
        Sensitivity | None,
        typer.Option("--sensitivity", help="That of records that state none. Default: quarantine."),
    ] = None,
    license_category: Annotated[
        LicenseCategory | None,
        typer.Option("--license-category", help="The category of all LicenseRef-* terms."),
    ] = None,
    values: Annotated[
        Path | None,
        typer.Option(
            "--values", metavar="FILE", help="YAML: what the source's words for terms mean."
        ),
    ] = None,
    on_flaw: FlawOption = "quarantine",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and count only; write nothing.")
    ] = False,
) -> None:
    """Make one corpus per licence, jurisdiction and sensitivity that the records of SRC state.

    Records whose terms are unclear go into quarantine. DIR/NAME.quarantine.json counts them.
    """
    from govray.data import corpus
    from govray.data.sources.objects import find
    from govray.data.sources.split import corpus_name, count_terms
    from govray.data.sources.split import split as split_source
    from govray.data.sources.terms import RecordTerms, TermsReader
    from govray.governance.trust import license as spdx

    defaults = {"license": license, "jurisdiction": jurisdiction, "sensitivity": sensitivity}
    terms = TermsReader(
        {attribute: value for attribute, value in defaults.items() if value is not None},
        _values(values),
        license_category,
    )

    def credential(built: corpus.Built, of: RecordTerms, languages: set[str]) -> Credential:
        reference = spdx.category(of.license) is None
        return _stated_credential(
            built,
            license=of.license,
            issuer=issuer,
            license_category=license_category if reference else None,
            jurisdiction=of.jurisdiction,
            sensitivity=of.sensitivity,
            **made_of.stated(languages),
        )

    def check(target: str, of: RecordTerms) -> None:
        credential(corpus.Built(out_folder, target, _NO_DIGEST, 1, 0, _NO_DIGEST), of, set())

    def row(built: corpus.Built, stated: Credential, **more: str) -> dict[str, Any]:
        return {
            "corpus": built.name,
            "license": stated.license,
            "licenseCategory": stated.license_category,
            "jurisdiction": stated.jurisdiction,
            "sensitivity": stated.sensitivity,
            "records": built.count,
            "bytes": built.bytes,
            **more,
        }

    corpus.check_name(name)
    made_of.stated(set())
    found = find(source, made_of.format)
    reading = made_of.reading(on_flaw)
    selection = reading.filter()
    told: list[dict[str, Any]] = []
    if dry_run:
        records = made_of.records(found, reading, selection)
        for each, (count, size) in count_terms(records, terms, selection.quarantine).items():
            target = corpus_name(name, each, terms.defaults)
            built = corpus.Built(out_folder / target, target, _NO_DIGEST, count, size, _NO_DIGEST)
            told.append(row(built, credential(built, each, set())))
        kept_out = _kept_out(selection, made_of.scan)
    else:
        if made_of.parallel:
            with made_of.several():
                from govray.data.sources import parallel_split

                corpora = parallel_split.split(
                    out_folder, name, found, reading, terms, selection, check=check
                )
        else:
            records = made_of.records(found, reading, selection)
            corpora = split_source(
                out_folder, name, records, terms, selection.quarantine, check=check
            )
        for made in corpora:
            assert made.terms is not None
            stated = credential(made.built, made.terms, made.languages)
            path = made.folder / SOURCE
            user_files.write(path, _yaml(stated))
            told.append(row(made.built, stated, root=made.built.root, credential=str(path)))
        kept_out = _write_quarantine(out_folder, name, selection, made_of.scan)
    report({"corpora": told, **kept_out})
    grid = table(
        "corpus", "records", "licence", "category", "jurisdiction", "sensitivity",
        right=("records",), whole=("corpus",),
    )  # fmt: skip
    for each_row in told:
        grid.row(
            each_row["corpus"], f"{each_row['records']:,}", each_row["license"],
            each_row["licenseCategory"], each_row["jurisdiction"], each_row["sensitivity"],
        )  # fmt: skip
    print_table(grid)
    _tell_kept_out(kept_out)
    line()
    if dry_run:
        line("Nothing was written.")
    else:
        line(f"Next  read each {SOURCE}, complete it, then: govray sign FILE --key KEY")


@app.command()
def ls(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of corpora.")],
) -> None:
    """List the corpora in DIR with what their credentials state. Verifies nothing."""
    from govray.data import corpus

    rows = [_row(folder / name, corpus.CREDENTIAL_FILE) for name in corpus.list_corpora(folder)]
    report({"verified": False, "corpora": rows})
    grid = table(
        *("corpus", "records", "licence", "category", "sensitivity", "issuer", "credential"),
        right=("records",),
    )
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


@app.command()
def overlap(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of corpora.")],
    near: Annotated[
        bool, typer.Option("--near", help="Look for records that are nearly equal, too.")
    ] = False,
    least: Annotated[
        float,
        typer.Option(
            "--least", min=0.1, max=1.0, help="The least similarity of passages (Jaccard)."
        ),
    ] = 0.8,
) -> None:
    """Count the records that stand in two corpora of DIR. Changes nothing.

    A record in two corpora trains under both credentials. Near records are estimated by MinHash,
    over passages of 128 sequences; the index is kept in DIR.
    """
    from govray.data import corpus
    from govray.data.overlap import digests, overlaps
    from govray.data.similarity.index_build import passages_of
    from govray.governance.formats.text_form import TEXT_FORM
    from govray.governance.policy.record_commitment import read_secret

    names = corpus.list_corpora(folder)
    records = {name: digests(corpus.record_hashes(folder / name)) for name in names}
    passages = None
    if near:
        stated = {name: _credential_of(folder / name).records for name in names}
        passages = {
            name: passages_of(folder / name, each.root, read_secret(folder / name, each.commitment))
            for name, each in stated.items()
        }
    found = overlaps(records, passages, least=least)
    report(
        {
            "records": {name: len(each) for name, each in records.items()},
            "least": least if near else None,
            "textForm": TEXT_FORM if near else None,
            "pairs": [
                {"corpora": [each.first, each.second], "equal": each.equal}
                | ({"near": each.near} if near else {})
                for each in found
            ],
        }
    )
    if not found:
        count = sum(map(len, records.values()))
        line(f"None of {count:,} records stands in two of {len(names)} corpora.")
        return
    shown = ("equal", "near") if near else ("equal",)
    grid = table("corpus", "shares with", *shown, right=shown)
    for each in found:
        for side, (own, other) in enumerate([(each.first, each.second), (each.second, each.first)]):
            counts = (each.equal, each.near) if near else (each.equal,)
            grid.row(own, other, *(f"{count[side]:,}" for count in counts))
    print_table(grid)
    line()
    line("A record in two corpora trains under both credentials.")


@app.command()
def index(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of corpora.")],
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            help="Read several parts at once with Ray Data: here, or on the cluster of "
            "RAY_ADDRESS.",
        ),
    ] = False,
) -> None:
    """Build the indexes that near copies are found by, ahead of the first question.

    An index is kept in DIR, for the records that the corpus's credential states. What is there and
    whole stays. Without this verb the first 'govray trace' or 'overlap --near' builds them.
    """
    from govray.data import corpus
    from govray.data.similarity import index_build
    from govray.governance.policy.record_commitment import read_secret

    names = corpus.list_corpora(folder)
    stated = {name: _credential_of(folder / name).records for name in names}
    rows: list[dict[str, Any]] = []
    with _index_building(parallel) as build:
        for name, each in stated.items():
            found = index_build.whole_index(folder / name, each.root)
            state = "kept"
            if found is None:
                secret = read_secret(folder / name, each.commitment)
                found = index_build.built_index(folder / name, each.root, secret, build)
                state = "built"
            counts = {"records": sum(found.parts), "passages": len(found), "bytes": found.size}
            rows.append({"corpus": name, **counts, "index": state})
    report({"corpora": rows})
    grid = table(
        "corpus", "records", "passages", "bytes", "index", right=("records", "passages", "bytes")
    )
    for row in rows:
        shown = (f"{row[each]:,}" for each in ("records", "passages", "bytes"))
        grid.row(row["corpus"], *shown, row["index"])
    print_table(grid)


@contextmanager
def _index_building(parallel: bool) -> Iterator[BuildParts]:
    """How the parts of corpora are indexed, as long as the context lasts."""
    if not parallel:
        from govray.data.similarity.index_build import in_turn

        yield in_turn
        return
    from govray.data.similarity.parallel_index import in_parallel
    from govray.train.driver.ray_cluster import ray_running

    with ray_running():
        yield in_parallel


@app.command("open")
def open_record(
    folder: Annotated[Path, typer.Argument(metavar="CORPUS", help="The folder of one corpus.")],
    record: Annotated[
        Path, typer.Argument(metavar="FILE", help="The record, with exactly its bytes.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="OPENING", help="The file to write, readable by you.")
    ],
) -> None:
    """Write what shows that FILE is a record of CORPUS, and tells of no other record.

    With the opening and FILE anyone can check it: govray trace FILE --model MODEL --opening OPENING
    """
    from govray.data import corpus
    from govray.governance.policy.record_commitment import RecordOpening, read_secret

    stated = _credential_of(folder)
    digest = bytes.fromhex(user_files.sha256(record))
    secret = read_secret(folder, stated.records.commitment)
    hashes = list(corpus.record_hashes(folder))
    places = [index for index, each in enumerate(hashes) if each == digest]
    if not places:
        raise UsageError(
            f"no record of {stated.corpus} has exactly these bytes",
            where=str(record),
            do="Give the bytes as they were built into the corpus.",
        )
    made = RecordOpening.make(stated.corpus, secret, hashes, places[0], stated.records)
    user_files.write(out, made.encode(), mode=0o600)
    report(
        {
            "corpus": stated.corpus,
            "record": f"sha256:{digest.hex()}",
            "index": places[0],
            "equal": len(places),
            "root": made.root,
            "opening": str(out),
        }
    )
    line(f"Opened record {places[0]} of {stated.corpus}: {out}", "bold")
    field("record", f"sha256:{digest.hex()}")
    field("root", made.root)
    if len(places) > 1:
        field("equal", f"{len(places)} records have these bytes; this opens the first")
    line()
    line("With this file anyone can show that the record is in the corpus.")
    line(
        f"Next  govray trace {quote(str(record))} --model MODEL --trust-root ROOT "
        f"--opening {quote(str(out))}"
    )


def _credential_of(folder: Path) -> Credential:
    """What the credential in a corpus's folder states, signed or not; verifies nothing."""
    from govray.data.corpus import CREDENTIAL_FILE
    from govray.governance.policy.credential import Credential

    stated = _row(folder, CREDENTIAL_FILE).get("credential")
    if stated is None:
        raise UsageError(
            "no corpus with a credential", where=str(folder), do="Name the folder of one corpus."
        )
    return Credential.from_json(stated, where=str(folder))


def _row(folder: Path, envelope_name: str) -> dict[str, Any]:
    from govray.governance.policy.credential import Credential

    envelope, source = folder / envelope_name, folder / SOURCE
    stated: Document
    if envelope.is_file():
        state, stated = "signed", user_files.document(Credential, envelope)
    elif source.is_file():
        state, stated = "unsigned", source_files.read(source).document
    else:
        return {"corpus": folder.name, "state": "missing"}
    return {"corpus": folder.name, "state": state, "credential": stated.to_json()}


def _values(path: Path | None) -> dict[str, dict[str, str]]:
    from govray.data.sources.terms import check_values
    from govray.governance.formats.strict_yaml import read_yaml

    if path is None:
        return {}
    return check_values(read_yaml(user_files.read(path), name=str(path)).value, where=str(path))


def _check_known(license: str) -> None:
    """Raise ``UsageError`` for an expression with a licence that is on no list: often a typo."""
    from govray.governance.trust import license as spdx

    try:
        unknown = spdx.category(license) == "unknown"
    except Malformed:
        return  # the credential says what is wrong
    if unknown:
        close = spdx.closest(license)
        raise UsageError(
            f"{license!r} is no known licence",
            where="--license",
            do=(f"Did you mean {close}? " if close else "")
            + "If its terms are unknown, say --license-category unknown.",
        )


def _stated_credential(built: corpus.Built, **stated: Any) -> Credential:
    from govray.data import corpus

    try:
        given = {name: value for name, value in stated.items() if value not in (None, ())}
        return corpus.unsigned_credential(built, **given)
    except Malformed as error:
        raise UsageError(error.what, where=error.where, do=error.do) from None


def _kept_out(selection: RecordFilter, scan: PiiScan | None) -> dict[str, Any]:
    return ({"piiScan": scan.to_json()} if scan else {}) | {
        "quarantined": selection.quarantine.records,
        "otherSplits": selection.other_splits,
        "differingColumns": selection.columns.differing(),
        "quarantine": [each.to_json() for each in selection.quarantine.values],
    }


def _write_quarantine(
    out: Path, name: str, selection: RecordFilter, scan: PiiScan | None
) -> dict[str, Any]:
    """Write what was not taken beside the corpora, and by which scan; return it for reports."""
    from govray.data.sources import quarantine

    told = _kept_out(selection, scan)
    path = out / f"{name}.quarantine.json"
    if told["quarantine"] or told["differingColumns"] or scan:
        user_files.write(path, quarantine.encode(told))
        return told | {"file": str(path)}
    path.unlink(missing_ok=True)  # of an earlier corpus of this name
    return told


def _tell_kept_out(told: dict[str, Any]) -> None:
    if scan := told.get("piiScan"):
        field("scanned", f"by {scan['analyzer']} for {', '.join(scan['entities'])}")
    if told["otherSplits"]:
        field("other splits", f"{told['otherSplits']:,} records")
    for each in told["differingColumns"]:
        stated = ", ".join(each["attributes"])
        field("columns", f"{stated}, in {each['objects']:,} files such as {each['first']}")
    if not told["quarantined"]:
        return
    line()
    counted = f", counted in {told['file']}" if "file" in told else ""
    line(f"Quarantine: {told['quarantined']:,} records{counted}")
    grid = table("records", "attribute", "value", "why", "suggestion", right=("records",))
    for each in told["quarantine"][:_SHOWN]:
        grid.row(
            f"{each['records']:,}", each["attribute"], each["value"], each["why"],
            each.get("suggestion", ""),
        )  # fmt: skip
    print_table(grid)


def _yaml(credential: Credential) -> bytes:
    import yaml

    value = credential.model_dump(mode="json", by_alias=False, exclude_none=True)
    value["valid"] = {"from": credential.valid.from_, "until": credential.valid.until}
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return f"# Unsigned. Sign with: govray sign {SOURCE} --key KEY\n{text}".encode()
