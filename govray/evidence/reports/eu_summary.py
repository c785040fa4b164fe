"""The public summary of training content that Article 53(1)(d) of the EU's AI Act asks for.

It follows the European Commission's template, C(2025) 8311 (before: C(2025) 5235), section by
section. Regulation (EU) 2024/1689, recital 107, says what the summary is for.

The template lets a provider choose among three ranges of size for each modality. It asks for the
largest 10 % of crawled domains, measured by what was scraped. A small or medium-sized enterprise
may give the largest 5 % or 1,000 domains, whichever is less. It calls some public datasets large;
all are listed here, with their sizes, since no limit of that was verified.

The draft is of one run. What the runs read whose weights this one went on from is named as a
dependency and not described.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from govray.evidence.reports.answers import Answers, credentials, lacks
from govray.evidence.reports.described_corpus import (
    UNITS,
    DescribedCorpus,
    Medium,
    described_corpora,
)
from govray.evidence.reports.draft import Draft, Field, Grid, ReportSection, joined
from govray.evidence.reports.provider_statement import ProviderStatement
from govray.governance.policy.corpus_description import Source
from govray.governance.trust.trust_state import Verified
from govray.governance.verify.verifier import VerifiedModel

TITLE = "Public summary of training content"
TEMPLATE = "Template: European Commission, C(2025) 8311, for Article 53(1)(d) of (EU) 2024/1689"

MEDIA: tuple[Medium, ...] = ("text", "image", "audio", "video", "other")

_HOURS = (
    10**4,
    10**6,
    ("Less than 10,000 hours", "10,000 to 1 million hours", "More than 1 million hours"),
)
RANGES: Mapping[Medium, tuple[int, int, tuple[str, str, str]]] = {
    "text": (
        10**9,
        10**13,
        (
            "Less than 1 billion tokens",
            "1 billion to 10 trillion tokens",
            "More than 10 trillion tokens",
        ),
    ),
    "image": (
        10**6,
        10**9,
        (
            "Less than 1 million images",
            "1 million to 1 billion images",
            "More than 1 billion images",
        ),
    ),
    "audio": _HOURS,
    "video": _HOURS,
}
"""Modality → where the template's middle range begins and ends, both in it, and its words."""

SHARE = Fraction(1, 10)
SMALL_SHARE = Fraction(1, 20)
SMALL_MOST = 1000
"""Of crawled domains: what is listed, and what a small or medium-sized enterprise may list."""


def eu_summary(model: VerifiedModel, statement: Verified[ProviderStatement] | None = None) -> Draft:
    return _Summary(model, Answers(statement), described_corpora(model)).draft()


def size_range(medium: Medium, size: int) -> str:
    """The template's range for a size, in the modality's unit."""
    least, most, (below, within, above) = RANGES[medium]
    return below if size < least else above if size > most else within


def listed_domains(total: int, *, small: bool) -> int:
    """How many of ``total`` domains the template asks for."""
    if small:
        return min(ceil(SMALL_SHARE * total), SMALL_MOST)
    return ceil(SHARE * total)


@dataclass(frozen=True)
class _Summary:
    model: VerifiedModel
    answers: Answers
    corpora: tuple[DescribedCorpus, ...]

    def draft(self) -> Draft:
        sections = (
            ReportSection("0", "Version", self._version()),
            ReportSection("1", "General information", ()),
            ReportSection("1.1", "Provider identification", self._provider()),
            ReportSection("1.2", "Model identification", self._model()),
            ReportSection("1.3", "Modalities, size and characteristics", self._characteristics()),
            ReportSection("2", "List of data sources", (self._unstated(),)),
            ReportSection("2.1", "Publicly available datasets", self._public()),
            ReportSection("2.2", "Private datasets obtained from third parties", ()),
            ReportSection("2.2.1", "Licensed by rightsholders", self._licensed()),
            ReportSection("2.2.2", "Obtained from other third parties", self._other_private()),
            ReportSection("2.3", "Data crawled and scraped from online sources", self._crawled()),
            ReportSection("2.4", "User data", self._user()),
            ReportSection("2.5", "Synthetic data", self._synthetic()),
            ReportSection("2.6", "Other sources of data", self._other()),
            ReportSection("3", "Data processing aspects", ()),
            ReportSection("3.1", "Reservations of rights from data mining", self._reserved()),
            ReportSection("3.2", "Removal of illegal content", self._illegal()),
            ReportSection("3.3", "Other information", self._processing()),
        )
        fields = [field for section in sections for field in section.fields]
        return Draft(TITLE, (TEMPLATE, *basis(self.model)), sections, self.answers.unused(fields))

    # 0, 1

    def _version(self) -> tuple[Field, ...]:
        asked = self.answers.asked
        return (
            asked("0 version", "Version of the summary", "summary_version"),
            asked("0 updated", "Last update", "summary_updated"),
        )

    def _provider(self) -> tuple[Field, ...]:
        asked = self.answers.asked
        return (
            asked("1.1 provider", "Provider's name", "provider"),
            asked("1.1 contact", "Provider's contact details", "provider_contact"),
            asked("1.1 representative", "Authorised representative's name", "representative"),
            asked(
                "1.1 representative contact",
                "Authorised representative's contact details",
                "representative_contact",
            ),
            asked("1.1 size", "Whether a small or medium-sized enterprise", "small_or_medium"),
        )

    def _model(self) -> tuple[Field, ...]:
        run = self.model.attestation.run
        return (
            self.answers.asked(
                "1.2 names",
                "Versioned names of the model",
                "model_names",
                known=(f"run {run.id} ({run.name}), attestation {self.model.digest}",),
                lacks="Records name the run, not the model on the market",
            ),
            dependencies(self.model, self.answers),
            self.answers.asked("1.2 date", "Date of placement on the Union market", "market_date"),
        )

    def _characteristics(self) -> tuple[Field, ...]:
        present = [m for m in MEDIA if any(m in each.media for each in self.corpora)]
        fields = [
            self.answers.recorded(
                "1.3 modalities",
                "Modalities of the training data",
                [", ".join(present)],
                "credentials, and what the manifest says of rows",
            )
        ]
        fields += [self._size(medium) for medium in present if medium in RANGES]
        latest = [each.months[1] for each in self.corpora if each.months]
        of = self.answers.of_corpora
        asked = self.answers.asked
        fields += [
            of(
                "1.3 content",
                "Types of content",
                self.corpora,
                lambda each: each.described.content,
                "content_types",
            ),
            self._latest(latest),
            asked(
                "1.3 continuous",
                "Whether training goes on with newer data",
                "continuous_training",
            ),
            of(
                "1.3 languages",
                "Linguistic characteristics",
                self.corpora,
                lambda each: _joined(each.described.languages),
                "languages",
            ),
            self.answers.recorded(
                "1.3 legal",
                "Other characteristics: licences and jurisdictions",
                [
                    f"{each.name}: {each.credential.license}, jurisdiction "
                    f"{each.credential.jurisdiction}, {each.records:,} records"
                    for each in self.corpora
                ],
                credentials(self.corpora),
            ),
            asked("1.3 other", "Further characteristics", "characteristics"),
            asked("1.3 comments", "Additional comments", "size_comments"),
        ]
        return tuple(fields)

    def _size(self, medium: Medium) -> Field:
        """Counted by the manifest, or, of hours, by the credentials."""
        key, label = f"1.3 size {medium}", f"Size of training data: {medium}"
        holding = [each for each in self.corpora if medium in each.media]
        if medium in ("audio", "video"):
            if lacking := [each.name for each in holding if each.hours is None]:
                return self.answers.asked(key, label, "sizes", lacks=lacks(lacking))
            size, source = sum(each.hours or 0 for each in holding), credentials(holding)
        else:
            apart = [each.name for each in holding if each.counted != medium]
            if apart:
                why = f"The rows of {joined(apart, 12)} do not count {UNITS[medium]}"
                return self.answers.asked(key, label, "sizes", lacks=why)
            size = sum(each.units for each in holding)
            source = "prepare manifest: rows that train, without the reserve"
        exact = f"as counted: {size:,} {UNITS[medium]}"
        if medium == "text":
            name = self.model.manifest.document.tokenizer.name
            exact += f" of tokenizer {name}, separators included"
        return self.answers.recorded(key, label, [size_range(medium, size), exact], source)

    def _latest(self, latest: Sequence[str]) -> Field:
        key, label, ask = "1.3 latest", "Latest date of collection (MM/YYYY)", "latest_collection"
        lacking = [each.name for each in self.corpora if each.months is None]
        newest = [f"{max(latest)[5:]}/{max(latest)[:4]}"] if latest else []
        if lacking:
            known = [f"of the other corpora: {each}" for each in newest]
            return self.answers.asked(key, label, ask, known=known, lacks=lacks(lacking))
        return self.answers.recorded(key, label, newest, credentials(self.corpora), ask=ask)

    # 2

    def _of(self, *sources: Source) -> tuple[DescribedCorpus, ...]:
        return tuple(each for each in self.corpora if each.described.source in sources)

    @property
    def _without_source(self) -> tuple[DescribedCorpus, ...]:
        return tuple(each for each in self.corpora if each.described.source is None)

    def _unstated(self) -> Field:
        key, label = "2 unstated", "Corpora whose kind of source no record states"
        if found := self._without_source:
            return self.answers.asked(
                key,
                label,
                "unstated_sources",
                known=[f"{each.name}: {each.size}" for each in found],
                lacks=lacks([each.name for each in found]),
            )
        told = "None: every corpus that the run read states its kind of source."
        return self.answers.recorded(key, label, [told], credentials(self.corpora))

    def _used(self, key: str, label: str, found: Sequence[DescribedCorpus], ask: str) -> Field:
        if found:
            media = dict.fromkeys(medium for each in found for medium in each.media)
            lines = [
                f"Yes: {joined([each.name for each in found])}",
                f"Modalities: {', '.join(media)}",
            ]
            return self.answers.recorded(key, label, lines, credentials(found), ask=ask)
        if unstated := [each.name for each in self._without_source]:
            return self.answers.asked(key, label, ask, lacks=lacks(unstated))
        told = "No: no corpus that the run read states this kind of source."
        return self.answers.recorded(key, label, [told], credentials(self.corpora), ask=ask)

    def _detail(
        self, key: str, label: str, found: Sequence[DescribedCorpus], ask: str
    ) -> Field | None:
        """What a field of a kind that was not used says; None if it was."""
        if found or self._without_source:
            return None
        return self.answers.recorded(
            key, label, ["Not applicable: no such data."], credentials(self.corpora), ask=ask
        )

    def _listing(self, key: str, label: str, found: Sequence[DescribedCorpus]) -> tuple[Field, ...]:
        """The corpora of a kind, in rows."""
        if not found:
            return ()
        rows = tuple(
            (
                each.name,
                each.described.url or "not stated",
                each.size,
                ", ".join(each.media),
                " to ".join(each.months) if each.months else "not stated",
                each.described.content or "not stated",
            )
            for each in found
        )
        grid = Grid(("Corpus", "Link", "Size", "Modalities", "Period", "Content"), rows)
        return (self.answers.recorded(key, label, (), credentials(found), grid=grid),)

    def _public(self) -> tuple[Field, ...]:
        found = self._of("public_dataset")
        return (
            self._used("2.1 used", "Whether public datasets were used", found, "public_datasets"),
            *self._listing("2.1 list", "Public datasets, large ones among them", found),
            self.answers.asked("2.1 comments", "Additional comments", "public_comments"),
        )

    def _licensed(self) -> tuple[Field, ...]:
        found = self._of("licensed")
        label = "Whether licences were agreed with rightsholders"
        return (
            self._used("2.2.1 used", label, found, "licensed_data"),
            *self._listing("2.2.1 list", "Licensed datasets", found),
        )

    def _other_private(self) -> tuple[Field, ...]:
        found = self._of("other_private")
        label = "Whether datasets of other third parties were used"
        return (
            self._used("2.2.2 used", label, found, "other_private_data"),
            *self._listing("2.2.2 list", "Datasets of other third parties", found),
            self.answers.asked("2.2.2 comments", "Additional comments", "private_comments"),
        )

    def _crawled(self) -> tuple[Field, ...]:
        found = self._of("crawled")

        def named(each: DescribedCorpus) -> str | None:
            return _joined([crawler.name for crawler in each.described.crawlers or ()])

        def purposes(each: DescribedCorpus) -> str | None:
            return _of_crawlers(each, "purpose")

        def behaviour(each: DescribedCorpus) -> str | None:
            return _of_crawlers(each, "behaviour")

        details = (
            ("2.3 crawlers", "Names of crawlers", named, "crawlers"),
            ("2.3 purposes", "Purposes of crawlers", purposes, "crawler_purposes"),
            ("2.3 behaviour", "Behaviour of crawlers", behaviour, "crawler_behaviour"),
            (
                "2.3 period",
                "Period of collection",
                lambda each: " to ".join(each.months) if each.months else None,
                "crawl_period",
            ),
            (
                "2.3 content",
                "Types of content and of sources",
                lambda each: each.described.content,
                "crawl_content",
            ),
        )
        fields = [
            self._used("2.3 used", "Whether crawled data was used", found, "crawled_data"),
            *self._listing("2.3 list", "Crawled corpora", found),
        ]
        for key, label, fact, ask in details:
            absent = self._detail(key, label, found, ask)
            fields.append(absent or self.answers.of_corpora(key, label, found, fact, ask))
        return (
            *fields,
            *self._domains(found),
            self.answers.asked("2.3 comments", "Additional comments", "crawl_comments"),
        )

    def _domains(self, found: Sequence[DescribedCorpus]) -> tuple[Field, ...]:
        key, label, ask = "2.3 domains", "Most relevant domain names", "crawl_domains"
        if absent := self._detail(key, label, found, ask):
            return (absent,)
        small = bool(self.answers.statement and self.answers.statement.document.small_or_medium)
        rule = "largest 5 % or 1,000, whichever is less" if small else "largest 10 %"
        fields = []
        stated = [(each, each.described.domains) for each in found]
        for unit in sorted({domains.unit for _, domains in stated if domains}):
            sizes: Counter[str] = Counter()
            unlisted = 0
            of_unit = [(each, one) for each, one in stated if one and one.unit == unit]
            for _, domains in of_unit:
                sizes.update(domains.sizes)
                unlisted += domains.total - len(domains.sizes)
            wanted = listed_domains(len(sizes) + unlisted, small=small)
            top = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:wanted]
            grid = Grid(("Domain", f"Size in {unit}"), tuple((d, f"{n:,}") for d, n in top))
            told = f"{len(top):,} of {len(sizes) + unlisted:,} domains ({rule}), by {unit}"
            here = f"{key} by {unit}", f"{label}, by {unit}"
            if len(top) < wanted:
                why = f"The credentials list {len(top):,} of the {wanted:,} domains asked for"
                fields.append(self.answers.asked(*here, ask, known=[told], lacks=why, grid=grid))
            else:
                source = credentials([each for each, _ in of_unit])
                fields.append(self.answers.recorded(*here, [told], source, grid=grid, ask=ask))
        lacking = [each.name for each, domains in stated if domains is None]
        if lacking or not found:
            fields.append(self.answers.asked(key, label, ask, lacks=lacks(lacking)))
        return tuple(fields)

    def _user(self) -> tuple[Field, ...]:
        found = self._of("user")
        key, label, ask = "2.4 services", "Services that the data came from", "user_services"
        return (
            self._used("2.4 used", "Whether data of users was used", found, "user_data"),
            *self._listing("2.4 list", "Corpora of user data", found),
            self._detail(key, label, found, ask)
            or self.answers.of_corpora(key, label, found, lambda each: each.described.content, ask),
        )

    def _synthetic(self) -> tuple[Field, ...]:
        found = self._of("synthetic")
        key, label, ask = "2.5 models", "Models that made the data", "synthetic_models"

        def generators(each: DescribedCorpus) -> str | None:
            return _joined(each.described.generators)

        return (
            self._used("2.5 used", "Whether synthetic data was used", found, "synthetic_data"),
            *self._listing("2.5 list", "Synthetic corpora", found),
            self._detail(key, label, found, ask)
            or self.answers.of_corpora(key, label, found, generators, ask),
        )

    def _other(self) -> tuple[Field, ...]:
        found = self._of("other")
        return (
            self._used("2.6 used", "Whether other sources were used", found, "other_data"),
            *self._listing("2.6 list", "Corpora of other sources", found),
        )

    # 3

    def _reserved(self) -> tuple[Field, ...]:
        policy = self.model.policy.document
        named = [rule.name for rule in policy.rules if rule.match.names_reserved]
        told = (
            f"Rules of policy {policy} name corpora whose rights are reserved: {joined(named)}."
            if named
            else f"No rule of policy {policy} names corpora whose rights are reserved, so a "
            "corpus that states this could not train."
        )
        reserved = [each.name for each in self.corpora if each.described.opt_out == "reserved"]
        if reserved:
            told += f" Rights are reserved in {joined(reserved)}, which the run read."
        return (
            self.answers.asked(
                "3.1 code", "Whether signatory of the Code of Practice", "code_of_practice"
            ),
            self.answers.of_corpora(
                "3.1 measures",
                "Measures before training to respect reservations",
                self.corpora,
                lambda each: each.described.reservations,
                "opt_out_measures",
            ),
            self.answers.recorded(
                "3.1 policy", "What the signed policy does", [told], f"policy {policy}"
            ),
            self.answers.asked("3.1 link", "Link to the copyright policy", "copyright_policy"),
        )

    def _illegal(self) -> tuple[Field, ...]:
        return (
            self.answers.of_corpora(
                "3.2 measures",
                "Measures against illegal content",
                self.corpora,
                lambda each: each.described.illegal_content_measures,
                "illegal_content_measures",
            ),
        )

    def _processing(self) -> tuple[Field, ...]:
        def personal(each: DescribedCorpus) -> str | None:
            scan, stated = each.credential.pii_scan, each.described.personal_data
            if stated in (None, "unknown"):
                return None  # a scan alone says nothing of what it does not look for
            said = [stated, f"scanned by {scan.analyzer}" if scan else ""]
            return ", ".join(part for part in said if part) or None

        return (
            self.answers.of_corpora(
                "3.3 personal data",
                "Personal data, as issuers state it",
                self.corpora,
                personal,
                "personal_data",
            ),
            quarantine(self.model, self.answers),
            self.answers.asked("3.3 other", "Further information", "other_processing"),
        )


def _joined(words: Sequence[str] | None) -> str | None:
    return joined(words) if words else None


def _of_crawlers(each: DescribedCorpus, field: str) -> str | None:
    """What every crawler of a corpus states; None if one does not."""
    said = [(crawler.name, getattr(crawler, field)) for crawler in each.described.crawlers or ()]
    if not said or any(text is None for _, text in said):
        return None
    return "; ".join(f"{name}: {text}" for name, text in said)


def basis(model: VerifiedModel) -> tuple[str, ...]:
    """What a report of a model rests on, a sentence each."""
    policy = model.policy.document
    return (
        f"Attestation {model.digest} of run {model.attestation.run.id}, signed by {model.signer}, "
        "was verified",
        f"Policy {policy} ({model.policy.digest}), manifest {model.manifest.digest}",
        f"Assurance level: {model.assurance_level}. Records read: {model.depth}",
        "Records state what their signers said and govray counted. They do not establish that no "
        "other data was used, or that a statement is true",
    )


def dependencies(model: VerifiedModel, answers: Answers) -> Field:
    """What a model began with: weights and runs before it."""
    run = model.attestation.run
    known = [
        f"initial weights {name}, {digest}" for name, digest in (run.initial_weights or {}).items()
    ]
    known += [f"went on from run {each.run}" for each in run.ancestry or ()]
    key, label = "1.2 dependencies", "Model dependencies"
    if not known:
        told = "None: the run's record names no weights and no run that it began with."
        return answers.recorded(key, label, [told], "attestation, run", ask="dependencies")
    return answers.asked(
        key,
        label,
        "dependencies",
        known=known,
        lacks="Records have digests of what the run began with, and not what trained it",
    )


def quarantine(model: VerifiedModel, answers: Answers) -> Field:
    lines = [
        f"{each.corpus}: {each.records:,} records refused by {each.rule} ({each.reason})"
        for each in model.attestation.quarantine
    ]
    return answers.recorded(
        "3.3 refused",
        "Records refused before training",
        lines or ["None."],
        "attestation, quarantine",
    )
