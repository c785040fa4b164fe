"""Policies that match descriptions, compared by the service: each attribute is one text."""

from __future__ import annotations

from govray.governance.policy.policy_yaml import read_policy
from govray.platform.service.routes.policies import difference, stack
from tests.support.tree import ROOT

OBSERVE = (ROOT / "policies" / "observe.yaml").read_text()
RULE = "{name: x, match: {modality: [text], opt_out: reserved}, profile: everything}"


def test_a_described_class_is_told_in_texts() -> None:
    before = read_policy(OBSERVE)
    after = read_policy(OBSERVE.replace("rules:\n", f"rules:\n  - {RULE}\n"))
    changes = difference(before, after, stack(after, 2)).changes
    assert changes
    for change in changes:
        assert change.before.status == "refused"
        assert change.after.status == "trains"
        assert change.credential_class["optOut"] == "reserved"
        assert change.credential_class["modality"] == "text"
    assert difference(after, after, stack(after, 2)).changes == []
