"""What monitor and audits stated of a model, and a supplier's part of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlmodel import Session

from govray.governance.attestation import model_folder
from govray.governance.attestation.memorization_manifest import (
    AuditSettings,
    CorpusEvidence,
    MemorizationManifest,
    RecordEvidence,
    SamplingScheme,
    Unchecked,
)
from govray.governance.attestation.privacy_audit import PrivacyLevel
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.record.entropy_profile import Measure, MonitorDecision, Side
from govray.governance.record.incidents import Findings
from govray.platform.service.routes import memorization
from govray.platform.service.routes.memorization import own_findings
from govray.platform.service.visible.lookup import full_digest
from govray.platform.store import tables
from tests.support.library import Library, library

DIGEST = canonical_json.sha256(b"something")


def measure(corpus: str) -> Measure:
    return Measure(
        corpus=corpus,
        layer="head",
        probe=Side(records=4, entropy=1.0),
        reserve=Side(records=4, entropy=2.0),
        top=(0, 0, 0, 0, 1, 3, 4, 4),
    )


AUDIT = MemorizationManifest(
    run="run-first",
    step=6,
    made="2026-11-11T00:00:00Z",
    manifest=DIGEST,
    files={model_folder.WEIGHTS: DIGEST, "adapters/acme/adapter_model.safetensors": DIGEST},
    settings=AuditSettings(
        rows=4,
        prefix_tokens=4,
        suffix_tokens=4,
        candidates=10,
        controls=0,
        seed=1,
        privacy=PrivacyLevel(confidence=0.95, delta=1e-5),
        sampling=SamplingScheme(temperature=1.0, top_k=40, probability=0.9),
    ),
    corpora=tuple(
        CorpusEvidence(
            corpus=corpus,
            groups=("head",),
            measures=(measure(corpus),),
            records=(
                RecordEvidence(record=canonical_json.sha256(corpus.encode()), extracted_rows=1),
            ),
        )
        for corpus in ("acme", "beta")
    ),
    unchecked=(
        Unchecked(check="canaries", why="none were planted"),
        Unchecked(check="extraction", corpus="gamma", why="its rows are too short"),
    ),
)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with library(tmp_path_factory.mktemp("library")) as running:
        with Session(running.service.engine) as session:
            session.add(sealed(running, audit(running)))
            # Of the same run, but of the weights that it had before.
            session.add(sealed(running, AUDIT))
            session.commit()
        yield running


def audit(running: Library) -> MemorizationManifest:
    """The audit of the weights that the attestation of ``first`` is about."""
    (weights,) = (
        s.sha256 for s in running.model("first").subjects if s.name == model_folder.WEIGHTS
    )
    return AUDIT.model_copy(
        update={"files": {**AUDIT.files, model_folder.WEIGHTS: full_digest(weights)}}
    )


def sealed(running: Library, document: MemorizationManifest) -> tables.MemorizationManifestRow:
    envelope = document.seal([running.shelf.world.keys.operator])
    return tables.MemorizationManifestRow(
        digest=read(MemorizationManifest, Envelope.parse(envelope)).digest,
        run=document.run,
        weights=document.files[model_folder.WEIGHTS],
        signer="operator",
        made=document.made,
        envelope=envelope,
    )


PATH = "/models/first/versions/1.0.0/memorization"


def test_a_supplier_reads_what_is_about_its_corpora(shelf: Library) -> None:
    answer = shelf.get("supplier", PATH)
    assert [c["corpus"] for c in answer.json()["audits"][0]["document"]["corpora"]] == ["acme"]
    assert not [name for name in ("alpha", "beta", "gamma") if name in answer.text]
    other = shelf.get("other supplier", PATH)
    assert "acme" not in other.text
    assert {"beta", "gamma"} <= {name for name in ("beta", "gamma") if name in other.text}


def test_the_page_shows_the_audits_of_the_route_and_no_more(shelf: Library) -> None:
    for kind, lines, beside in (("auditor", 2, True), ("supplier", 0, False)):
        page = shelf.service.client(kind).get("/models/first/1.0.0").text
        told = shelf.get(kind, PATH).json()["audits"]
        assert page.count("Audited at") == len(told) == 1
        assert len(told[0]["document"]["unchecked"]) == lines
        assert ("things were not checked" in page) == beside
        assert ("none were planted" in page) == beside  # of no corpus, so of all


def test_without_the_rule_it_would_read_everything(
    shelf: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memorization, "own_audit", lambda document, _: document)
    assert "beta" in shelf.get("supplier", PATH).text


def test_findings_of_others_are_left_out() -> None:
    findings = Findings(
        branches=(0, 3),
        decisions=tuple(
            MonitorDecision(
                step=2,
                corpus=c,
                action="gate",
                layers=("head",),
                evidence=(DIGEST,),
                since=0,
                e=20.0,
            )
            for c in ("acme", "beta")
        ),
        measured={"acme": 2, "beta": 2},
        measures=(measure("acme"), measure("beta")),
        unmeasurable=(),
    )
    own = own_findings(findings, {"acme"})
    assert "beta" not in str(own.to_json())
    assert (len(own.decisions), own.measured, own.branches) == (1, {"acme": 2}, (0,))
