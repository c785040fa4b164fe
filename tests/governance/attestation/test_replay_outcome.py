"""Who replayed a run: the operator itself, or a witness whose signed outcome lies in the folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from govray.errors import VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation, Replay
from govray.governance.attestation.model_folder import Bundle
from govray.governance.attestation.replay_outcome import ReplayOutcome
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.authority import Authority
from govray.governance.verify import verifier as verifying
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.witnessing import REPLAYED
from tests.support.world import AT, DIGEST, ENVIRONMENT, RUN, World, write


def outcome_of(attestation: Attestation, weights: str, **changes: Any) -> ReplayOutcome:
    fields: dict[str, Any] = {
        "run": RUN,
        "replay": "replay-1",
        "party": "auditor",
        "without": "acme",
        "start": 0,
        "stop": attestation.plan.max_steps,
        "max_steps": attestation.plan.max_steps,
        "plan": attestation.plan.without("acme").digest,
        "identical": True,
        "original": {model_folder.WEIGHTS: weights},
        "replayed": {model_folder.WEIGHTS: weights},
        "finished": REPLAYED,
        "environment": ENVIRONMENT,
        "differences": (),
    }
    return ReplayOutcome(**fields | changes)


Signed = Callable[[World, ReplayOutcome], bytes]


def by_auditor(world: World, outcome: ReplayOutcome) -> bytes:
    return outcome.seal([world.keys.auditor])


def deploy(
    world: World,
    folder: Path,
    *,
    sign: Signed = by_auditor,
    stated: str = "auditor",
    named: bool = True,
    lines: Callable[[bytes], Sequence[bytes]] = lambda data: [data],
    **changes: Any,
) -> Path:
    """A model whose attestation states a replay without acme, and the outcome beside it."""
    plain = verify(world.deploy(folder / "plain"), trust_root=world.root, at=AT)
    weights = next(s.sha256 for s in plain.subjects if s.name == model_folder.WEIGHTS)
    envelope = sign(world, outcome_of(plain.attestation, weights, **changes))
    replay = Replay(
        corpus="acme",
        party=stated,
        plan=plain.attestation.plan.without("acme").digest,
        files={model_folder.WEIGHTS: weights},
        environment=ENVIRONMENT,
        outcome=canonical_json.sha256(Envelope.parse(envelope).payload) if named else None,
    )
    data = b"".join(line + b"\n" for line in lines(envelope))

    def pinning(attestation: Attestation) -> Attestation:
        files = dict(attestation.files) | (
            {model_folder.REPLAYS: canonical_json.sha256(data)} if data else {}
        )
        return attestation.model_copy(update={"files": files})

    model = folder / "model"
    if data:
        write(model / model_folder.REPLAYS, data)
    return world.deploy(model, replays=[replay], attestation=pinning)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def who(model: VerifiedModel) -> list[str]:
    return [str(each) for each in model.replayed_by["acme"]]


def test_a_witness_is_named(world: World, tmp_path: Path) -> None:
    found = verify(deploy(world, tmp_path), trust_root=world.root, at=AT)
    assert who(found) == ["auditor"]
    assert found.assurance_level == "selfAttested"  # nobody signed this attestation's files


@dataclass(frozen=True)
class Case:
    """An outcome that must not count, and why."""

    name: str
    arguments: dict[str, Any]
    says: str


def by(signer: Callable[[World], LocalSigner]) -> Signed:
    return lambda world, outcome: outcome.seal([signer(world)])


CASES = [
    Case("a stranger", {"sign": by(lambda w: LocalSigner.generate())}, "witness authority"),
    Case("the operator", {"sign": by(lambda w: w.keys.operator)}, "witness authority"),
    Case("another name", {"changes": {"party": "big-audit"}}, "auditor signed it"),
    Case("another name in the text", {"stated": "big-audit"}, "another party"),
    Case("none of it there", {"lines": lambda data: []}, "is not here"),
    Case("not named", {"named": False}, "does not name"),
    Case("twice", {"lines": lambda data: [data, data]}, "twice"),
    Case("another run", {"changes": {"run": "run-0000"}}, "another run"),
    Case("another corpus", {"changes": {"without": "beta"}}, "another without"),
    Case("no corpus", {"changes": {"without": None}}, "another without"),
    Case("another plan", {"changes": {"plan": DIGEST}}, "another plan"),
    Case("some steps", {"changes": {"stop": 3}}, "not whole"),
    Case("a difference", {"changes": {"identical": False}}, "not whole and identical"),
    Case(
        "other files",
        {"changes": {n: {model_folder.WEIGHTS: DIGEST} for n in ("original", "replayed")}},
        "another replayed",
    ),
    Case(
        "another machine",
        {"changes": {"environment": ENVIRONMENT.model_copy(update={"threads": 2})}},
        "another environment",
    ),
    Case("before the run ended", {"changes": {"finished": "2026-11-10T08:59:59Z"}}, "before"),
    Case("in the future", {"changes": {"finished": "2026-11-21T00:00:00Z"}}, "after the reference"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nobody_elses_word_counts(case: Case, world: World, tmp_path: Path) -> None:
    arguments = {n: v for n, v in case.arguments.items() if n != "changes"}
    model = deploy(world, tmp_path, **arguments, **case.arguments.get("changes", {}))
    with pytest.raises(VerificationFailed, match="step 11") as caught:
        verify(model, trust_root=world.root, at=AT)
    assert case.says in str(caught.value)


def test_outcomes_that_were_swapped_after_they_were_hashed_are_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further signature changes no outcome, so only the digest of the file shows it."""
    model = deploy(world, tmp_path)
    path = model / model_folder.REPLAYS
    other = Envelope.parse(path.read_bytes()[:-1]).cosign([LocalSigner.generate()]) + b"\n"
    check = verifying.check_files

    def checked(*given: Any) -> Any:
        path.write_bytes(attested)
        found = check(*given)
        path.write_bytes(other)
        return found

    attested = path.read_bytes()
    monkeypatch.setattr(verifying, "check_files", checked)
    with pytest.raises(VerificationFailed, match="changed while it was being checked") as caught:
        verify(model, trust_root=world.root, at=AT)
    assert caught.value.where == model_folder.REPLAYS
    # The control: without the digest the swapped file is believed.
    lines = Bundle.lines

    def unbound(self: Bundle, name: str, **named: Any) -> Any:
        return lines(
            self, name, **(named | ({"digest": None} if name == model_folder.REPLAYS else {}))
        )

    monkeypatch.setattr(Bundle, "lines", unbound)
    assert who(verify(model, trust_root=world.root, at=AT)) == ["auditor"]


def test_a_witness_with_the_operators_key_is_none(tmp_path: Path) -> None:
    class OneKey(World):
        def authorities(self) -> tuple[Authority, ...]:
            *others, auditor = super().authorities()
            keys = (self.keys.operator.public_key, self.keys.auditor.public_key)
            return (*others, auditor.model_copy(update={"keys": keys}))

    world = OneKey()
    model = deploy(world, tmp_path, sign=by(lambda w: w.keys.operator))
    with pytest.raises(VerificationFailed, match="no second party"):
        verify(model, trust_root=world.root, at=AT)


@pytest.mark.parametrize(
    "changes",
    [{"identical": True, "replayed": {model_folder.WEIGHTS: DIGEST}}, {"start": 3, "stop": 3}],
)
def test_an_outcome_agrees_with_itself(
    world: World, tmp_path: Path, changes: dict[str, Any]
) -> None:
    plan = verify(world.deploy(tmp_path / "m"), trust_root=world.root, at=AT).attestation
    with pytest.raises(ValueError, match=r"digests differ|not of the plan"):
        outcome_of(plan, canonical_json.sha256(b"w"), **changes)
