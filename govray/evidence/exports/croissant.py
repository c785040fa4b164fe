"""Croissant 1.1 with the RAI vocabulary: one document per corpus that trained.

There is no distribution and no record set. A model folder holds no data, and its records bind
Merkle leaves rather than files. ``identifier`` is the Merkle root of the records.

Source: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html and
https://docs.mlcommons.org/croissant/docs/croissant-rai-spec.html.
"""

from __future__ import annotations

import re
from typing import Any

from govray.evidence.exports import corpus_text
from govray.evidence.exports.corpus_text import iri, json_file
from govray.evidence.exports.verified_facts import CorpusFacts, VerifiedFacts

CONFORMS_TO = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")

_OWN = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileObject "
    "fileProperty fileSet format includes isArray isLiveDataset jsonPath key md5 parentField "
    "path recordSet references regex repeated replace samplingRate separator source subField "
    "transform"
)
"""Terms of Croissant's that its context calls by their own names."""

_TERMS: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
} | {term: f"cr:{term}" for term in _OWN.split()}
_CONTEXT = dict(sorted(_TERMS.items()))
"""The specification's own, and PROV."""

_ONE_LICENCE = re.compile(r"[A-Za-z0-9.+-]+")


def croissant(facts: VerifiedFacts) -> dict[str, bytes]:
    """Corpus → its document as JSON-LD."""
    return {each.name: json_file(_dataset(facts, each)) for each in facts.trained}


def licence(expression: str) -> str:
    """The URL of a licence on SPDX's list, or the expression if it is no single one of them."""
    listed = _ONE_LICENCE.fullmatch(expression) and not expression.startswith("LicenseRef-")
    listed = listed and expression not in ("NONE", "NOASSERTION")  # which are no licences
    return f"https://spdx.org/licenses/{expression}.html" if listed else expression


def _dataset(facts: VerifiedFacts, corpus: CorpusFacts) -> dict[str, Any]:
    stated = corpus.credential
    described = corpus.described
    missing = ("creator", "datePublished", *(() if described.url else ("url",)))
    found: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": corpus.name,
        "description": corpus_text.description(corpus),
        "conformsTo": list(CONFORMS_TO),
        "identifier": stated.records.root,
        "license": licence(stated.license),
        "usageInfo": {
            "@type": "sc:CreativeWork",
            "name": f"Use that the terms allow, as the issuer states: {stated.use}",
        },
        # Who answers for the statements; no record names who published the data.
        "prov:wasAttributedTo": {"@type": "sc:Organization", "name": stated.issuer},
        "subjectOf": {
            "@type": "sc:CreativeWork",
            "name": "Signed credential",
            "identifier": corpus.digest,
        },
        "rai:personalSensitiveInformation": [corpus_text.personal_data(corpus)],
        "rai:dataUseCases": [
            f"Training of model {facts.name}, attestation {facts.digest}: its own gradient "
            f"updated {', '.join(corpus.reached)}."
        ],
        "rai:dataLimitations": [
            f"Sensitivity, as the issuer states: {stated.sensitivity}.",
            f"Jurisdiction, as the issuer states: {stated.jurisdiction}.",
            f"Handling of opt-outs, as the issuer states: {described.reservations}"
            if described.reservations
            else "No record states how opt-outs were handled.",
            f"Croissant requires {', '.join(missing)}, which no record states.",
        ],
    }
    if described.url:
        found["url"] = iri(described.url)
    if described.languages:
        found["inLanguage"] = list(described.languages)
    if described.source:
        found["rai:dataCollection"] = f"Kind of source, as the issuer states: {described.source}."
    if period := corpus.period:
        found["rai:dataCollectionTimeFrame"] = [period.from_, period.until]
    if stated.normalisation:
        found["rai:dataPreprocessingProtocol"] = [
            f"Before hashing: {', '.join(stated.normalisation)}."
        ]
    return found
