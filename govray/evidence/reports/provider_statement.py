"""What a provider states of a model that no record of a run can: who it is, and what it is for.

A provider fills in a small YAML file and signs it. The key is one of the trust root's: of an
operator or of the authority for policies. A statement is about one attestation, so it serves no
other model.

Every field that a report may ask for is optional. One that is left out is missing in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from govray.errors import Malformed, Untrusted
from govray.evidence.reports.draft import Draft
from govray.governance.formats.bounds import LongText, Positive, ShortText
from govray.governance.formats.document import (
    Digest,
    Name,
    Timestamp,
    format_time,
    parse_time,
)
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import Signed, Subject
from govray.governance.trust.authority import Role
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects
from govray.printable import printable

SCHEMA = "govray.dev/provider-statement/v1"
MAX_BYTES = 1 << 20
SIGNERS: tuple[Role, ...] = ("operator", "policy")
"""Roles whose authorities may sign a statement."""

_Day = Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
_Month = Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]


class ProviderStatement(Signed):
    """A provider's answers. `ASKED` names those that reports take.

    Attributes:
        name: Of the model, as files and registries name it.
        version: Of this statement; only increases.
        attestation: Digest of the model's attestation.
        issued: When, by the signer's clock.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/provider-statement/v1"

    name: Name
    version: Positive
    attestation: Digest
    issued: Timestamp

    summary_version: ShortText | None = None
    summary_updated: _Day | None = None
    provider: ShortText | None = None
    provider_contact: ShortText | None = None
    representative: ShortText | None = None
    representative_contact: ShortText | None = None
    small_or_medium: bool | None = None
    model_names: ShortText | None = None
    dependencies: LongText | None = None
    market_date: _Day | None = None
    sizes: LongText | None = None
    content_types: LongText | None = None
    latest_collection: _Month | None = None
    continuous_training: LongText | None = None
    languages: LongText | None = None
    characteristics: LongText | None = None
    size_comments: LongText | None = None
    unstated_sources: LongText | None = None
    public_datasets: LongText | None = None
    public_comments: LongText | None = None
    licensed_data: LongText | None = None
    other_private_data: LongText | None = None
    private_comments: LongText | None = None
    crawled_data: LongText | None = None
    crawlers: LongText | None = None
    crawler_purposes: LongText | None = None
    crawler_behaviour: LongText | None = None
    crawl_period: LongText | None = None
    crawl_content: LongText | None = None
    crawl_domains: LongText | None = None
    crawl_comments: LongText | None = None
    user_data: LongText | None = None
    user_services: LongText | None = None
    synthetic_data: LongText | None = None
    synthetic_models: LongText | None = None
    other_data: LongText | None = None
    code_of_practice: bool | None = None
    opt_out_measures: LongText | None = None
    copyright_policy: ShortText | None = None
    illegal_content_measures: LongText | None = None
    personal_data: LongText | None = None
    other_processing: LongText | None = None

    intended_tasks: LongText | None = None
    integration: LongText | None = None
    acceptable_use: LongText | None = None
    distribution: LongText | None = None
    input_output: LongText | None = None
    licence: ShortText | None = None
    technical_means: LongText | None = None
    design_choices: LongText | None = None
    optimised_for: LongText | None = None
    curation: LongText | None = None
    bias_measures: LongText | None = None
    training_flops: ShortText | None = None
    energy: ShortText | None = None
    evaluation: LongText | None = None

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The attestation."""
        return (Subject.of(self.name, self.attestation),)

    def text(self, field: str) -> str | None:
        """What a field says, yes and no in words; None if it is left out."""
        value = getattr(self, field)
        return {True: "Yes", False: "No"}[value] if isinstance(value, bool) else value

    @property
    def stated(self) -> tuple[str, ...]:
        """The fields that are answered, in their order."""
        return tuple(field for field in ASKED if getattr(self, field) is not None)


_OWN = ("name", "version", "attestation", "issued")
ASKED = tuple(name for name in ProviderStatement.model_fields if name not in _OWN)
"""The fields that reports may ask for, in their order."""


def verify_statement(
    trust: TrustState, data: bytes, *, attestation: str, at: datetime
) -> Verified[ProviderStatement]:
    """Return the statement in the envelope ``data`` if the trust root carries it.

    1. An authority of one of `SIGNERS` signed it, with its threshold of keys.
    2. The subject is the attestation that it names.
    3. It is about this attestation.
    4. It was issued at ``at`` or before.

    Raises:
        Untrusted: The first of the numbered conditions that does not hold.
    """
    where = "provider statement"
    if not data.lstrip().startswith(b"{"):
        raise Malformed(
            "it is not signed", where=where, do="Sign it: govray sign FILE --key KEY; give the "
            "envelope that this writes"
        )  # fmt: skip
    verified = _signed(trust, Envelope.parse(data, limit=MAX_BYTES, where=where), at, where)  # 1
    statement = verified.document
    check_subjects(verified, where=where)  # 2
    if statement.attestation != attestation:  # 3
        raise Untrusted(
            f"it is about the attestation {statement.attestation}, this model's is {attestation}",
            where=where,
            do="Write one for this model: govray report provider-template",
        )
    if parse_time(statement.issued) > at:  # 4
        raise Untrusted(
            f"issued at {statement.issued}, after the reference time",
            where=where,
            do="Check the reference time",
        )
    return verified


def _signed(
    trust: TrustState, envelope: Envelope, at: datetime, where: str
) -> Verified[ProviderStatement]:
    refusals: list[Untrusted] = []
    for role in SIGNERS:
        try:
            return trust.verify(ProviderStatement, envelope, role=role, at=at, where=where)
        except Untrusted as error:
            refusals.append(error)
    raise refusals[0]


_EXAMPLES = {
    "summary_updated": "2026-11-30",
    "market_date": "2026-11-30",
    "latest_collection": "2026-10",
    "small_or_medium": "false",
    "code_of_practice": "false",
}


def provider_template(name: str, attestation: str, drafts: Sequence[Draft], *, at: datetime) -> str:
    """The YAML text, with a commented line for each field that a draft lacks. It answers nothing as
    it stands. ``drafts``: made without a statement."""
    own = ProviderStatement.from_source(
        {"name": name, "version": 1, "attestation": attestation, "issued": format_time(at)},
        where="--name",
    )
    lines = [
        "# What no record of the model states. Take the # away from a line that you answer.",
        "# Sign with: govray sign FILE --key KEY. A signed line is your word. Leave out what you",
        "# do not know: the report says that it is missing.",
        f"schema: {SCHEMA}",
        f"name: {own.name}",
        f"version: {own.version}",
        f"attestation: {own.attestation}",
        f"issued: {own.issued}",
    ]
    told: set[str] = set()
    for draft in drafts:
        lines += ["", f"# {draft.title}"]
        for section in draft.sections:
            for field in section.fields:
                if field.state != "missing" or field.ask is None or field.ask in told:
                    continue
                told.add(field.ask)
                example = _EXAMPLES.get(field.ask, "…")
                lines += [
                    f"# {section.number} {printable(field.label)}",
                    f"#{field.ask}: {example}",
                ]
    return "\n".join(lines) + "\n"
