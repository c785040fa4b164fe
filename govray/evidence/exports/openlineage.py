"""OpenLineage: the run as a START and a COMPLETE event, one JSON object per line.

Corpora are inputs, the model folder is the output. What reached which layer group directly is the
output's column lineage, with layer groups for columns: OpenLineage has no facet for models.

Source: https://openlineage.io/docs/spec/object-model, with the versions of the facets that
openlineage-python 1.54 writes.
"""

from __future__ import annotations

import json
from typing import Any

from govray import __version__
from govray.evidence.exports import corpus_text
from govray.evidence.exports.verified_facts import PRODUCER, CorpusFacts, VerifiedFacts

CORPORA, MODELS, JOBS = "govray:corpora", "govray:models", "govray:runs"
_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = {
    "columnLineage": "1-2-0/ColumnLineageDatasetFacet",
    "documentation": "1-1-0/DocumentationDatasetFacet",
    "inputStatistics": "1-0-0/InputStatisticsInputDatasetFacet",
    "ownership": "1-0-1/OwnershipDatasetFacet",
    "processing_engine": "1-1-1/ProcessingEngineRunFacet",
    "schema": "1-2-0/SchemaDatasetFacet",
    "tags": "1-0-0/TagsDatasetFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet",
}


def openlineage(facts: VerifiedFacts) -> bytes:
    """The events, a line each."""
    run = facts.attestation.run
    started = _event(facts, "START", run.started, [])
    finished = _event(facts, "COMPLETE", run.finished, [_model(facts)])
    return b"".join(
        json.dumps(each, sort_keys=True, allow_nan=False).encode() + b"\n"
        for each in (started, finished)
    )


def _facet(facet: str, **fields: Any) -> dict[str, Any]:
    version, _, kind = _FACETS[facet].partition("/")
    url = f"https://openlineage.io/spec/facets/{version}/{kind}.json#/$defs/{kind}"
    return {"_producer": PRODUCER, "_schemaURL": url} | fields


def _event(
    facts: VerifiedFacts, kind: str, time: str, outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    run = facts.attestation.run
    return {
        "eventType": kind,
        "eventTime": time,
        "producer": PRODUCER,
        "schemaURL": _EVENT,
        "run": {
            "runId": facts.uuid("openlineage"),
            "facets": {
                "processing_engine": _facet(
                    "processing_engine", name="govray", version=__version__
                ),
            },
        },
        "job": {"namespace": JOBS, "name": run.id, "facets": {}},
        "inputs": [
            *(_corpus(each) for each in facts.trained),
            *(_weights(*each) for each in sorted((run.initial_weights or {}).items())),
        ],
        "outputs": outputs,
    }


def _tags(pairs: dict[str, object]) -> dict[str, Any]:
    return _facet("tags", tags=[{"key": key, "value": str(pairs[key])} for key in sorted(pairs)])


def _corpus(corpus: CorpusFacts) -> dict[str, Any]:
    stated = corpus.credential
    return {
        "namespace": CORPORA,
        "name": corpus.name,
        "facets": {
            "version": _facet("version", datasetVersion=stated.records.root),
            "documentation": _facet("documentation", description=corpus_text.description(corpus)),
            "ownership": _facet("ownership", owners=[{"name": stated.issuer, "type": "ISSUER"}]),
            "tags": _tags({**stated.credential_class.texts(), "credential": corpus.digest}),
        },
        "inputFacets": {"inputStatistics": _facet("inputStatistics", rowCount=corpus.records)},
    }


def _weights(name: str, digest: str) -> dict[str, Any]:
    """A file of existing weights that the run began with."""
    return {
        "namespace": MODELS,
        "name": name,
        "facets": {"version": _facet("version", datasetVersion=digest)},
        "inputFacets": {},
    }


def _model(facts: VerifiedFacts) -> dict[str, Any]:
    tags: dict[str, object] = {"policy": facts.policy, "assurance": facts.assurance}
    tags |= {
        f"level:{each.name}:{group}": held
        for each in facts.trained
        for group, held in each.levels.items()
    }
    return {
        "namespace": MODELS,
        "name": facts.name,
        "facets": {
            "version": _facet("version", datasetVersion=facts.digest),
            "documentation": _facet("documentation", description=facts.attestation.disclaimer),
            "ownership": _facet("ownership", owners=[{"name": facts.signer, "type": "OPERATOR"}]),
            "schema": _facet(
                "schema",
                fields=[
                    {"name": group, "type": "layer group", "fields": []} for group in facts.groups
                ],
            ),
            "columnLineage": _facet(
                "columnLineage",
                dataset=[],
                fields={
                    group: {"inputFields": inputs}
                    for group in facts.groups
                    if (
                        inputs := [
                            _gradient(each, group)
                            for each in facts.trained
                            if group in each.reached
                        ]
                    )
                },
            ),
            "tags": _tags(tags),
        },
        "outputFacets": {},
    }


def _gradient(corpus: CorpusFacts, group: str) -> dict[str, Any]:
    [row] = [each for each in corpus.coverage if each.group == group]
    return {
        "namespace": CORPORA,
        "name": corpus.name,
        "field": "records",
        "transformations": [
            {
                "type": "DIRECT",
                "subtype": "AGGREGATION",
                "description": f"gradients of {row.tokens} loss targets in {row.steps} steps",
                "masking": False,
            }
        ],
    }
