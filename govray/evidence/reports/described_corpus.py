"""What the records of a verified model say of each corpus that its run read.

Two records say it: the corpus's credential, by its description, and the manifest, which counts.
What a corpus does not state is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.policy.credential import Credential
from govray.governance.verify.verifier import VerifiedModel

Medium: TypeAlias = Literal["text", "image", "audio", "video", "other"]
"""The template's modalities."""

_MEDIA: Mapping[str, Medium] = {
    "text": "text",
    "code": "text",
    "tabular": "text",
    "image": "image",
    "audio": "audio",
    "video": "video",
}


@dataclass(frozen=True)
class DescribedCorpus:
    """One corpus that a run read.

    Attributes:
        units: What the run's manifest counts of its training rows, in the unit of ``counted``.
        counted: What rows hold: tokens of text, images, or tensors that are neither.
    """

    name: str
    credential: Credential
    records: int
    units: int
    counted: Medium

    @property
    def described(self) -> CorpusDescription:
        return self.credential.described

    @property
    def months(self) -> tuple[str, str] | None:
        """When it was collected: first and last month."""
        found = self.described.collected
        return (found.first, found.last) if found else None

    @property
    def media(self) -> tuple[Medium, ...]:
        """The template's modalities: those that the issuer names, and what rows hold."""
        named = [_MEDIA.get(each, "other") for each in self.described.modality or ()]
        held = [] if named and self.counted == "other" else [self.counted]
        return tuple(dict.fromkeys([*named, *held]))

    @property
    def hours(self) -> int | None:
        """Length of its audio or its video; None if it is not stated, or of which of them."""
        return None if {"audio", "video"} <= set(self.media) else self.described.hours

    @property
    def size(self) -> str:
        """What the manifest counts, in words."""
        return f"{self.units:,} {UNITS[self.counted]}"


UNITS: Mapping[Medium, str] = {
    "text": "tokens",
    "image": "images",
    "audio": "hours",
    "video": "hours",
    "other": "records",
}


def described_corpora(model: VerifiedModel) -> tuple[DescribedCorpus, ...]:
    """Of every corpus that the run's plan reads, by name. Corpora that it excludes were never read.

    Tokens are those of the run's own tokenizer, with a separator behind each record. Records of the
    reserve are not among them, for they are not trained on.
    """
    manifest = model.manifest.document
    schema = manifest.rows
    counted: Medium = "text"
    if schema is not None and schema.kind == "tensors":
        named = {tensor.name for tensor in schema.tensors or ()}
        counted = "image" if "image" in named else "other"
    found = []
    for entry in model.attestation.corpora:
        if entry.corpus in model.attestation.plan.excluded:
            continue
        tokens = sum(part.tokens for part in manifest.corpus(entry.corpus).parts)
        found.append(
            DescribedCorpus(
                name=entry.corpus,
                credential=model.credentials[entry.corpus].document,
                records=manifest.records(entry.corpus),
                units=tokens if counted == "text" else tokens // 2,  # a record and its separator
                counted=counted,
            )
        )
    return tuple(found)
