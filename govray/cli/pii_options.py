"""The options that have records scanned for personal data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from govray.errors import UsageError, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from govray.data.sources.quarantine import RecordFilter
    from govray.data.sources.record import SourceRecord
    from govray.governance.formats.row_schema import RowKind
    from govray.governance.policy.pii_scan import PiiEntity, PiiScan

PiiOption = Annotated[
    bool,
    typer.Option(
        "--pii",
        help="Leave out records with personal data that has a form, such as an e-mail address. "
        "The credential says what was looked for.",
    ),
]
PiiEntityOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pii-entity",
        metavar="NAME",
        help="With --pii: look for this kind only, such as EMAIL_ADDRESS. May be repeated.",
    ),
]
PiiScoreOption = Annotated[
    float | None,
    typer.Option(
        "--pii-score",
        min=0.05,
        max=1.0,
        help="With --pii: from which score of Presidio on a finding counts. Default: 0.5.",
    ),
]


def pii_scan(pii: bool, entities: list[str] | None, score: float | None) -> PiiScan | None:
    if not pii:
        if entities or score is not None:
            raise UsageError(
                "entities and a score are of a scan that was not asked for",
                where="--pii-entity" if entities else "--pii-score",
                do="Add --pii, or leave the option out.",
            )
        return None
    from govray.data.pii.scan import scan_of
    from govray.governance.policy.pii_scan import PII_ENTITIES, PII_SCORE

    known: dict[str, PiiEntity] = {name: name for name in PII_ENTITIES}
    for name in entities or ():
        if name not in known:
            raise UsageError(
                f"nothing finds {name!r}{suggestion(name, known)}",
                where="--pii-entity",
                do=f"Name one of {', '.join(known)}.",
            )
    chosen = [known[name] for name in entities] if entities else PII_ENTITIES
    return scan_of(chosen, PII_SCORE if score is None else score)


def scanned(
    records: Iterator[SourceRecord],
    scan: PiiScan | None,
    selection: RecordFilter,
    *,
    refuse: bool,
    rows: RowKind = "text",
) -> Iterator[SourceRecord]:
    """The records without a finding, if a scan was asked for; else all. Raises as `PiiFilter`."""
    if scan is None:
        return records
    from govray.data.pii.scan import PiiFilter

    return PiiFilter(scan, selection.quarantine, refuse=refuse, rows=rows).of(records)
