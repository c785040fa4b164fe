"""The policy's memorization section: its source, what lint, explain and diff say of it."""

from __future__ import annotations

import pytest

from govray.errors import Malformed
from govray.governance.policy.credential import CredentialClass
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.lint import explain, lint
from govray.governance.policy.policy_yaml import read_policy
from tests.support.table import each_row

PLAIN = """\
schema: govray.dev/depth-policy/v1
name: licences
version: 1
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  everything: {layers: all}
  removable: {layers: none, adapter: "{corpus}", rank: 8}
  nothing: {layers: none}
  upper: {layers: {"block.*": 0.5, head: 1}, adapter: "{corpus}", rank: 8}
  head: {layers: {head: 1}}
  shared: {layers: none, adapter: shared, rank: 2}
rules:
  - {name: open, match: {license_category: permissive}, profile: everything}
  - {name: contracts, match: {license_category: commercial}, profile: removable}
"""
SECTION = """\
memorization:
  every: 100
  probe_rows: 32
  odds: {"*": 3, head: 2, "he*": 2.5}
  rollbacks: 1
  actions:
    open: {action: gate, fallback: nothing}
    contracts: rollback
"""
GROUPS = ("embedding", "block.0", "final_norm", "head")


def policy(section: str = SECTION, *, version: int = 1) -> Policy:
    return read_policy(PLAIN.replace("version: 1", f"version: {version}") + section)


def the_class(license: str) -> CredentialClass:
    category = {"MIT": "permissive"}.get(license, "commercial")
    return CredentialClass.from_source(
        {
            "corpus": "acme",
            "license": license,
            "license_category": category,
            "jurisdiction": "ZZ",
            "sensitivity": "public",
            "use": "commercial",
        }
    )


@each_row(
    ("old", "new", "message"),
    [
        ('{"*": 3, head: 2, "he*": 2.5}', "calibrated", "not calibrated"),
        ("open: {", "opne: {", "did you mean 'open'"),
        ("fallback: nothing", "fallback: nothign", "did you mean 'nothing'"),
        ("fallback: nothing", "fallback: shared", "trains adapter 'shared'"),
        ("every: 100", "evry: 100", "did you mean 'every'"),
        ("  rollbacks: 1\n", "", "budget"),
        ("head: 2", "head: 0.5", "odds"),
        ('{"*": 3, head: 2, "he*": 2.5}', "0.5", "odds"),
        ('{"*": 3, head: 2, "he*": 2.5}', "{}", "odds"),
        ("every: 100", "every: 100\n  rules: [opne, contracts, open]", "did you mean 'open'"),
        ("every: 100", "every: 100\n  rules: [open]", "'contracts', which rules does not have"),
        ("every: 100", "every: 100\n  rules: [open, contracts, open]", "names one rule twice"),
        ("every: 100", "every: 100\n  rules: []", "rules"),
    ],
)
def test_a_section_that_says_something_else_is_refused(old: str, new: str, message: str) -> None:
    assert old in SECTION
    with pytest.raises(Malformed, match=message):
        policy(SECTION.replace(old, new))


def test_the_strictest_action_of_the_matching_rules_counts() -> None:
    section = policy().memorization
    assert section is not None
    assert section.action(["open", "contracts"]) == "rollback"
    assert section.action(["open"]) == "gate"
    assert section.action(["unnamed"]) == "flag"


def test_of_several_tolerances_of_a_layer_the_smallest_holds() -> None:
    section = policy().memorization
    assert section is not None
    assert [section.tolerance(each) for each in ("head", "help", "block.0")] == [2, 2.5, 3]
    short = policy(SECTION.replace('{"*": 3, head: 2, "he*": 2.5}', "1.5")).memorization
    assert short is not None
    assert short.odds == {"*": 1.5}
    one = short.model_copy(update={"odds": {"head": 1.5}})
    assert one.tolerance("block.0") is None


def test_lint_tells_a_relaxed_monitor_from_a_stricter_one() -> None:
    before = policy()
    relaxed = policy(
        SECTION.replace("every: 100", "every: 200")
        .replace('"*": 3', '"*": 4')
        .replace("open: {action: gate, fallback: nothing}", "open: flag"),
        version=2,
    )
    found = [f.message for f in lint(relaxed, previous=before) if f.code == "relaxes_monitor"]
    assert any("every goes from 100 to 200" in each for each in found)
    assert any("layers * may have grow from 3 to 4" in each for each in found)
    assert any("flag follows, not gate" in each for each in found)
    stricter = policy(SECTION.replace("every: 100", "every: 50"), version=2)
    assert "relaxes_monitor" not in {f.code for f in lint(stricter, previous=before)}
    gone = [f.code for f in lint(policy("", version=2), previous=before)]
    assert gone.count("relaxes_monitor") == 1
    unused = {f.subject for f in lint(before) if f.code == "unused_profile"}
    assert unused == {"upper", "head", "shared"}  # a fallback is a use


def measuring(*rules: str, version: int = 1) -> Policy:
    """The policy that measures classes of these rules, and gates ``open``."""
    section = SECTION.replace("every: 100", f"every: 100\n  rules: [{', '.join(rules)}]")
    section = section.replace("  rollbacks: 1\n", "").replace("    contracts: rollback\n", "")
    return policy(section, version=version)


def test_only_classes_of_the_named_rules_are_measured() -> None:
    section = measuring("open").memorization
    assert section is not None
    assert section.watches(["open", "restricted"])
    assert not section.watches(["contracts"])
    assert explain(measuring("open"), the_class("MIT"), GROUPS).memorization == "gate"
    assert explain(measuring("open"), the_class("LicenseRef-acme"), GROUPS).memorization is None
    assert Policy.from_json(measuring("open").to_json()) == measuring("open")


def to(fallback: str, *, version: int = 1) -> Policy:
    return policy(SECTION.replace("nothing", fallback), version=version)


def test_a_fallback_that_permits_something_is_part_of_the_decision() -> None:
    decision = to("head").decide(the_class("MIT"))
    assert decision.fallback is not None
    assert (decision.fallback.label, decision.fallback.rules) == ("head", ("open",))
    assert policy().decide(the_class("MIT")).fallback is None
    assert to("head").decide(the_class("LicenseRef-acme")).fallback is None  # a rollback


def test_rules_that_gate_alike_meet_in_their_fallbacks() -> None:
    text = PLAIN.replace(
        "rules:\n", "rules:\n  - {name: all, match: {corpus: acme}, profile: everything}\n"
    )
    actions = "all: {action: gate, fallback: upper}\n    open: {action: gate, fallback: FALLBACK}"
    section = SECTION.replace("open: {action: gate, fallback: nothing}", actions)
    both = read_policy(text + section.replace("FALLBACK", "head")).decide(the_class("MIT"))
    assert both.fallback is not None
    assert (both.fallback.label, both.fallback.adapter) == ("head&upper", "acme")
    none = read_policy(text + section.replace("FALLBACK", "nothing")).decide(the_class("MIT"))
    assert none.fallback is None  # the strictest leaves it out
