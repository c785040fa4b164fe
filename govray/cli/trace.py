"""``govray trace``: was this text trained on, exactly or nearly, and in which layers?

The exact answer uses the SHA-256 of the file's bytes. It needs the secrets that lie with the
corpora, or the opening of this one record (``--opening``). Near copies are found in the records'
texts. The corpora are those of the model's run, or ``--corpora``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import user_files
from govray.cli.option_group import option_groups
from govray.cli.output import Records, field, line, report
from govray.cli.run_records import given_records, run_corpora, run_records
from govray.cli.trust import ModelTrust
from govray.errors import GovrayError, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from govray.data.similarity.near_copies import Near
    from govray.governance.verify.trace import Sighting
    from govray.governance.verify.verifier import VerifiedModel


@option_groups
def trace(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="The record, with exactly the bytes of training.")
    ],
    model: Annotated[Path, typer.Option("--model", metavar="MODEL", help="A model folder.")],
    trusted: ModelTrust,
    corpora: Annotated[
        Path | None,
        typer.Option(
            "--corpora",
            metavar="DIR",
            help="The folder of corpora: their secrets and texts. Default: the run's own.",
        ),
    ] = None,
    opening: Annotated[
        Path | None,
        typer.Option(
            "--opening",
            metavar="OPENING",
            help="What 'govray corpus open' wrote of this record. Nothing else is searched then.",
        ),
    ] = None,
    least: Annotated[
        float,
        typer.Option(
            "--least", min=0.01, max=1, help="Smallest share of common sequences of a near copy."
        ),
    ] = 0.5,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Show at most this many near copies.")
    ] = 20,
    records: Records = None,
) -> None:
    """Find a record, or near copies of it, in what a model was trained on.

    It says in which steps and layers. Exact matches compare bytes. Near copies share sequences
    of letters, and need the records on this machine. Exit code 0 whether found or not: the
    text or the JSON says which.
    """
    from govray.governance.formats.text_form import TEXT_FORM
    from govray.governance.policy.record_commitment import read_secrets
    from govray.governance.verify.trace import trace as find

    if opening is not None and corpora is not None:
        raise UsageError("give --opening or --corpora, not both", where="trace")
    digest = user_files.sha256(path)
    if opening is None:  # an opening needs the base install alone, and no search
        from govray.data.similarity.near_copies import near as near_copies
    told = run_records(model) if records is None else given_records(records, model)
    verified = trusted.verify(model, records=told)
    if opening is not None:
        _tell_opened(path, digest, model, verified, opening)
        return
    _ = verified.records  # without them nothing can be looked for
    folder = corpora or run_corpora(verified.path)
    stated = {name: each.document.records for name, each in verified.credentials.items()}
    secrets, unread = read_secrets(folder, stated)
    if corpora is not None and unread:
        raise next(iter(unread.values()))
    sightings = find(verified, digest, secrets)
    shut = _closed(verified, secrets, unread)
    searched = _search(near_copies, path, verified, corpora, secrets, least, limit)
    near = [each for each in searched.found if each.sha256 != digest]
    report(
        {
            "record": f"sha256:{digest}",
            "model": str(model),
            "attestation": verified.digest,
            "found": bool(sightings),
            "sightings": [_to_json(each) for each in sightings],
            "closed": shut,
            "near": [_near_to_json(verified, each) for each in near],
            "textForm": TEXT_FORM,
            "searched": list(searched.corpora),
            "notSearched": searched.missing,
        }
    )
    line(f"{path}   sha256:{digest}")
    if not sightings:
        line(
            "Not found in the corpora that could be searched."
            if shut
            else "Not found in the recorded data: no record with exactly these bytes."
        )
    for each in sightings:
        line()
        what = "canary" if each.planted else "record"
        line(f"Found in {each.corpus}, {what} {each.record}", style="bold")
        _tell(each)
    for name, why in shut.items():
        line(f"Not searched: {name}, whose commitments stay closed: {why}")
    _tell_near(verified, near)
    line()
    if searched.corpora and not near:
        line(f"No near copy in {len(searched.corpora)} corpora. Texts are compared as {TEXT_FORM}.")
    if len(searched.found) == limit:
        line(f"These are the first {limit}, and there may be more: --limit {2 * limit}")
    for name, why in searched.missing.items():
        line(f"Near copies were not looked for in {name}: {why}")
    line("Data that was never presented to govray would not show here.")
    for each in sightings[:1]:
        if folder is not None and not each.planted:
            line()
            line("Next  write a proof of it, which others can check without the corpus:")
            corpus = quote(str(folder / each.corpus))
            line(f"      govray corpus open {corpus} {quote(str(path))} --out OPENING")


def _tell_opened(
    path: Path, digest: str, model: Path, verified: VerifiedModel, opening: Path
) -> None:
    from govray.governance.policy.record_commitment import RecordOpening
    from govray.governance.verify.trace import check_opening, trace_opening

    opened = RecordOpening.read(opening)
    if opened.record != digest:
        raise Refused(
            f"it opens another record, sha256:{opened.record}",
            where=str(opening),
            do=f"Name the file of that record: {path} is sha256:{digest}.",
        )
    found = None
    if verified.depth == "summary":  # nobody can tell which rows the record became
        check_opening(verified, opened, where=str(opening))
    else:
        found = trace_opening(verified, opened, where=str(opening))
    report(
        {
            "record": f"sha256:{digest}",
            "model": str(model),
            "attestation": verified.digest,
            "found": True,
            "corpus": opened.corpus,
            "index": opened.index,
            "sightings": [_to_json(found)] if found else None,
            "opening": str(opening),
        }
    )
    line(f"{path}   sha256:{digest}")
    line()
    line(f"Found in {opened.corpus}, record {opened.index}", style="bold")
    field("proof", f"leads to the root that the credential signs: {opened.root}")
    if found:
        _tell(found)
        return
    field(
        "layers", f"its corpus may train {', '.join(sorted(verified.routes.groups(opened.corpus)))}"
    )
    field("steps", "not known: name the prepared folder of the model's run with --records")


def _closed(
    model: VerifiedModel, secrets: Mapping[str, bytes], why: Mapping[str, Refused]
) -> dict[str, str]:
    """Corpora of the model that could not be searched → why."""
    from govray.governance.verify.trace import closed

    do = "name the folder of corpora with --corpora, or give the record's --opening."
    return {name: str(why.get(name, do)) for name in closed(model, secrets)}


@dataclass(frozen=True)
class _Searched:
    """Near copies, the corpora that were looked through, and why others were not."""

    found: list[Near]
    corpora: tuple[str, ...]
    missing: dict[str, str]


def _search(
    near_copies: Callable[..., list[Near]],
    path: Path,
    model: VerifiedModel,
    given: Path | None,
    secrets: dict[str, bytes],
    least: float,
    limit: int,
) -> _Searched:
    """Look for near copies. An obstacle is an error only if corpora were named."""
    names = [corpus.corpus for corpus in model.manifest.document.corpora]
    folder = given or run_corpora(model.path)
    if given is not None and not given.is_dir():
        raise UsageError("not a folder of corpora", where=str(given), do="Check the path.")
    if folder is None:
        return _Searched([], (), {"any corpus": "name them with --corpora."})
    there = [name for name in names if (folder / name).is_dir()]
    missing = {name: f"not in {folder}." for name in names if name not in there}
    missing |= {name: "its secret cannot be read." for name in there if name not in secrets}
    here = [name for name in there if name in secrets]
    if not here:
        if given is not None and not there:
            raise UsageError(
                "this folder has none of the model's corpora",
                where=str(given),
                do=f"It was trained on {', '.join(names[:5])}.",
            )
        return _Searched([], (), missing)
    try:
        found = near_copies(
            user_files.read(path),
            folder,
            {name: model.credentials[name].document.records.root for name in here},
            lambda name, number, entry: (
                number < model.records.count(name)
                and model.records.record(name, number).entry == entry
            ),
            secrets,
            least=least,
            limit=limit,
        )
    except GovrayError as error:
        if given is not None:
            raise
        return _Searched([], (), {"any corpus": f"{str(error).rstrip('.')}."})
    return _Searched(found, tuple(here), missing)


def _tell(each: Sighting) -> None:
    from govray.governance.verify.trace import outcome

    planted = "; the operator planted it" if each.planted else ""
    field("use", outcome(each.split, len(each.steps)) + planted)
    if each.steps:
        field("tokens", f"{each.tokens:,} read")
        field("steps", _steps(each.steps))
        field("layers", ", ".join(each.groups))


def _tell_near(model: VerifiedModel, near: list[Near]) -> None:
    from govray.governance.verify.trace import sighting

    for each in near:
        line()
        line(f"Near copy in {each.corpus}, record {each.record}", style="bold")
        field("record", f"sha256:{each.sha256}")
        field(
            "overlap",
            f"{each.overlap:.0%} of the shorter text's sequences of letters ({each.shared:,}), "
            f"{each.jaccard:.0%} of both texts'",
        )
        _tell(sighting(model, each.corpus, each.record))


def _to_json(each: Sighting) -> dict[str, Any]:
    from govray.governance.verify.trace import outcome

    return {
        "corpus": each.corpus,
        "record": each.record,
        "split": each.split,
        "use": outcome(each.split, len(each.steps)),
        "planted": each.planted,
        "rows": [each.rows.start, each.rows.stop],
        "steps": list(each.steps),
        "groups": list(each.groups),
        "tokens": str(each.tokens),
    }


def _near_to_json(model: VerifiedModel, each: Near) -> dict[str, Any]:
    from govray.governance.verify.trace import sighting

    return {
        **_to_json(sighting(model, each.corpus, each.record)),
        "sha256": f"sha256:{each.sha256}",
        "overlap": each.overlap,
        "jaccard": each.jaccard,
        "estimatedPassageJaccard": each.estimated,
        "sharedSequences": each.shared,
    }


def _steps(steps: tuple[int, ...]) -> str:
    shown = ", ".join(str(step) for step in steps[:8])
    return shown if len(steps) <= 8 else f"{shown} … {steps[-1]} ({len(steps)} steps)"
