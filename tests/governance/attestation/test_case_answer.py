"""Answers to cases: golden bytes, what a verifier refuses, and names that are withheld."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.cli import main
from govray.errors import Malformed, Refused, Untrusted
from govray.governance.attestation.case_answer import (
    LIMITS,
    AskedModel,
    CaseAnswer,
    CaseFinding,
    CaseOutcome,
    CaseRequest,
    CaseSearch,
    CaseUnchecked,
    CorpusClass,
    CorpusSearch,
    ShownVersion,
    case_answer,
    verify_case_answer,
)
from govray.governance.formats import canonical_json
from govray.governance.formats.statement import Subject, seal
from govray.governance.formats.text_form import TEXT_FORM
from tests.support.world import AT, World

DIGEST = "sha256:" + "7c" * 32
KIND = CorpusClass(license_category="commercial", jurisdiction="DE", source="licensed")
FINDING = CaseFinding(
    attestation=DIGEST,
    corpus="acme",
    corpus_class=KIND,
    match="near",
    jaccard=0.5,
    overlap=0.75,
    split="train",
    steps=(3, 5),
    step_count=2,
    groups=("adapter:acme",),
    levels={"head": 1, "adapter:acme": 0},
)
FOUND = CaseSearch(
    models=(AskedModel(attestation=DIGEST, name="gpt", versions=("gpt 1.0.0",)),),
    searches=(
        CorpusSearch(match="exact", corpora=2, of=2),
        CorpusSearch(match="near", corpora=1, of=2, least_overlap=0.5, text_form=TEXT_FORM),
    ),
    findings=(FINDING,),
    unchecked=(CaseUnchecked(match="near", corpus="beta", corpus_class=KIND, why="Not at hand."),),
)
OUTCOME = CaseOutcome(
    decision="removed",
    reason="The adapter is deleted.",
    decided="2026-11-19T09:00:00Z",
    versions=(ShownVersion(model="gpt", version="1.1.0", attestation=DIGEST),),
)
GOLDEN = (
    b'{"answered":"2026-11-18T09:00:00Z","case":"c-0123456789ab","found":true,"limits":"...",'
    b'"outcome":{"decided":"2026-11-19T09:00:00Z","decision":"removed",'
    b'"reason":"The adapter is deleted.","versions":[{"attestation":"@","lists":[],'
    b'"model":"gpt","version":"1.1.0"}]},"received":"2026-11-17T09:00:00Z",'
    b'"request":{"sha256":"@","size":12},"result":{"findings":[{"attestation":"@",'
    b'"corpusClass":{"jurisdiction":"DE","licenseCategory":"commercial","source":"licensed"},'
    b'"groups":["adapter:*"],"jaccard":0.5,"levels":{"head":1},"match":"near","overlap":0.75,'
    b'"split":"train","stepCount":2,"steps":[3,5]}],"models":[{"attestation":"@","name":"gpt",'
    b'"versions":["gpt 1.0.0"]}],"more":false,"searches":[{"corpora":2,"match":"exact","of":2},'
    b'{"corpora":1,"leastOverlap":0.5,"match":"near","of":2,'
    b'"textForm":"govray.dev/compared-text/v1"}],"unchecked":[{"corpusClass":'
    b'{"jurisdiction":"DE","licenseCategory":"commercial","source":"licensed"},"match":"near",'
    b'"why":"Not at hand."}]}}'
)


def answer(**changes: Any) -> CaseAnswer:
    fields: dict[str, Any] = {
        "received": "2026-11-17T09:00:00Z",
        "answered": "2026-11-18T09:00:00Z",
        "outcome": OUTCOME,
    }
    request = changes.pop("request", CaseRequest(sha256=DIGEST, size=12))
    return case_answer("c-0123456789ab", request, FOUND, **fields | changes)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_golden_fields() -> None:
    told = answer().to_json()
    assert told["limits"] == LIMITS
    encoded = canonical_json.encode(told | {"limits": "..."})
    assert encoded.replace(DIGEST.encode(), b"@") == GOLDEN


def test_a_withheld_name_stands_nowhere() -> None:
    assert b"acme" not in canonical_json.encode(answer().to_json())
    told = canonical_json.encode(answer(released=["acme"]).to_json())
    assert told.count(b"acme") == 3
    assert b"beta" not in told


def test_an_operators_answer_verifies_about_what_was_asked(world: World) -> None:
    envelope = answer().seal([world.keys.operator])
    verified = verify_case_answer(world.trust, envelope, at=AT)
    assert verified.subjects == (Subject.of("request", DIGEST),)
    domains = answer(request=CaseRequest(domains=("example.org",)))
    sealed = domains.seal([world.keys.operator])
    assert verify_case_answer(world.trust, sealed, at=AT).document == domains


def test_what_a_verifier_refuses(world: World) -> None:
    document, operator = answer(), world.keys.operator
    with pytest.raises(Untrusted):
        verify_case_answer(world.trust, document.seal([world.keys.auditor]), at=AT)
    other = [Subject.of("request", "sha256:" + "0" * 64)]
    with pytest.raises(Refused, match="subject is not what its document says"):
        verify_case_answer(world.trust, seal(document, other, [operator]), at=AT)
    softer = document.model_copy(update={"limits": "The work was not used."})
    with pytest.raises(Refused, match="the limits have other words"):
        verify_case_answer(world.trust, softer.seal([operator]), at=AT)
    denied = document.model_copy(update={"found": False})
    with pytest.raises(Malformed, match="found does not follow"):
        verify_case_answer(world.trust, seal(denied, document.subjects, [operator]), at=AT)


def test_the_command_verifies_and_shows_it(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, root = tmp_path / "answer.dsse.json", tmp_path / "root.json"
    root.write_bytes(world.root)
    path.write_bytes(answer().seal([world.keys.operator]))
    words = ["--trust-root", str(root), "--at", "2026-11-20T00:00:00Z"]
    assert main(["verify", str(path), *words]) == 0
    assert "VERIFIED answer to case c-0123456789ab" in capsys.readouterr().out
    assert main(["show", str(path)]) == 0
    assert LIMITS[:60] in capsys.readouterr().out
    path.write_bytes(answer().seal([world.keys.auditor]))
    assert main(["verify", str(path), *words]) == 1


@pytest.mark.parametrize(
    "search",
    [
        {"match": "near", "least_overlap": 0.5},
        {"match": "near", "text_form": TEXT_FORM},
        {"match": "exact", "text_form": TEXT_FORM},
    ],
)
def test_only_a_search_for_near_copies_says_how_and_each_does(search: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="says how"):
        CorpusSearch(corpora=1, of=1, **search)
