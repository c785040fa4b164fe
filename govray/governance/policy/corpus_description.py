"""What a credential may say of how a corpus came to be: source, domains, period, opt-outs.

The European Commission's template for the public summary of training content (C(2025) 8311, Article
53(1)(d) of Regulation (EU) 2024/1689) asks for these facts. An issuer states them in the
credential's ``description``. Five of them are seen by policies: source, modality, languages,
opt-out handling and personal data.

Invariants:
    * What is not stated is not in the bytes of a credential, or of its class.
    * What is absent is unknown. No reader takes it for "none".
    * A description is bounded: it stays small beside its corpus, however large the crawl was.

Nothing here can tell whether a description is true.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from govray.governance.formats.bounds import LongText, Natural, Positive, ShortText
from govray.governance.formats.document import Digest, Document, Timestamp

MAX_DOMAINS = 50_000

LANGUAGE = r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$"
"""What a BCP 47 tag looks like."""

Language = Annotated[str, StringConstraints(pattern=LANGUAGE, max_length=64)]
Url = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*://\S+$", max_length=2000)]

Source: TypeAlias = Literal[
    "public_dataset", "licensed", "other_private", "crawled", "user", "synthetic", "other"
]
"""Where the data came from, in the order of the template's sections 2.1 to 2.6."""

Modality: TypeAlias = Literal["text", "code", "image", "audio", "video", "tabular", "other"]

OptOut: TypeAlias = Literal["honoured", "none_found", "reserved", "unchecked", "not_applicable"]
"""How reservations of rights (Article 4(3) of Directive (EU) 2019/790) were handled.

``honoured``: they were looked for, and what was reserved was left out. ``none_found``: they were
looked for, and there were none. ``reserved``: rights in what the corpus holds are reserved.
``unchecked``: nobody looked. ``not_applicable``: the issuer says that the exception is not relied
on, as for data that it licensed or made."""

PersonalData: TypeAlias = Literal["none", "pseudonymised", "present", "unknown"]

RESERVED: OptOut = "reserved"
UNSTATED = "unstated"
"""What a rule writes to match classes that do not state an attribute."""

Domain = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$",
        max_length=253,
    ),
]
"""A domain name in lower case, international ones in their ASCII form, without a final dot."""

Month = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]
"""``YYYY-MM``, which is as exact as the template asks."""


class Months(Document):
    """A span of whole months, both included."""

    first: Month
    last: Month

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first > self.last:
            raise ValueError(f"first {self.first} is after last {self.last}")
        return self


class Crawler(Document):
    """A crawler that collected the corpus.

    Attributes:
        name: As its user agent or its maker names it.
        purpose: What it was run for.
        behaviour: How it treated robots.txt, paywalls, CAPTCHAs and the like.
    """

    name: ShortText
    purpose: ShortText | None = None
    behaviour: LongText | None = None


class Domains(Document):
    """How much of the corpus came from which domain.

    Attributes:
        unit: What the sizes count.
        sizes: Domain → size, of the largest domains at least.
        total: How many domains there are, with those that ``sizes`` leaves out.
    """

    unit: Literal["records", "bytes", "tokens", "images", "seconds"]
    sizes: Annotated[dict[Domain, Positive], Field(min_length=1, max_length=MAX_DOMAINS)]
    total: Positive

    @model_validator(mode="after")
    def _has_as_many(self) -> Self:
        if self.total < len(self.sizes):
            raise ValueError(f"total is {self.total}, and {len(self.sizes)} domains are listed")
        return self


class OptOutCheck(Document):
    """That opt-outs were looked up for every record, in which snapshot of when.

    Attributes:
        snapshot: Digest of the snapshot's file.
        first: When its first file was fetched.
        last: When its last one was.
        agents: The user agents whose rules counted.
    """

    snapshot: Digest
    first: Timestamp
    last: Timestamp
    agents: Annotated[tuple[ShortText, ...], Field(min_length=1, max_length=100)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first > self.last:
            raise ValueError(f"first {self.first} is after last {self.last}")
        return self


class CorpusDescription(Document):
    """What an issuer says of how a corpus came to be.

    Attributes:
        url: Where it can be found.
        domains: Of crawled data.
        collected: When it was collected or made.
        content: What kinds of content it holds, in words.
        languages: BCP 47 tags.
        opt_out: How reservations of rights were handled.
        opt_out_check: That every record's URL was looked up, and what was reserved left out.
        opt_out_measures: The same in words: which protocols were read, and when.
        illegal_content_measures: How illegal content was looked for and left out.
        personal_data: What the issuer knows about personal data in it.
        crawlers: Of crawled data.
        generators: Names of the models that made synthetic data.
        hours: Length of its audio or video.
    """

    source: Source | None = None
    url: Url | None = None
    domains: Domains | None = None
    collected: Months | None = None
    content: LongText | None = None
    modality: Annotated[tuple[Modality, ...], Field(min_length=1, max_length=7)] | None = None
    languages: Annotated[tuple[Language, ...], Field(min_length=1, max_length=1000)] | None = None
    opt_out: OptOut | None = None
    opt_out_check: OptOutCheck | None = None
    opt_out_measures: LongText | None = None
    illegal_content_measures: LongText | None = None
    personal_data: PersonalData | None = None
    crawlers: Annotated[tuple[Crawler, ...], Field(min_length=1, max_length=100)] | None = None
    generators: Annotated[tuple[ShortText, ...], Field(min_length=1, max_length=100)] | None = None
    hours: Natural | None = None

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if all(value is None for _, value in self):
            raise ValueError("a description that states nothing is left out")
        for name, source in (
            ("domains", "crawled"), ("crawlers", "crawled"), ("generators", "synthetic"),
        ):  # fmt: skip
            if getattr(self, name) is not None and self.source != source:
                raise ValueError(f"{name} belong to data of the source {source!r} alone")
        for name in ("modality", "languages", "generators"):
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names one value twice")
        if self.opt_out_check is not None and self.opt_out not in ("honoured", "none_found"):
            raise ValueError("opt_out_check is of what was honoured, or where none was found")
        if self.hours is not None and not {"audio", "video"} & set(self.modality or ()):
            raise ValueError("hours belong to audio or video; name it in modality")
        return self

    @property
    def reservations(self) -> str | None:
        """How reservations of rights were handled, with the issuer's words."""
        return ": ".join(each for each in (self.opt_out, self.opt_out_measures) if each) or None


UNDESCRIBED = CorpusDescription.model_construct()
"""Stands for a description that is left out: it states nothing, so it is no document."""
