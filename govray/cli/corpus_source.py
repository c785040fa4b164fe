"""The options that say what a corpus is made of: how its source is read, and what is kept out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from govray.cli import user_files
from govray.cli.option_group import given_time
from govray.errors import Malformed, UsageError, suggestion

if TYPE_CHECKING:
    from govray.data.opt_outs.snapshot import OptOutFilter, OptOuts
    from govray.data.sources.columns import ColumnMapping
    from govray.data.sources.objects import RecordSource
    from govray.data.sources.quarantine import RecordFilter
    from govray.data.sources.reader import Reading
    from govray.data.sources.record import SourceRecord
    from govray.governance.formats.document import Document
    from govray.governance.formats.row_schema import RowSchema
    from govray.governance.policy.corpus_description import CorpusDescription
    from govray.governance.policy.credential import Normalisation, Period
    from govray.governance.policy.pii_scan import PiiEntity, PiiScan

FormatName = Literal["files", "jsonl", "csv", "parquet", "arrow", "webdataset"]
Rows = Literal["text", "chat", "images"]
OnFlaw = Literal["refuse", "quarantine"]

SourceArgument = Annotated[
    str, typer.Argument(metavar="SRC", help="A file or folder, or a URL: s3://, gs://, abfs://.")
]
FlawOption = Annotated[
    OnFlaw, typer.Option("--on-flaw", help="What to do with rows that cannot be records.")
]
OptOutsOption = Annotated[
    Path | None,
    typer.Option(
        "--opt-outs",
        metavar="FILE",
        help="A snapshot of robots.txt, tdmrep.json and ai.txt of each host. Records whose URL is "
        "reserved are left out. With --description.",
    ),
]
OptOutAgentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--opt-out-agent",
        metavar="AGENT",
        help="The crawler whose rules apply. Repeatable. Default: *, the rules for all.",
    ),
]


@dataclass
class OptOutLookup:
    """A snapshot, and what looks records up in it once they are read."""

    snapshot: OptOuts
    filter: OptOutFilter | None = None

    def stated(self) -> dict[str, Any]:
        reserved = self.filter.reserved if self.filter else 0
        return {
            "opt_out": "honoured" if reserved else "none_found",
            "opt_out_check": {
                "snapshot": self.snapshot.digest,
                "first": self.snapshot.first,
                "last": self.snapshot.last,
                "agents": self.snapshot.agents,
            },
        }


@dataclass(frozen=True, kw_only=True)
class CorpusSource:
    """The options that `corpus build` and `corpus split` share, and what follows from them.
    Properties raise ``UsageError`` where options don't go together."""

    description: Annotated[
        Path | None,
        typer.Option(
            "--description",
            metavar="FILE",
            help="YAML: the credential's description, such as source, period and opt-outs.",
        ),
    ] = None
    opt_outs: OptOutsOption = None
    opt_out_agent: OptOutAgentOption = None
    valid_from: Annotated[
        str | None,
        typer.Option(
            "--valid-from", metavar="TIME", help="When the credential begins to hold. Default: now."
        ),
    ] = None
    valid_until: Annotated[
        str | None,
        typer.Option(
            "--valid-until",
            metavar="TIME",
            help="When the credential ends. Default: 365 days later.",
        ),
    ] = None
    format: Annotated[
        FormatName | None,
        typer.Option(
            "--format",
            help="The files' format. Default: by their suffixes; others are text files.",
        ),
    ] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="ATTRIBUTE=COLUMN",
            help="Where text, id, url, license, jurisdiction, sensitivity, language or split is. "
            "Default: the column of that name. Without COLUMN it is not read.",
        ),
    ] = None
    only_split: Annotated[
        str | None,
        typer.Option("--only-split", metavar="SPLIT", help="Leave out records of other splits."),
    ] = None
    max_record_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-record-bytes",
            min=1,
            metavar="N",
            help="The largest record. Default: 16 MiB for a row's text, 2 GiB for a file.",
        ),
    ] = None
    normalise_newlines: Annotated[
        bool,
        typer.Option(
            "--normalise-newlines", help="Make line ends LF before hashing; the credential says so."
        ),
    ] = False
    normalise_nfc: Annotated[
        bool,
        typer.Option(
            "--normalise-nfc",
            help="Make text NFC (Unicode) before hashing; the credential says so.",
        ),
    ] = False
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            help="Read several files at once with Ray Data: here, or on the cluster of "
            "RAY_ADDRESS.",
        ),
    ] = False
    rows: Annotated[
        Rows,
        typer.Option(
            "--rows",
            help="What the records are: text; chat, from a column of messages; images, from "
            "columns image and label. The credential says so.",
        ),
    ] = "text"
    image_shape: Annotated[
        str | None,
        typer.Option(
            "--image-shape", metavar="C,H,W", help="The shape of images: channels, height, width."
        ),
    ] = None
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes",
            min=1,
            metavar="N",
            help="The number of classes of images: labels are from 0 to N-1.",
        ),
    ] = None
    pii: Annotated[
        bool,
        typer.Option(
            "--pii",
            help="Leave out records with personal data that has a form, such as an e-mail address. "
            "The credential says what was looked for.",
        ),
    ] = False
    pii_entity: Annotated[
        list[str] | None,
        typer.Option(
            "--pii-entity",
            metavar="NAME",
            help="With --pii: look for this kind only, such as EMAIL_ADDRESS. May be repeated.",
        ),
    ] = None
    pii_score: Annotated[
        float | None,
        typer.Option(
            "--pii-score",
            min=0.05,
            max=1.0,
            help="With --pii: from which score of Presidio on a finding counts. Default: 0.5.",
        ),
    ] = None

    @cached_property
    def period(self) -> Period:
        from govray.governance.formats.document import format_time
        from govray.governance.policy.credential import Period

        first, last = self.valid_from, self.valid_until
        start = given_time(first, "--valid-from") if first else datetime.now(UTC)
        stop = given_time(last, "--valid-until") if last else start + timedelta(days=365)
        try:
            return Period.from_json({"from": format_time(start), "until": format_time(stop)})
        except Malformed as error:
            raise UsageError(error.what, where="--valid-from, --valid-until", do=error.do) from None

    @cached_property
    def normalisation(self) -> tuple[Normalisation, ...]:
        newlines: tuple[Normalisation, ...] = ("newlines",) if self.normalise_newlines else ()
        return (*newlines, "nfc") if self.normalise_nfc else newlines

    @cached_property
    def schema(self) -> RowSchema | None:
        """What the records are, if not text."""
        from govray.governance.formats.row_schema import CHAT, image_schema

        if self.rows != "images":
            if self.image_shape is not None or self.classes is not None:
                raise UsageError(
                    "--image-shape and --classes are of images",
                    where="--rows",
                    do="Use --rows images.",
                )
            return CHAT if self.rows == "chat" else None
        try:
            sizes = [int(each) for each in (self.image_shape or "").split(",")]
            channels, height, width = sizes
            return image_schema((channels, height, width), self.classes or 0)
        except ValueError:
            raise UsageError(
                "images need a shape of three numbers from 1 on, and classes, within 64 MiB",
                where=f"--image-shape {self.image_shape}, --classes {self.classes}",
                do="Write --image-shape 1,8,8 --classes 10.",
            ) from None

    @cached_property
    def scan(self) -> PiiScan | None:
        entities, score = self.pii_entity, self.pii_score
        if not self.pii:
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

    @cached_property
    def described(self) -> CorpusDescription | None:
        from govray.governance.formats.strict_yaml import read_yaml
        from govray.governance.policy.corpus_description import CorpusDescription

        if self.description is None:
            return None
        source = read_yaml(user_files.read(self.description), name=str(self.description))
        return CorpusDescription.from_source(source.value, where=source.where)

    @cached_property
    def lookup(self) -> OptOutLookup | None:
        file, agents, described = self.opt_outs, self.opt_out_agent, self.described
        if file is None:
            if agents:
                raise UsageError(
                    "an agent is looked up in a snapshot",
                    where="--opt-out-agent",
                    do="Give --opt-outs FILE too.",
                )
            return None
        if described is None:
            raise UsageError(
                "the credential's description says that opt-outs were looked up",
                where="--opt-outs",
                do="Give --description FILE too; `source: crawled` is enough.",
            )
        if described.opt_out is not None or described.opt_out_check is not None:
            raise UsageError(
                "the description states opt-outs itself, and the snapshot says what holds",
                where="--description",
                do="Leave optOut out of it.",
            )
        from govray.data.opt_outs.snapshot import EVERYBODY, read_opt_outs

        return OptOutLookup(read_opt_outs(file, agents or EVERYBODY))

    @cached_property
    def columns(self) -> ColumnMapping:
        from govray.data.sources.columns import ColumnMapping

        return ColumnMapping.parse(self.column or (), self.rows)

    def stated(self, languages: set[str]) -> dict[str, Any]:
        """Fields of a credential's source; ``languages``: those that records state."""
        from govray.governance.formats.document import format_time

        found = {"languages": tuple(sorted(languages))} if languages else {}
        looked = self.lookup.stated() if self.lookup else {}
        return {
            "description": (found | (_fields(self.described) or {}) | looked) or None,
            "valid": self.period,
            "issued": format_time(datetime.now(UTC)),
            "normalisation": self.normalisation,
            "rows": _fields(self.schema),
            "pii_scan": _fields(self.scan),
        }

    def reading(self, on_flaw: OnFlaw) -> Reading:
        """How the source is read."""
        from govray.data.sources.reader import Reading

        return Reading(
            self.columns,
            self.max_record_bytes,
            self.normalisation,
            self.schema,
            on_flaw == "refuse",
            self.only_split,
        )

    def records(
        self, found: RecordSource, reading: Reading, selection: RecordFilter
    ) -> Iterator[SourceRecord]:
        """The records of a source, without those that are reserved or that a scan found."""
        taken = reading.records(found, selection)
        if self.lookup is not None:
            from govray.data.opt_outs.snapshot import OptOutFilter

            self.lookup.filter = OptOutFilter(self.lookup.snapshot, selection.quarantine)
            taken = self.lookup.filter.of(taken)
        if self.scan is not None:
            from govray.data.pii.scan import PiiFilter

            refuse = selection.refuse_flaws
            kept_out = selection.quarantine
            taken = PiiFilter(self.scan, kept_out, refuse=refuse, rows=self.rows).of(taken)
        return taken

    @contextmanager
    def several(self) -> Iterator[None]:
        """A cluster whose processes read, as long as the context lasts."""
        for given, what in (
            (self.lookup, "opt-outs are looked up in one process"),
            (self.scan, "a scan for personal data reads in order, in processes of its own"),
        ):
            if given is not None:
                raise UsageError(what, where="--parallel", do="Leave one of the two out.")
        from govray.train.driver.ray_cluster import ray_running

        with ray_running():
            yield


def _fields(stated: Document | None) -> dict[str, Any] | None:
    if stated is None:
        return None
    return stated.model_dump(mode="json", by_alias=False, exclude_none=True)
