"""CycloneDX 1.7: a bill of materials of the model (ML-BOM) with declarations.

The model is the subject, with its files below it; each corpus that trained is a component of type
``data``. The declarations say which levels of exclusion were found, with the signed documents of
the folder as evidence. Licences are those of the data: no record states the model's own.

Source: https://cyclonedx.org/docs/1.7/json/.
"""

from __future__ import annotations

from typing import Any

from govray import __version__
from govray.evidence.exports import corpus_text
from govray.evidence.exports.corpus_text import iri, json_file, run_history
from govray.evidence.exports.verified_facts import (
    LEVELS,
    PRODUCER,
    UNKNOWN,
    CorpusFacts,
    FileFacts,
    VerifiedFacts,
)
from govray.governance.attestation import model_folder

MODEL = "model"
OPERATOR = "assessor:operator"

_REQUIREMENTS = {
    1: "No recorded gradient of the corpus's own was applied to the layer group, and the ledger "
    "counts it.",
    2: "A replay of the run without the corpus gave the same bytes of the file that holds the "
    "layer group.",
    3: "The adapter that the corpus trained was removed from these files.",
}
_EVIDENCE = {
    "attestation": (model_folder.ATTESTATION, "The signed attestation of these files"),
    "ledger": (model_folder.LEDGER, "What each step of the run used"),
    "policy": (model_folder.POLICY, "Which class of data may update which layer groups"),
    "credentials": (model_folder.CREDENTIALS, "What the issuers state about the corpora"),
}


def cyclonedx(facts: VerifiedFacts) -> bytes:
    files = {each.name: each for each in facts.files}
    return json_file(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.7",
            "serialNumber": f"urn:uuid:{facts.uuid('cyclonedx')}",
            "version": 1,
            "metadata": {
                "timestamp": facts.date,
                "tools": {
                    "components": [
                        {"type": "application", "name": "govray", "version": __version__}
                    ]
                },
                "component": _model(facts),
            },
            "components": [
                *(_file(each) for each in facts.files),
                *(_data(each) for each in facts.trained),
            ],
            "dependencies": [
                {"ref": MODEL, "dependsOn": [_ref(each) for each in facts.trained]},
            ],
            # What was presented to govray is all here; whether more was used, nobody can tell.
            "compositions": [{"aggregate": "unknown", "dependencies": [MODEL]}],
            "declarations": _declarations(facts, files),
            "definitions": {"standards": [_standard()]},
        }
    )


def _ref(corpus: CorpusFacts) -> str:
    return f"corpus:{corpus.name}"


def _property(name: str, value: object) -> dict[str, str]:
    return {"name": f"govray:{name}", "value": str(value)}


def _file(file: FileFacts) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:{file.name}",
        "name": file.name,
        "hashes": [{"alg": "SHA-256", "content": file.sha256}],
    }


def _model(facts: VerifiedFacts) -> dict[str, Any]:
    parameters: dict[str, Any] = {"datasets": [{"ref": _ref(each)} for each in facts.trained]}
    if facts.entrypoint:
        parameters["modelArchitecture"] = facts.entrypoint
    card: dict[str, Any] = {
        "modelParameters": parameters,
        "considerations": {"technicalLimitations": [facts.attestation.disclaimer]},
        "properties": [
            _property("run", facts.attestation.run.id),
            _property("attestation", facts.digest),
            _property("policy", facts.policy),
            _property("policyDigest", facts.attestation.policy.digest),
            _property("trustRoot", facts.trust_root),
            _property("ledgerRoot", facts.attestation.ledger.root),
            _property("ledgerSize", facts.attestation.ledger.size),
            _property("steps", facts.attestation.steps),
            _property("assurance", facts.assurance),
            _property("depth", facts.depth),
            *(
                _property(f"transitive:{each.group}", ", ".join(each.transitive))
                for each in facts.attestation.taint
            ),
            *(_property(kind, text) for kind, text in run_history(facts)),
        ],
    }
    if result := facts.attestation.validation:
        card["quantitativeAnalysis"] = {
            "performanceMetrics": [
                {
                    "type": result.metric,
                    "value": repr(result.value),
                    "slice": ", ".join(result.corpora or ()) or "as the training loop measured",
                }
            ]
        }
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": MODEL,
        "name": facts.name,
        "version": facts.digest,
        "supplier": {"name": facts.signer},
        "modelCard": card,
    }
    if weights := facts.attestation.run.initial_weights:
        found["pedigree"] = {
            "ancestors": [
                {
                    "type": "file",
                    "name": name,
                    "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
                }
                for name, digest in sorted(weights.items())
            ]
        }
    return found


def _data(corpus: CorpusFacts) -> dict[str, Any]:
    stated = corpus.credential
    contents: dict[str, Any] = {
        "properties": [
            _property("credential", corpus.digest),
            _property("merkleRoot", stated.records.root),
            _property("records", stated.records.count),
            _property("recordsRead", corpus.records),
            _property("tokensRead", corpus.tokens),
            _property("licenseCategory", stated.license_category),
            _property("use", stated.use),
            _property("jurisdiction", stated.jurisdiction),
            _property("collectionPeriod", corpus_text.period(corpus)),
            *(_property(f"tokens:{row.group}", row.tokens) for row in corpus.coverage),
            *(_property(f"level:{group}", held) for group, held in corpus.levels.items()),
        ]
    }
    if corpus.described.url:
        contents["url"] = iri(corpus.described.url)
    data = {
        "type": "dataset",
        "name": corpus.name,
        "contents": contents,
        "classification": stated.sensitivity,
        "description": corpus_text.description(corpus),
        "governance": {"stewards": [{"organization": {"name": stated.issuer}}]},
    }
    if corpus.personal_data != UNKNOWN or stated.pii_scan:
        data["sensitiveData"] = [corpus_text.personal_data(corpus)]
    return {
        "type": "data",
        "bom-ref": _ref(corpus),
        "name": corpus.name,
        "version": corpus.digest,
        "licenses": [{"expression": stated.license, "acknowledgement": "declared"}],
        "data": [data],
    }


def _standard() -> dict[str, Any]:
    return {
        "bom-ref": "standard:levels",
        "name": "Levels of exclusion of a corpus from a layer group",
        "version": "1",
        "owner": "govray",
        "requirements": [
            {
                "bom-ref": f"level:{level}",
                "identifier": str(level),
                "title": LEVELS[level],
                "text": text,
            }
            for level, text in _REQUIREMENTS.items()
        ],
        "externalReferences": [{"type": "documentation", "url": f"{PRODUCER}docs/claims"}],
    }


def _declarations(facts: VerifiedFacts, files: dict[str, FileFacts]) -> dict[str, Any]:
    claims: list[dict[str, Any]] = []
    fulfilled: dict[int, list[str]] = {}
    for corpus in facts.trained:
        for level, groups in corpus.groups_by_level.items():
            if level not in _REQUIREMENTS:
                continue
            ref = f"claim:{corpus.name}:{level}"
            claims.append(
                {
                    "bom-ref": ref,
                    "target": MODEL,
                    "predicate": f"Level {level} ({LEVELS[level]}) holds of corpus {corpus.name} "
                    f"for layer groups {', '.join(groups)}.",
                    "reasoning": "The levels follow from the routes, the ledger and the replays, "
                    "and were computed again when the folder was verified. "
                    "Each requires those below it.",
                    "evidence": [f"evidence:{name}" for name in ("attestation", "ledger")],
                }
            )
            for each in range(1, level + 1):
                fulfilled.setdefault(each, []).append(ref)
    attestation: dict[str, Any] = {
        "summary": f"Signed by {facts.signer} under {facts.trust_root}: {facts.assurance}.",
        "assessor": OPERATOR,
        "map": [
            {
                "requirement": f"level:{level}",
                "claims": refs,
                "conformance": {
                    "score": 1,
                    "rationale": "It holds for the layer groups that the claims name, and is "
                    "stated of no other.",
                },
            }
            for level, refs in sorted(fulfilled.items())
        ],
    }
    return {
        "assessors": [
            {
                "bom-ref": OPERATOR,
                "thirdParty": False,
                "organization": {"name": facts.signer},
            },
            *(
                {
                    "bom-ref": f"assessor:{name}",
                    "thirdParty": True,
                    "organization": {"name": name},
                }
                for name in facts.witnesses
            ),
        ],
        "attestations": [attestation],
        "claims": claims,
        "evidence": [
            {
                "bom-ref": f"evidence:{name}",
                "description": f"{text}: {file}, sha256:{files[file].sha256}",
                "data": [{"name": file, "contents": {"url": file}}],
            }
            for name, (file, text) in _EVIDENCE.items()
        ],
        "affirmation": {
            "statement": facts.attestation.disclaimer,
            "signatories": [
                {
                    "role": "operator",
                    "organization": {"name": facts.signer},
                    "externalReference": {
                        "type": "attestation",
                        "url": model_folder.ATTESTATION,
                        "hashes": [
                            {
                                "alg": "SHA-256",
                                "content": files[model_folder.ATTESTATION].sha256,
                            }
                        ],
                    },
                }
            ],
        },
    }
