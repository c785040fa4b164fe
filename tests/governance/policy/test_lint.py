"""Advice about valid policies: findings, explanations, differences."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from govray.errors import GovrayError
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.lint import diff, explain, lint, outcome, representative_classes
from govray.governance.policy.policy_yaml import read_policy
from tests.support.credential_class import cls
from tests.support.table import each_row
from tests.support.tree import ROOT

LICENCES = (ROOT / "policies" / "licences.yaml").read_text()
GROUPS = ("embedding", "block.0", "block.1", "block.2", "block.3", "final_norm", "head")


def changed(old: str, new: str, version: int = 2) -> Policy:
    """The default policy's next version with one edit."""
    assert old in LICENCES
    text = LICENCES.replace(old, new, 1).replace("version: 1 ", f"version: {version} ")
    return read_policy(text)


def codes(*findings: Any) -> list[tuple[str, str]]:
    return [(finding.code, finding.subject) for finding in findings]


def with_rule(rule: str) -> Policy:
    return changed("  - name: open\n", f"  - {rule}\n  - name: open\n")


@each_row(
    ("match", "message"),
    [
        ("{license: mit}", "credentials write it 'MIT'"),
        ("{license: GPL-2.0}", "credentials write it 'GPL-2.0-only'"),
        ("{license: 'BSD License'}", "no SPDX licence expression"),
        ("{license: MIT, license_category: [copyleft]}", "which it does not have"),
    ],
)
def test_a_rule_that_no_class_can_match(match: str, message: str) -> None:
    findings = lint(with_rule(f"{{name: odd, match: {match}, profile: nothing}}"))
    (finding,) = (finding for finding in findings if finding.code == "never_matches")
    assert finding.subject == "odd"
    assert message in finding.message


def test_selectors_and_groups_that_the_model_lacks() -> None:
    policy = changed("profiles:", "groups: {experts: ['*.experts.*']}\nprofiles:")
    assert codes(*lint(policy, groups=GROUPS)) == [("unknown_group", "experts")]
    assert lint(policy, groups=(*GROUPS, "experts")) == ()
    assert lint(policy) == ()
    findings = lint(read_policy(LICENCES), groups=("embedding", "block.0", "head"))
    assert codes(*findings) == [("unknown_group", "upper_half")] * 2
    assert "'blocks[0.5:]'" in findings[0].message
    assert "'final_norm'" in findings[1].message


@each_row(
    ("old", "new", "who", "gained"),
    [
        ("profile: upper_half", "profile: everything", "category=copyleft_limited", "block.0"),
        ("blocks[0.5:]", "blocks[0.25:]", "category=copyleft_limited", "block.1"),
        (
            "{license_category: [copyleft]}\n    profile: nothing",
            "{license_category: [copyleft]}\n    profile: upper_half",
            "category=copyleft,",
            "block.2",
        ),
        ("rank: 8", "rank: 16", "category=commercial", "adapter:a-corpus"),
        ('adapter: "{corpus}"', "adapter: shared", "category=commercial", "adapter:shared"),
        ('license: "LicenseRef-*", ', "", "license=BUSL-1.1", "adapter:a-corpus"),
        ('{corpus: "*.vendored"}', '{corpus: "*.vendor"}', "corpus=x.vendored", "embedding"),
    ],
)
def test_widening(old: str, new: str, who: str, gained: str) -> None:
    previous, policy = read_policy(LICENCES), changed(old, new)
    exact = [f for f in lint(policy, previous=previous, groups=GROUPS) if f.code == "widens"]
    assert any(who in f.subject and gained in f.message for f in exact)
    by_text = {f.subject for f in lint(policy, previous=previous) if f.code == "widens"}
    assert {f.subject for f in exact} <= by_text


@each_row(
    ("old", "new"),
    [
        ("profile: everything", "profile: upper_half"),
        ("profile: everything", "profile: nothing"),
        ("rank: 8", "rank: 4"),
        ("blocks[0.5:]", "head"),
        ("[public_domain, permissive]", "[permissive]"),
    ],
)
def test_narrowing_is_no_finding(old: str, new: str) -> None:
    previous, policy = read_policy(LICENCES), changed(old, new)
    for groups in (GROUPS, None):
        findings = lint(policy, previous=previous, groups=groups)
        assert "widens" not in [finding.code for finding in findings]


def test_explain_names_the_rules_that_decided() -> None:
    policy = with_rule("{name: careful, match: {jurisdiction: NO}, profile: upper_half}")
    explanation = explain(policy, cls(), GROUPS)
    assert explanation.decision.rules == ("careful", "open")
    reasons = {r.group: (r.weight, r.rules) for r in explanation.groups}
    assert tuple(reasons) == GROUPS
    assert reasons["block.0"] == (0.0, ("careful",))
    assert reasons["block.2"] == (1.0, ("careful", "open"))


# Against every class that the policies tell apart

PROFILES = {
    "everything": {"layers": {"all": 1}},
    "top": {"layers": {"head": 1, "blocks[0.5:]": 0.5}},
    "head": {"layers": {"head": 0.5}},
    "removable": {"layers": {}, "adapter": "{corpus}", "rank": 8},
    "nothing": {"layers": {}},
}
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "corpus": st.lists(st.sampled_from(["a", "b*"]), min_size=1, max_size=2, unique=True),
        "licenseCategory": st.lists(
            st.sampled_from(["permissive", "copyleft"]), min_size=1, max_size=2, unique=True
        ),
    },
)
POLICIES = st.lists(
    st.tuples(MATCHES, st.sampled_from(sorted(PROFILES))), min_size=1, max_size=4
).map(
    lambda rules: Policy.from_json(
        {
            "name": "p",
            "version": 1,
            "valid": {"from": "2026-11-01T00:00:00Z", "until": "2027-11-01T00:00:00Z"},
            "onExpiry": "stop",
            "profiles": PROFILES,
            "rules": [
                {"name": f"r{i}", "match": match, "profile": profile}
                for i, (match, profile) in enumerate(rules)
            ],
        }
    )
)


@given(POLICIES)
def test_dropping_a_redundant_rule_changes_nothing(policy: Policy) -> None:
    for finding in lint(policy):
        if finding.code != "redundant_rule":
            continue
        rules = tuple(rule for rule in policy.rules if rule.name != finding.subject)
        without = policy.model_copy(update={"rules": rules})
        assert diff(policy, without, representative_classes(policy), GROUPS) == ()


@given(POLICIES, POLICIES)
def test_a_widening_in_a_model_is_never_missed_by_text(old: Policy, new: Policy) -> None:
    exact = {f.subject for f in lint(new, previous=old, groups=GROUPS) if f.code == "widens"}
    by_text = {f.subject for f in lint(new, previous=old) if f.code == "widens"}
    assert exact <= by_text


@given(POLICIES)
def test_explanations_agree_with_outcomes(policy: Policy) -> None:
    for one in representative_classes(policy):
        try:
            explanation = explain(policy, one, GROUPS)
        except GovrayError:
            assert outcome(policy, one, GROUPS).status == "refused"
            continue
        meant = outcome(policy, one, GROUPS)
        weights = {reason.group: reason.weight for reason in explanation.groups}
        assert all(reason.rules for reason in explanation.groups)
        if meant.status == "trains":
            assert weights == meant.weights
        elif meant.status == "quarantined":
            assert not any(weights.values())
