"""Data provenance metadata of the Data & Trust Alliance, 1.0.0: one document per corpus.

Some required fields ask for what no record states: a corpus's geographic origin, its date, the
purpose that it was made for. They say ``unknown``.

OASIS's draft that follows this standard (Data Provenance Metadata 1.0, CSD01) has no room for that.
It requires a location by URL, the publisher's namespace and a purpose from its list.

Source: data-provenance-standards-1.0.0.schema.json, as contributed to OASIS's repository dps.
"""

from __future__ import annotations

from typing import Any

from govray.evidence.exports import corpus_text
from govray.evidence.exports.json_file import json_file
from govray.evidence.exports.stated_url import iri
from govray.evidence.exports.verified_facts import UNKNOWN, CorpusFacts, VerifiedFacts

VERSION = "1.0.0"

_METHODS = {
    "crawled": "web-scraping-crawling",
    "user": "user-generated-content",
    "synthetic": "machine-generated-ml-ops",
    "licensed": "syndication",
    "public": "other",
}
"""Kind of source → the standard's code that is nearest."""


def data_provenance(facts: VerifiedFacts) -> dict[str, bytes]:
    """Corpus → its document as JSON."""
    return {each.name: json_file(_document(each)) for each in facts.trained}


def _document(corpus: CorpusFacts) -> dict[str, Any]:
    stated = corpus.credential
    source: dict[str, Any] = {
        "version": VERSION,
        "title": corpus.name,
        "id": corpus.digest,
        "issuer": [{"name": stated.issuer}],
        "description": corpus_text.description(corpus),
    }
    if stated.url:
        source["location"] = iri(stated.url)
    return {
        "source": source,
        "provenance": _provenance(corpus),
        "use": {
            "classification": _classification(corpus),
            "license": [stated.license],
            "intended-purpose": [
                {
                    "code": UNKNOWN,
                    "description": "No record states what it was made for. The terms allow, as "
                    f"the issuer states: {stated.use}. It trained layer groups "
                    f"{', '.join(corpus.reached)}.",
                }
            ],
        },
    }


def _provenance(corpus: CorpusFacts) -> dict[str, Any]:
    stated = corpus.credential
    method = {"code": UNKNOWN, "description": "No record states the kind of source."}
    if stated.source_type:
        method = {
            "code": _METHODS[stated.source_type],
            "description": f"The issuer states {stated.source_type}; the code is the nearest.",
        }
    found: dict[str, Any] = {
        # A credential states whose law applies, which is not where data came from.
        "origin-geography": [{"country": UNKNOWN}],
        "date": UNKNOWN,
        "generation-method": [method],
    }
    if stated.collection_period:
        period = stated.collection_period
        found["generation-period"] = {"start": period.from_, "end": period.until}
    if stated.modality:
        found["format"] = list(stated.modality)
    return found


def _classification(corpus: CorpusFacts) -> list[dict[str, Any]]:
    """Whether it was looked at for personal data, which "evaluated" means; not with what result."""
    scan = corpus.credential.pii_scan
    found: dict[str, Any] = {
        "regulation": {"code": "PI", "description": corpus_text.personal_data(corpus)},
        "evaluated": scan is not None or corpus.credential.personal_data not in (None, UNKNOWN),
    }
    if scan:
        found["tool"] = scan.analyzer
    return [found]
