"""SPDX 3.0.1: the model as an AI package, each corpus as a dataset package, with their licences.

The elements are those of the AI and Dataset profiles. ``profileConformance`` does not name the two:
they ask for a download location and a release time, which no record states.

Source: https://spdx.github.io/spdx-spec/v3.0.1/.
"""

from __future__ import annotations

import json
from typing import Any

from govray.evidence.exports import corpus_text
from govray.evidence.exports.corpus_text import iri, json_file, run_history
from govray.evidence.exports.verified_facts import PRODUCER, CorpusFacts, VerifiedFacts

CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
CREATION = "_:creation"
_MOST = 2**63 - 1
"""Readers of a size may hold it in 64 bits."""

_CONFIDENTIALITY = {
    "public": "clear",
    "internal": "green",
    "confidential": "amber",
    "restricted": "red",
}
"""Nearest of the Traffic Light Protocol's words."""

_TYPES = {
    "text": "text",
    "code": "text",
    "image": "image",
    "audio": "audio",
    "video": "video",
    "tabular": "structured",
    "other": "other",
}


def spdx(facts: VerifiedFacts) -> bytes:
    base = f"{PRODUCER}exports/spdx/{facts.hex}#"
    model, signer = f"{base}model", f"{base}agent-{facts.signer}"
    issuers = sorted({each.credential.issuer for each in facts.trained} - {facts.signer})
    licences = sorted({each.credential.license for each in facts.trained})
    licence_id = {each: f"{base}licence-{number}" for number, each in enumerate(licences)}
    elements = [
        *(_agent(f"{base}agent-{name}", name) for name in (facts.signer, *issuers)),
        _element(f"{base}tool", "Tool", name="govray"),
        _model(facts, model, signer),
        *(
            _element(
                f"{base}file-{number}",
                "software_File",
                name=file.name,
                software_primaryPurpose="model" if file.weights else "evidence",
                verifiedUsing=[_hash(file.sha256)],
            )
            for number, file in enumerate(facts.files)
        ),
        _relation(
            f"{base}contains",
            model,
            "contains",
            [f"{base}file-{number}" for number in range(len(facts.files))],
            "complete",
        ),
        *(_dataset(facts, each, base) for each in facts.trained),
        *(
            _element(
                licence_id[each],
                "simplelicensing_LicenseExpression",
                simplelicensing_licenseExpression=each,
            )
            for each in licences
        ),
        *(
            _relation(
                f"{base}licensed-{each.name}",
                f"{base}corpus-{each.name}",
                "hasDeclaredLicense",
                [licence_id[each.credential.license]],
            )
            for each in facts.trained
        ),
    ]
    weights = sorted((facts.attestation.run.initial_weights or {}).items())
    for number, (name, digest) in enumerate(weights):
        initial = f"{base}initial-{number}"
        elements += [
            _element(
                initial,
                "software_File",
                name=name,
                software_primaryPurpose="model",
                verifiedUsing=[_hash(digest.removeprefix("sha256:"))],
            ),
            _relation(f"{base}ancestor-{number}", initial, "ancestorOf", [model]),
        ]
    if facts.trained:
        elements.append(
            _relation(
                f"{base}trained",
                model,
                "trainedOn",
                [f"{base}corpus-{each.name}" for each in facts.trained],
                "noAssertion",
            )
        )
    document = _element(
        f"{base}document",
        "SpdxDocument",
        rootElement=[model],
        element=[each["spdxId"] for each in elements],
        profileConformance=["core", "software", "simpleLicensing"],
        comment=facts.attestation.disclaimer,
    )
    creation = {
        "type": "CreationInfo",
        "@id": CREATION,
        "specVersion": "3.0.1",
        "created": facts.date,
        "createdBy": [signer],
        "createdUsing": [f"{base}tool"],
    }
    return json_file({"@context": CONTEXT, "@graph": [creation, document, *elements]})


def _element(spdx_id: str, kind: str, **properties: Any) -> dict[str, Any]:
    return {"type": kind, "spdxId": spdx_id, "creationInfo": CREATION} | properties


def _agent(spdx_id: str, name: str) -> dict[str, Any]:
    return _element(spdx_id, "Organization", name=name)


def _hash(sha256: str) -> dict[str, str]:
    return {"type": "Hash", "algorithm": "sha256", "hashValue": sha256}


def _entry(key: str, value: object) -> dict[str, str]:
    return {"type": "DictionaryEntry", "key": key, "value": str(value)}


def _relation(
    spdx_id: str, source: str, kind: str, targets: list[str], completeness: str | None = None
) -> dict[str, Any]:
    known = {"completeness": completeness} if completeness else {}
    return _element(
        spdx_id,
        "Relationship",
        relationshipType=kind,
        to=targets,
        **{"from": source},
        **known,
    )


def _model(facts: VerifiedFacts, model: str, signer: str) -> dict[str, Any]:
    attestation = facts.attestation
    excluded = [
        f"{each.name}: {sentence}"
        for each in facts.trained
        for sentence in corpus_text.exclusion(each)
    ]
    told = [
        f"Run {attestation.run.id} under policy {facts.policy} ({attestation.policy.digest}): "
        f"{attestation.steps} steps, whose ledger has the root {attestation.ledger.root}.",
        *excluded,
        *(f"{kind}: {text}." for kind, text in run_history(facts)),
        f"Attestation {facts.digest}, signed by {facts.signer} under {facts.trust_root}: "
        f"{facts.assurance}.",
    ]
    found = _element(
        model,
        "ai_AIPackage",
        name=facts.name,
        software_packageVersion=facts.digest,
        software_primaryPurpose="model",
        builtTime=attestation.run.finished,
        suppliedBy=signer,
        ai_informationAboutTraining="\n".join(told),
        ai_limitation=attestation.disclaimer,
        ai_useSensitivePersonalInformation="noAssertion",
    )
    if facts.entrypoint:
        found["ai_typeOfModel"] = [facts.entrypoint]
    if facts.hyperparameters:
        found["ai_hyperparameter"] = [
            _entry(key, value if isinstance(value, str) else json.dumps(value))
            for key, value in facts.hyperparameters.items()
        ]
    if result := attestation.validation:
        found["ai_metric"] = [_entry(result.metric, repr(result.value))]
    return found


def _dataset(facts: VerifiedFacts, corpus: CorpusFacts, base: str) -> dict[str, Any]:
    stated = corpus.credential
    found = _element(
        f"{base}corpus-{corpus.name}",
        "dataset_DatasetPackage",
        name=corpus.name,
        description=corpus_text.description(corpus),
        software_packageVersion=corpus.digest,
        software_primaryPurpose="data",
        suppliedBy=f"{base}agent-{stated.issuer}",
        dataset_datasetType=sorted({_TYPES[each] for each in corpus.described.modality or ()})
        or ["noAssertion"],
        dataset_confidentialityLevel=_CONFIDENTIALITY[stated.sensitivity],
        # No personal data is no sensitive data; of other answers nothing follows.
        dataset_hasSensitivePersonalInformation="no"
        if corpus.personal_data == "none"
        else "noAssertion",
        dataset_intendedUse=f"The terms allow, as the issuer states: {stated.use}.",
        comment="\n".join(
            [
                f"Steps read {corpus.records} records and {corpus.tokens} loss targets of it.",
                f"Its own gradient updated {', '.join(corpus.reached)}.",
                *corpus_text.exclusion(corpus),
                corpus_text.personal_data(corpus),
            ]
        ),
    )
    if stated.records.count <= _MOST:
        found["dataset_datasetSize"] = stated.records.count
    if corpus.described.source:
        found["dataset_dataCollectionProcess"] = (
            f"{corpus.described.source}, collected {corpus_text.period(corpus)}"
        )
    if stated.normalisation:
        found["dataset_dataPreprocessing"] = list(stated.normalisation)
    if corpus.described.url:
        found["software_homePage"] = iri(corpus.described.url)
    return found
