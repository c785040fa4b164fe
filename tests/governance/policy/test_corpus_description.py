"""Descriptions of corpora: bounds, what policies see of them, and reserved rights."""

from __future__ import annotations

import re
from typing import Any

import pytest

from govray.errors import Malformed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Match, Policy
from govray.governance.policy.lint import diff, lint, representative_classes
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.route import resolve
from tests.support.credential_class import cls
from tests.support.table import each_row
from tests.support.tree import ROOT
from tests.support.world import GROUPS, World

BASE = [group.group for group in GROUPS]
OBSERVE = (ROOT / "policies" / "observe.yaml").read_text()
LICENCES = (ROOT / "policies" / "licences.yaml").read_text()

CRAWLED: dict[str, Any] = {
    "source": "crawled",
    "url": "https://crawl.example/2026",
    "domains": {"unit": "records", "sizes": {"a.example": 9, "b.example": 2}, "total": 40},
    "collected": {"first": "2024-03", "last": "2025-11"},
    "content": "News and forums.",
    "modality": ["text", "image"],
    "languages": ["en", "nb-NO"],
    "optOut": "honoured",
    "optOutMeasures": "robots.txt was read before each request.",
    "personalData": "present",
    "crawlers": [{"name": "examplebot/1", "purpose": "news", "behaviour": "obeys robots.txt"}],
}


def with_rule(rule: str, text: str = OBSERVE) -> Policy:
    found, count = re.subn(r"^rules:.*\n", f"rules:\n  - {rule}\n", text, flags=re.M)
    assert count == 1
    return read_policy(found)


def test_a_credential_says_these_things_in_its_description_alone(world: World) -> None:
    fields = _fields(world, "alpha") | {"description": CRAWLED}
    assert Credential.from_json(fields).credential_class.source == "crawled"
    with pytest.raises(Malformed, match="personalData"):
        Credential.from_json(fields | {"personalData": "none"})


def _fields(world: World, corpus: str) -> dict[str, Any]:
    return read(Credential, Envelope.parse(world.credentials[corpus])).document.to_json()


def test_golden_class_of_a_described_corpus() -> None:
    """Class digests name shard folders and stand in manifests, so these bytes are fixed too."""
    stated = cls(source="crawled", modality=("text", "code"), languages=("en",), opt_out="honoured")
    assert canonical_json.encode(stated.to_json()) == (
        b'{"corpus":"acme","jurisdiction":"NO","languages":["en"],"license":"MIT",'
        b'"licenseCategory":"permissive","modality":["text","code"],"optOut":"honoured",'
        b'"sensitivity":"public","source":"crawled","use":"commercial"}'
    )
    assert str(stated).endswith(
        "use=commercial, source=crawled, modality=text, code, languages=en, opt_out=honoured"
    )


@each_row(
    ("match", "matching", "other"),
    [
        ({"source": ["crawled"]}, {"source": "crawled"}, {"source": "user"}),
        ({"modality": ["image"]}, {"modality": ("text", "image")}, {"modality": ("text",)}),
        ({"languages": ["de"]}, {"languages": ("en", "de")}, {"languages": ("en",)}),
        ({"languages": ["DE"]}, {"languages": ("de",)}, {"languages": ("de-AT",)}),
        ({"opt_out": ["unchecked"]}, {"opt_out": "unchecked"}, {"opt_out": "honoured"}),
        ({"personal_data": ["present"]}, {"personal_data": "present"}, {"personal_data": "none"}),
        ({"opt_out": ["unstated"]}, {}, {"opt_out": "honoured"}),
        ({"modality": ["unstated", "audio"]}, {}, {"modality": ("text",)}),
    ],
)
def test_a_rule_matches_what_a_description_states(
    match: dict[str, Any], matching: dict[str, Any], other: dict[str, Any]
) -> None:
    found = Match.from_source(match)
    assert found.matches(cls(**matching))
    assert not found.matches(cls(**other))
    assert found.matches(cls()) == any("unstated" in each for each in match.values())


def test_two_adapters_that_one_class_may_get_by_two_modalities_are_refused() -> None:
    text = """
schema: govray.dev/depth-policy/v1
name: p
version: 1
valid: {from: 2026-11-01, until: 2027-11-01}
on_expiry: stop
profiles:
  a: {layers: none, adapter: one, rank: 2}
  b: {layers: none, adapter: two, rank: 2}
rules:
  - {name: texts, match: {modality: text}, profile: a}
  - {name: images, match: {modality: image}, profile: b}
"""
    with pytest.raises(Malformed, match="two different adapters"):
        read_policy(text)
    read_policy(text.replace("adapter: two", "adapter: one"))


@pytest.mark.parametrize("text", [OBSERVE, LICENCES])
def test_reserved_rights_reach_no_layer_unless_a_rule_names_them(text: str) -> None:
    reserved = cls(opt_out="reserved")
    with pytest.raises(Refused, match=r"rights in it are reserved \(opt_out: reserved\)") as caught:
        read_policy(text).decide(reserved)
    assert "'acme'" in str(caught.value)
    # A rule for something else that it has, a rule for all handlings but this: not enough.
    for match in ("source: crawled", "opt_out: [honoured, unchecked]"):
        policy = with_rule(f"{{name: new, match: {{{match}}}, profile: everything}}", text)
        with pytest.raises(Refused):
            policy.decide(cls(opt_out="reserved", source="crawled"))
    # The control: a rule that names it, and applies to it.
    named = with_rule(
        "{name: new, match: {opt_out: reserved, license: MIT}, profile: everything}", text
    )
    assert resolve(named.decide(reserved), BASE).groups == tuple(BASE)
    with pytest.raises(Refused):
        named.decide(cls(opt_out="reserved", license="Apache-2.0"))


def test_lint_tells_of_a_rule_that_admits_reserved_rights() -> None:
    policy = with_rule("{name: new, match: {opt_out: reserved}, profile: everything}")
    assert [(each.code, each.subject) for each in lint(policy)] == [("admits_reserved", "new")]
    before = read_policy(OBSERVE)
    widened = lint(policy.model_copy(update={"version": 2}), previous=before, groups=BASE)
    widens = [each for each in widened if each.code == "widens"]
    assert widens
    assert all("opt_out=reserved" in each.subject for each in widens)
    for change in diff(before, policy, representative_classes(before, policy), BASE):
        assert (change.before.status, change.after.status) == ("refused", "trains")
