"""What the signer compares by itself: each fact that a parser could lie about, and the truth."""

from __future__ import annotations

from typing import Any

import pytest

from govray.errors import Refused
from govray.governance.attestation.environment import Setup
from govray.governance.attestation.model_attestation import Claims
from govray.governance.attestation.signing import UnsignedModel
from govray.platform.attestor.comparison import compare, execution
from govray.platform.attestor.register_tables import Accepted, Posted
from tests.support.registered import acceptance, committed, digest
from tests.support.world import AT, DIGEST, RUN, World

REGISTERED = "2026-11-10T07:59:00Z"
ANOTHER = digest("another")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> UnsignedModel:
    """What an honest parser says of a run."""
    world = World()
    return world.unsigned(world.deploy(tmp_path_factory.mktemp("world")))


def compared(truth: UnsignedModel, found: UnsignedModel) -> None:
    """Compare what the parser found with a register that has the truth."""
    claims = truth.claims
    head = {"ledger_size": claims.ledger.size, "ledger_root": claims.ledger.root}
    post = committed(1, 10, **head, run=RUN, commit=DIGEST)
    given = {"policy": claims.policy.digest, "trust_root": claims.trust_root.digest}
    given |= {"manifests": (claims.manifest,), "submitted": REGISTERED}
    register = Accepted(**dict(acceptance(**given | {"run": RUN})), registered=REGISTERED)
    last = Posted(**dict(post), submission="s-1", attempt=1, at=REGISTERED)
    stated = execution(register, last, at=AT)
    compare(found, stated, register, last, root=claims.trust_root.digest, at=AT)


def test_the_truth_passes(found: UnsignedModel) -> None:
    compared(found, found)


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ({"run": {"id": "run-of-another"}}, "run"),
        ({"trust_root": {"digest": ANOTHER}}, "trust root"),
        ({"policy": {"digest": ANOTHER}}, "policy"),
        ({"manifest": ANOTHER}, "manifest"),
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


def test_another_commit_is_refused(found: UnsignedModel) -> None:
    with pytest.raises(Refused, match="commit"):
        compared(found, found.model_copy(update={"commit": ANOTHER}))


def changed(claims: Claims, lie: dict[str, Any]) -> Claims:
    """The claims with other values, of a part of them where ``lie`` names one."""
    new = {
        name: getattr(claims, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in lie.items()
    }
    return claims.model_copy(update=new)
