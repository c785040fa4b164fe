"""The memorization manifest: what an audit found a model to hold of its training data.

This is the operator's statement, beside the attestation and not part of it. For each corpus it has
the layer groups that its route could reach. It says how far rows trained on differ from reserve
rows at each layer. It has how often greedy decoding continues them, how exposed planted canaries
are, and the hashes of records with evidence. The subjects are the files that were scored.

Invariants

* Evidence has its unit in its name or its docstring. Beside it is what it compares with: the
  reserve, or canaries that were never planted.
* **What was not checked is listed**, with the reason. An empty list of records says no more than
  that these samples gave no evidence.
* Texts are not in it: records are hashes, and a hash says nothing to who has not the record.

A verifier checks signature and form; the numbers are the signer's word.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from govray.errors import Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.privacy_audit import PrivacyAudit, PrivacyLevel
from govray.governance.formats.bounds import LongText, Natural, Positive, Share
from govray.governance.formats.document import Digest, Document, Name, Timestamp
from govray.governance.formats.statement import Signed, Subject
from govray.governance.policy.memorization_section import Magnitude, Number, PositiveNumber
from govray.governance.record.entropy_profile import Measure
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects


class SamplingScheme(Document):
    """How text is drawn from the model, and how surely it has to come.

    Attributes:
        temperature: Logits are divided by it.
        top_k: A token is drawn from so many most likely ones; 0: from all.
        probability: p of an (n, p)-discoverable extraction: that of n samples one is the text.
    """

    temperature: PositiveNumber
    top_k: Natural
    probability: Annotated[float, Field(gt=0, lt=1)]


class AuditSettings(Document):
    """How much was looked at.

    Attributes:
        rows: Rows of each side, per corpus, at most.
        prefix_tokens, suffix_tokens: Of an extraction: what is given, what has to come.
        candidates: Sampled secrets where there are too many to score all.
        controls: Canaries that were never planted, for each corpus that has planted ones.
        seed: What samples are drawn from.
        privacy: Of the bounds on ε.
        sampling: Of what sampling extracts.
    """

    rows: Positive
    prefix_tokens: Positive
    suffix_tokens: Positive
    candidates: Positive
    controls: Natural
    seed: Natural
    privacy: PrivacyLevel
    sampling: SamplingScheme


class Extraction(Document):
    """Greedy decoding from a row's first tokens: how many rows it continues word for word.

    The reserve's rows are the comparison: text that decoding continues without having read it.
    """

    rows: Natural
    extracted: Natural
    reserve_rows: Natural
    reserve_extracted: Natural

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.extracted > self.rows or self.reserve_extracted > self.reserve_rows:
            raise ValueError("more rows were extracted than tried")
        return self


class Discoverable(Document):
    """Of how many tried rows the continuation comes at least once in ``samples`` samples.

    That is, with the probability that the settings' scheme says. Rows are those of the extraction.
    """

    samples: Positive
    rows: Natural
    reserve_rows: Natural


class CanaryEvidence(Document):
    """One planted canary.

    Attributes:
        reads: How often recorded steps read it.
        exposure_bits: log2 of the candidates less log2 of its rank.
        scored: How many were scored.
        rank: Among all candidates; absent where the exposure is extrapolated.
        sampled_bits: What the samples alone show; absent where the rank is exact.
        fit_distance, fit_p: Kolmogorov–Smirnov distance of the extrapolating fit, and its p-value,
            which is too large for a fit to these samples. Absent if the rank is exact.
        extracted: Whether greedy decoding gives the secret.
        samples: The least number of samples for which the secret is discoverable under the
            settings' scheme. Absent if it is above 10^15, and without a scheme.
    """

    record: Digest
    reads: Natural
    exposure_bits: Magnitude
    candidates: Positive
    scored: Positive
    rank: Positive | None = None
    sampled_bits: Magnitude | None = None
    fit_distance: Share | None = None
    fit_p: Share | None = None
    extracted: bool
    samples: Positive | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        sampled = (self.sampled_bits, self.fit_distance, self.fit_p)
        if any((value is None) == (self.rank is None) for value in sampled):
            raise ValueError("an exposure is exact, with a rank, or extrapolated, with its fit")
        return self


class Counterfactual(Document):
    """Loss without the corpus less loss with it, nats a token, mean over rows.

    ``low`` and ``high`` are a 95 % bootstrap interval over rows.
    """

    against: Name
    rows: Positive
    gap: Number
    low: Number
    high: Number
    reserve_rows: Natural
    reserve_gap: Number | None = None


class RecordEvidence(Document):
    """A record that the model gave back: how many of its sampled rows decoding continued.

    ``samples`` is the least number of samples for which one of them is discoverable.
    """

    record: Digest
    extracted_rows: Positive
    samples: Positive | None = None


class CorpusEvidence(Document):
    """What was found of one corpus.

    Attributes:
        groups: The layer groups that its route could update, sorted.
        measures: Rows trained on against reserve rows, by layer.
        extraction: Of sampled rows.
        discoverable: Of the same rows, by number of samples, fewest first.
        records: Those that rows were extracted of, sorted by hash.
        canaries: The planted ones, by index.
        control_bits: Exposure of each canary that was never planted, in bits.
        privacy: A lower bound on ε, where a coin decided which canaries were planted.
        counterfactual: Against a run without the corpus.
    """

    corpus: Name
    groups: tuple[LongText, ...]
    measures: tuple[Measure, ...] = ()
    extraction: Extraction | None = None
    discoverable: tuple[Discoverable, ...] | None = None
    records: tuple[RecordEvidence, ...] = ()
    canaries: tuple[CanaryEvidence, ...] = ()
    control_bits: tuple[Magnitude, ...] = ()
    privacy: PrivacyAudit | None = None
    counterfactual: Counterfactual | None = None


class Unchecked(Document):
    """Something that the audit could not look at; ``corpus`` is absent where it is all of them."""

    check: LongText
    corpus: Name | None = None
    why: LongText


class MemorizationManifest(Signed):
    """The predicate. Its subjects are ``files``, the weights and adapters that were scored.

    Attributes:
        step: Steps that the weights hold.
        made: When, by the signer's clock.
        manifest: Digest of the prepare manifest that the records stand in.
        files: File → digest.
        settings: How much was looked at.
        corpora: Sorted by name.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/attestation/memorization/v1"

    run: Name
    step: Positive
    made: Timestamp
    manifest: Digest
    files: Annotated[dict[str, Digest], Field(min_length=1)]
    settings: AuditSettings
    corpora: tuple[CorpusEvidence, ...]
    unchecked: tuple[Unchecked, ...] = ()

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return tuple(Subject.of(name, digest) for name, digest in sorted(self.files.items()))

    @model_validator(mode="after")
    def _counted(self) -> Self:
        for each in self.corpora:
            tried = each.extraction
            if each.discoverable is None:
                continue
            if tried is None:
                raise ValueError(f"{each.corpus}: no row to discover anything by")
            counts = [(d.samples, d.rows, d.reserve_rows) for d in each.discoverable]
            if [n for n, _, _ in counts] != sorted({n for n, _, _ in counts}):
                raise ValueError(
                    f"{each.corpus}: numbers of samples are not sorted or not distinct"
                )
            if any(
                rows > tried.rows or reserve > tried.reserve_rows for _, rows, reserve in counts
            ):
                raise ValueError(f"{each.corpus}: more rows are discoverable than were tried")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        names = [each.corpus for each in self.corpora]
        if names != sorted(set(names)):
            raise ValueError("corpora are not sorted by name or not distinct")
        for each in self.corpora:
            records = [record.record for record in each.records]
            if records != sorted(set(records)):
                raise ValueError(f"{each.corpus}: records are not sorted or not distinct")
        return self


def verify_memorization_manifest(
    trust: TrustState, data: bytes, *, at: datetime
) -> Verified[MemorizationManifest]:
    """A manifest that an operator signed, about the files that it says were scored."""
    verified = trust.verify(MemorizationManifest, data, role="operator", at=at)
    check_subjects(verified, where=verified.document.run)
    if model_folder.WEIGHTS not in verified.document.files:
        raise Refused("it is about no weights", where=verified.document.run)
    return verified
