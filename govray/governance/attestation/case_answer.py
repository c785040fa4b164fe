"""The answer to a case: what the records of some models say of somebody's text, file or domains.

Somebody asks whether a work was used. The operator of a service looks into the recorded data and
signs what was found. Corpora are named by their class alone: licence category, jurisdiction and
kind of source. A name stands there only where the operator released it.

Invariants

* "Not found" is said of the data presented, by the searches that are listed. What could not be
  looked at is listed too. `LIMITS` says the rest, and every answer carries it word for word.
* The statement's subject is what was asked: the SHA-256 of the bytes. So whoever has the file can
  check that the answer is about it. An answer about domains is about itself.
* A withheld corpus has no name anywhere in the answer: its adapter is ``adapter:*``.

A verifier checks signature, form and subject; what was found is the signer's word.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from govray.errors import Refused
from govray.governance.attestation.model_attestation import Level
from govray.governance.formats.bounds import LongText, Natural, Positive, Share, ShortText
from govray.governance.formats.document import Digest, Document, Name, Timestamp
from govray.governance.formats.statement import Signed, Subject, self_subject
from govray.governance.policy.corpus_description import Domain, Source
from govray.governance.policy.route import ADAPTER
from govray.governance.trust.license import LicenseCategory
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects

LIMITS = (
    "The signer states what govray's records of the named models say of this request. \"Not "
    'found" means that the named searches found no match in the data presented to govray. It '
    "does not mean that the work was not used. Data that was never presented would not be found. "
    "Nor would paraphrases, translations, or texts too short to search for. A short quotation may "
    "be missed. A match says that such bytes or words were in a corpus. It does not say who made "
    "them first, nor that a use was unlawful. Layer groups are those that a recorded gradient of "
    "the corpus updated. Indirect effects through other layers remain possible. Domains are those "
    "that an issuer stated. Times are the signer's. This is not legal advice, a warranty or a "
    "certification."
)

MOST_FINDINGS = 500
WITHHELD = f"{ADAPTER}*"
"""An adapter whose name would be that of a withheld corpus."""

Match: TypeAlias = Literal["exact", "near", "domain"]
"""The same bytes; common sequences of letters; a domain that the issuer states."""

Decision: TypeAlias = Literal["removed", "revoked", "refused", "nothing_found"]
"""The adapter that the corpus trained is deleted. Its credential is revoked, and a later version is
without it. Neither, for a reason. Nothing was found that could be decided on."""


class CorpusClass(Document):
    """What is said of a corpus whose name is withheld; ``source`` is absent if no issuer says."""

    license_category: LicenseCategory
    jurisdiction: ShortText
    source: Source | None = None


class CaseRequest(Document):
    """What was asked about: bytes, or domains.

    Attributes:
        sha256: Of the bytes.
        size: Of the bytes.
        domains: As descriptions of corpora write them, sorted.
    """

    sha256: Digest | None = None
    size: Natural | None = None
    domains: Annotated[tuple[Domain, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if (self.sha256 is None) == (self.domains is None) or (self.sha256 is None) != (
            self.size is None
        ):
            raise ValueError("a request is about bytes, with their size, or about domains")
        return self


class AskedModel(Document):
    """A model whose records were looked into, by its attestation.

    ``versions`` are its names in the registry, such as ``python-source-gpt 1.4.0``.
    """

    attestation: Digest
    name: ShortText
    versions: tuple[ShortText, ...] = ()


class CorpusSearch(Document):
    """One kind of search: how many of the models' corpora it could look at.

    Attributes:
        of: Corpora of the models. One that several models read counts once.
        least_overlap: Smallest overlap of a near copy.
        text_form: How texts were compared for near copies (``formats/text_form.py``).
    """

    match: Match
    corpora: Natural
    of: Natural
    least_overlap: Share | None = None
    text_form: ShortText | None = None

    @model_validator(mode="after")
    def _says_how(self) -> Self:
        near = self.match == "near"
        if (self.least_overlap is not None) != near or (self.text_form is not None) != near:
            raise ValueError("a search for near copies says how, and no other does")
        return self


class CaseFinding(Document):
    """A match, in one corpus of one model.

    Attributes:
        attestation: Of the model.
        corpus: Its name; absent where it is withheld.
        corpus_class: What is said of it in any case.
        match: How it was found.
        jaccard: Common sequences of letters among all of both texts; of a near copy.
        overlap: Common ones among those of the text that has fewer; of a near copy.
        domain: The listed domain, where it was found by that.
        size, unit: How much of the corpus came from the domain, as its issuer states.
        split: What became of the record. Of a domain it is absent, since no record is known.
        steps: The first steps that read it, or for a domain none.
        step_count: How many read it; for a domain, how many read the corpus.
        groups: Layer groups that these steps' gradients updated.
        levels: Layer group → how well the corpus's exclusion from it is supported, 0 to 3.
        removed: When the adapter that it trained was deleted; absent if it was not.
    """

    attestation: Digest
    corpus: Name | None = None
    corpus_class: CorpusClass
    match: Match
    jaccard: Share | None = None
    overlap: Share | None = None
    domain: Domain | None = None
    size: Positive | None = None
    unit: ShortText | None = None
    split: Literal["train", "reserve", "empty"] | None = None
    steps: tuple[Natural, ...] = ()
    step_count: Natural
    groups: tuple[ShortText, ...] = ()
    levels: dict[ShortText, Level] | None = None
    removed: Timestamp | None = None

    @model_validator(mode="after")
    def _as_found(self) -> Self:
        near, listed = self.match == "near", self.match == "domain"
        if (self.overlap is not None) != near or (self.jaccard is not None) != near:
            raise ValueError("a near copy has its similarity, and nothing else has one")
        if (self.domain is not None) != listed or (self.split is None) != listed:
            raise ValueError("a record has its split, a domain its name")
        return self

    def withheld(self, released: Collection[str]) -> CaseFinding:
        """The same without the corpus's name, unless that is among ``released``."""
        if self.corpus in released:
            return self
        groups = [WITHHELD if each.startswith(ADAPTER) else each for each in self.groups]
        levels = {k: v for k, v in (self.levels or {}).items() if not k.startswith(ADAPTER)}
        return self.model_copy(
            update={
                "corpus": None,
                "groups": tuple(dict.fromkeys(groups)),
                "levels": levels or None,
            }
        )


class CaseUnchecked(Document):
    """What a search could not look at; ``corpus_class`` is absent where it is all of them."""

    match: Match
    corpus: Name | None = None
    corpus_class: CorpusClass | None = None
    why: LongText

    def withheld(self, released: Collection[str]) -> CaseUnchecked:
        """The same without the corpus's name, unless that is among ``released``."""
        return self if self.corpus in released else self.model_copy(update={"corpus": None})


class ShownVersion(Document):
    """A version of a model whose attestation shows what was decided, for the model's findings.

    ``lists`` are the digests of revocation lists that name the corpora, where those are revoked.
    """

    model: ShortText
    version: ShortText
    attestation: Digest
    lists: tuple[Digest, ...] = ()


class CaseOutcome(Document):
    """What was decided, and which attestations show it.

    Attributes:
        reason: For people.
        decided: When, by the signer's clock.
        versions: The signer looked into their attestations: they are without the corpora that were
            found, or state the adapters' removal.
    """

    decision: Decision
    reason: LongText
    decided: Timestamp
    versions: tuple[ShownVersion, ...] = ()


class CaseSearch(Document):
    """What searches found for a case, before anybody decided what of it is told.

    Attributes:
        searches: What was searched for, in how many corpora.
        findings: The best match first.
        more: Whether there are more than these.
        unchecked: What could not be looked at.
    """

    models: tuple[AskedModel, ...]
    searches: tuple[CorpusSearch, ...]
    findings: Annotated[tuple[CaseFinding, ...], Field(max_length=MOST_FINDINGS)] = ()
    more: bool = False
    unchecked: tuple[CaseUnchecked, ...] = ()


class CaseAnswer(Signed):
    """The predicate. See the module.

    Attributes:
        received, answered: When, by the signer's clock.
        found: Whether there is a finding.
        result: What searches found, without the names that are withheld.
        outcome: What was decided; absent while nothing is.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/attestation/case-answer/v1"

    case: Name
    received: Timestamp
    answered: Timestamp
    request: CaseRequest
    found: bool
    result: CaseSearch
    outcome: CaseOutcome | None = None
    limits: str

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What was asked, by its digest; of domains, the answer itself."""
        asked = self.request.sha256
        if asked is None:
            return (self_subject(self.case, self),)
        return (Subject.of("request", asked),)

    @model_validator(mode="after")
    def _follows(self) -> Self:
        if self.found != bool(self.result.findings):
            raise ValueError("found does not follow from the findings")
        return self


def case_answer(
    case: str,
    request: CaseRequest,
    result: CaseSearch,
    *,
    received: str,
    answered: str,
    released: Collection[str] = (),
    outcome: CaseOutcome | None = None,
) -> CaseAnswer:
    """The answer that a search leads to: corpora that are not ``released`` have no name in it."""
    told = result.model_copy(
        update={
            "findings": tuple(each.withheld(released) for each in result.findings),
            "unchecked": tuple(each.withheld(released) for each in result.unchecked),
        }
    )
    return CaseAnswer(
        case=case,
        received=received,
        answered=answered,
        request=request,
        found=bool(result.findings),
        result=told,
        outcome=outcome,
        limits=LIMITS,
    )


def verify_case_answer(trust: TrustState, data: bytes, *, at: datetime) -> Verified[CaseAnswer]:
    """An answer that an operator signed, about what it says was asked."""
    verified = trust.verify(CaseAnswer, data, role="operator", at=at)
    document = verified.document
    check_subjects(verified, where=f"case {document.case}")
    if document.limits != LIMITS:
        raise Refused("the limits have other words", where=f"case {document.case}")
    return verified
