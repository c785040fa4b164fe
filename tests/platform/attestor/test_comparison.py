"""What the signer compares by itself: each fact that a parser could lie about, and the truth."""

from __future__ import annotations

from typing import Any

import pytest

from govray.errors import Refused
from govray.governance.attestation.environment import Setup
from govray.governance.attestation.model_attestation import Claims
from govray.governance.attestation.signing import UnsignedModel
from govray.governance.verify.envelope_steps import check_execution
from govray.platform.attestor.comparison import compare, execution, origin
from govray.platform.attestor.register_tables import Accepted, Attempt, Posted
from tests.support.registered import acceptance, attempt, committed, digest
from tests.support.world import AT, DIGEST, RUN, World

REGISTERED = "2026-11-10T07:59:00Z"
ANOTHER = digest("another")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> UnsignedModel:
    """What an honest parser says of a run."""
    world = World()
    return world.unsigned(world.deploy(tmp_path_factory.mktemp("world")))


def compared(truth: UnsignedModel, found: UnsignedModel, **accepted: Any) -> None:
    """Compare what the parser found with a register that has the truth."""
    claims = truth.claims
    head = {"ledger_size": claims.ledger.size, "ledger_root": claims.ledger.root}
    post = committed(1, 10, **head, run=RUN, commit=DIGEST)
    given = {"policy": claims.policy.digest, "manifests": (claims.manifest,)}
    form = acceptance(**given | {"run": RUN} | accepted)
    root = claims.trust_root.digest
    register = Accepted(**dict(form), registered=REGISTERED, trust_root=root)
    first = Attempt(**dict(attempt(1, "one")), submission="s-1", opened=REGISTERED)
    last = Posted(**dict(post), submission="s-1", attempt=1, at=REGISTERED)
    stated = execution(register, first, last, at=AT)
    check_execution(found.claims, stated, AT)
    compare(found, register, last)


def test_the_truth_passes(found: UnsignedModel) -> None:
    compared(found, found)


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ({"run": {"id": "run-of-another"}}, "run"),
        ({"trust_root": {"digest": ANOTHER}}, "trust root"),
        ({"policy": {"digest": ANOTHER}}, "policy"),
        ({"manifest": ANOTHER}, "may not read its prepared data"),
        ({"ledger": {"size": 1}}, "ledger's size"),
        ({"ledger": {"root": ANOTHER}}, "ledger's root"),
        ({"assurance_level": "replayChecked"}, "assurance level"),
        ({"replays": ("one",)}, "replays and removals"),
        ({"removals": ("one",)}, "replays and removals"),
        ({"run": {"started": "2026-11-10T07:00:00Z"}}, "after run.started"),
        ({"run": {"finished": "2026-11-10T07:59:30Z"}}, "after run.finished"),
        ({"run": {"finished": "2099-01-01T00:00:00Z"}}, "after execution.attested"),
        ({"environment": {"setup": Setup(pip=ANOTHER)}}, "other packages"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_lie_is_refused_by_its_name(
    found: UnsignedModel, lie: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused, match=named) as refused:
        compared(found, found.model_copy(update={"claims": changed(found.claims, lie)}))
    assert ANOTHER not in str(refused.value)
    assert "run-of-another" not in str(refused.value)


def test_a_run_whose_file_starts_from_weights_names_them(found: UnsignedModel) -> None:
    with pytest.raises(Refused, match="starts from weights, and it names none"):
        compared(found, found, pretrained=True)
    named = changed(found.claims, {"run": {"initial_weights": {"w.safetensors": ANOTHER}}})
    compared(found, found.model_copy(update={"claims": named}), pretrained=True)


def test_another_commit_is_refused(found: UnsignedModel) -> None:
    with pytest.raises(Refused, match="commit"):
        compared(found, found.model_copy(update={"commit": ANOTHER}))


OWN: dict[str, Any] = {"own_code": True, "isolation": "run", "archive": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"own_code": False},
        {"archive": ANOTHER},
        {"pip": ANOTHER},
        {"uv_lock": ANOTHER},
        {"image": ANOTHER},
        *({"isolation": each} for each in ("machine", "sharedCluster", "project")),
    ],
    ids=str,
)
def test_code_is_the_deployment_s_only_if_nothing_was_added(changes: dict[str, Any]) -> None:
    assert origin_of() == "deployment"
    assert origin_of(**changes) == "submitted"


def origin_of(**changes: Any) -> str:
    setup = {name: changes.pop(name) for name in [*changes] if name in ("pip", "uv_lock", "image")}
    form = acceptance(**OWN | changes)
    register = Accepted(**dict(form), registered=REGISTERED, trust_root=ANOTHER)
    first = attempt(1, "one", **setup)
    return origin(register, Attempt(**dict(first), submission="s-1", opened=REGISTERED))


def changed(claims: Claims, lie: dict[str, Any]) -> Claims:
    """The claims with other values, of a part of them where ``lie`` names one."""
    new = {
        name: getattr(claims, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in lie.items()
    }
    return claims.model_copy(update=new)
