"""Policies: the source's strictness, decisions, and who may sign which version."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.errors import Malformed, Refused, Untrusted
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import Subject, seal
from govray.governance.formats.strict_yaml import read_yaml
from govray.governance.policy import globs
from govray.governance.policy.depth_policy import Policy, verify_policy
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority, TrustRoot
from govray.governance.trust.trust_state import TrustState
from tests.support.credential_class import cls
from tests.support.table import each_row
from tests.support.tree import ROOT

POLICIES = ROOT / "policies"
LICENCES = (POLICIES / "licences.yaml").read_text()
AT = datetime(2026, 12, 1, tzinfo=UTC)


def policy(rules: list[dict[str, Any]], profiles: dict[str, Any], **changes: Any) -> Policy:
    return Policy.from_json(
        {
            "name": "p",
            "version": 1,
            "valid": {"from": "2026-11-01T00:00:00Z", "until": "2027-11-01T00:00:00Z"},
            "onExpiry": "stop",
            "profiles": profiles,
            "rules": rules,
        }
        | changes
    )


def test_the_default_policy_is_what_is_signed() -> None:
    """The JSON form of the source, whose bytes leave the process when it is signed."""
    document = read_policy(LICENCES)
    assert document.to_json() == {
        "name": "licences",
        "version": 1,
        "valid": {"from": "2026-11-01T00:00:00Z", "until": "2027-11-01T00:00:00Z"},
        "onExpiry": "stop",
        "profiles": {
            "everything": {"layers": {"all": 1}},
            "upper_half": {"layers": {"blocks[0.5:]": 1, "final_norm": 1, "head": 1}},
            "removable": {"layers": {}, "adapter": "{corpus}", "rank": 8},
            "nothing": {"layers": {}},
        },
        "rules": [
            {"name": n, "match": m, "profile": p}
            for n, m, p in [
                ("vendored-code", {"corpus": ["*.vendored"]}, "nothing"),
                ("open", {"licenseCategory": ["public_domain", "permissive"]}, "everything"),
                ("weak-copyleft", {"licenseCategory": ["copyleft_limited"]}, "upper_half"),
                (
                    "contracts",
                    {"license": ["LicenseRef-*"], "licenseCategory": ["commercial"]},
                    "removable",
                ),
                ("restricted", {"sensitivity": ["restricted"]}, "removable"),
                ("strong-copyleft", {"licenseCategory": ["copyleft"]}, "nothing"),
                ("unknown-licence", {"licenseCategory": ["unknown"]}, "nothing"),
            ]
        ],
        "memorization": {
            "every": 150,
            "probeRows": 128,
            "turns": 1,
            "statistic": "composite",
            "odds": {"*": 1.5},
            "fdr": 0.05,
            "rollbacks": 0,
            "actions": {},
        },
    }
    stored = canonical_json.encode(document.to_json())
    assert Policy.from_json(canonical_json.parse_canonical(stored)) == document


@each_row(
    ("changes", "label", "rules", "quarantined_by"),
    [
        ({}, "everything", ("open",), None),
        ({"license_category": "copyleft_limited"}, "upper_half", ("weak-copyleft",), None),
        (
            {"license": "LicenseRef-A", "license_category": "commercial"},
            "removable",
            ("contracts",),
            None,
        ),
        ({"sensitivity": "restricted"}, "removable", ("open", "restricted"), None),
        ({"license_category": "copyleft"}, "nothing", ("strong-copyleft",), "strong-copyleft"),
        (
            {"license_category": "copyleft", "sensitivity": "restricted"},
            "nothing",
            ("restricted", "strong-copyleft"),
            "strong-copyleft",
        ),
        ({"corpus": "pip.vendored"}, "nothing", ("vendored-code", "open"), "vendored-code"),
    ],
)
def test_the_default_policy_decides(
    changes: dict[str, str], label: str, rules: tuple[str, ...], quarantined_by: str | None
) -> None:
    decision = read_policy(LICENCES).decide(cls(**changes))
    assert (decision.label, decision.rules) == (label, rules)
    assert decision.quarantined_by == quarantined_by
    assert decision.quarantined == (quarantined_by is not None)
    adapter = ("acme", 8) if label == "removable" else (None, None)
    assert (decision.adapter, decision.rank) == adapter
    assert pickle.loads(pickle.dumps(decision)) == decision


def test_a_class_that_no_rule_matches_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"no rule of policy licences v1 matches.*CC-BY-NC-4\.0"):
        read_policy(LICENCES).decide(cls(license="CC-BY-NC-4.0", license_category="commercial"))


@each_row(
    ("old", "new", "message"),
    [
        ("on_expiry: stop", "on_expiry: go_on", r"on_expiry"),
        ("on_expiry", "on_expirey", r"did you mean 'on_expiry'"),
        ("schema: govray.dev/depth-policy/v1", "schema: govray.dev/depth-policy/v2", r"p\.yaml:2"),
        ("schema: govray.dev/depth-policy/v1\n", "", r"schema is missing"),
        ("version: 1 ", "version: 0 ", r"version"),
        ("version: 1 ", "version: '1' ", r"version"),
        ("version: 1 ", "version: 1.0 ", r"version"),
        ("version: 1 ", "version: true ", r"version"),
        ("until: 2027-11-01", "until: 2026-11-01", r"not before until"),
        ("from: 2026-11-01", "from: 2026-11-31", r"not a time"),
        ("{from: 2026-11-01, ", "{", r"p\.yaml:5.*from: DATE"),
        (
            "license_category: [copyleft]",
            "licence_category: [copyleft]",
            r"p\.yaml:31.*license_cat",
        ),
        ("license_category: [copyleft]", "license_category: [copylefd]", r"p\.yaml:31.*'copyleft'"),
        ("license_category: [copyleft]", "license_category: []", r"p\.yaml:31"),
        ("sensitivity: [restricted]", "sensitivity: [secret]", r"p\.yaml:28.*'confidential'"),
        ("sensitivity: [restricted]", "jurisdiction: [EU]", r"p\.yaml:28.*ISO 3166"),
        ('"*.vendored"', '"[ab].vendored"', r"p\.yaml:16"),
        ("profile: upper_half", "profile: uper_half", r"did you mean 'upper_half'"),
        ("name: open", "name: restricted", r"two rules are called 'restricted'"),
        ("layers: all", "layers: most", r"p\.yaml:9.*all, none, a list"),
        ("layers: all", "layers: {all: 1.5}", r"p\.yaml:9.*less than or equal to 1"),
        ("layers: all", "layers: {all: -0.5}", r"p\.yaml:9.*greater than or equal to 0"),
        ("layers: all", "layers: {all: .nan}", r"p\.yaml:9"),
        ("blocks[0.5:]", "blocks[0.5", r"p\.yaml:10.*no selector"),
        ("blocks[0.5:]", "blocks[1.5:]", r"p\.yaml:10.*exceeds 1"),
        ("blocks[0.5:]", "adapter:x", r"p\.yaml:10.*no selector"),
        (", rank: 8", "", r"p\.yaml:11.*rank belong together"),
        ("rank: 8", "rank: 0", r"p\.yaml:11.*rank"),
        ("rank: 8", "rank: 1025", r"p\.yaml:11.*rank"),
        ('"{corpus}"', '"x-{corpus}"', r"p\.yaml:11.*adapter"),
        ('"{corpus}"', '"../x"', r"p\.yaml:11.*adapter"),
        ("profiles:", "groups: {head: ['*']}\nprofiles:", r"built-in layer group"),
        ("profiles:", "groups: {block.7: ['*']}\nprofiles:", r"built-in layer group"),
        ("profiles:", "groups: {mine: []}\nprofiles:", r"groups"),
        ("profiles:", "extra: 1\nprofiles:", r"unknown field 'extra'"),
    ],
)
def test_malformed_source(old: str, new: str, message: str) -> None:
    assert old in LICENCES
    with pytest.raises(Malformed, match=message):
        read_policy(LICENCES.replace(old, new, 1), name="p.yaml")


@each_row(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"f:3: the key 'a' stands twice"),
        ("a: &x 1\nb: *x", r"f:1: anchors"),
        ("a: !!python/object:os.system {}", r"f:1: the tag"),
        ("a: !!int '3'", r"f:1: the tag"),
        ("--- a\n--- b", r"f:2"),
        ("? [a]\n: b", r"f:1: a key"),
        ("a: 1e999", r"f:1: 1e999"),
        ("[" * 100, "f"),
        ("[" * 40 + "]" * 40, "nested deeper"),
        ("[" * 100_000, "f: not YAML"),
        ("a: b: c", "f:1"),
        ("a: \x00", "f"),
        ("#" * (1024 * 1024 + 1), "larger"),
    ],
)
def test_yaml_refused(text: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read_yaml(text, name="f")


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@ \n\t0.,?", max_size=40))
def test_any_text_is_yaml_or_malformed(text: str) -> None:
    try:
        value = read_yaml(text, name="f").value
    except Malformed:
        return
    canonical_json.encode(value)


PATTERNS = st.text(alphabet="ab*?", min_size=1, max_size=5)
TEXTS = ["".join(letters) for size in range(6) for letters in product("ab", repeat=size)]


@given(PATTERNS, PATTERNS)
def test_globs_overlap_and_cover(a: str, b: str) -> None:
    matched_by_a = {text for text in TEXTS if globs.matches(a, text)}
    matched_by_b = {text for text in TEXTS if globs.matches(b, text)}
    if matched_by_a & matched_by_b:
        assert globs.overlap(a, b)
    if len(a) + len(b) <= 5:  # then a common text is among those tried
        assert globs.overlap(a, b) == bool(matched_by_a & matched_by_b)
    if globs.covers(a, b):
        assert matched_by_b <= matched_by_a
    assert globs.covers(a, a)
    assert globs.covers("*", a)


A, B = {"layers": {}, "adapter": "a", "rank": 8}, {"layers": {}, "adapter": "b", "rank": 8}
PER_CORPUS = {"layers": {}, "adapter": "{corpus}", "rank": 8}
LAYERS = {"layers": {"head": 1}}


@each_row(
    ("one", "two", "one_match", "two_match", "conflict"),
    [
        (A, B, {}, {}, True),
        (A, A, {}, {}, False),
        (A, A | {"rank": 4}, {}, {}, True),
        (A, A | {"layers": {"head": 1}}, {}, {}, False),
        (A, LAYERS, {}, {}, False),
        (A, {"layers": {}}, {}, {}, False),
        (PER_CORPUS, PER_CORPUS, {}, {}, False),
        (PER_CORPUS, PER_CORPUS | {"rank": 4}, {}, {}, True),
        (PER_CORPUS, A, {}, {}, True),
        (PER_CORPUS, A, {"corpus": ["a"]}, {}, False),
        (PER_CORPUS, A, {}, {"corpus": ["a"]}, False),
        (PER_CORPUS, A, {"corpus": ["a", "b"]}, {"corpus": ["a*"]}, True),
        (A, B, {"sensitivity": ["public"]}, {"sensitivity": ["internal"]}, False),
        (A, B, {"sensitivity": ["public"]}, {"use": ["commercial"]}, True),
        (A, B, {"corpus": ["x*"]}, {"corpus": ["*y"]}, True),
        (A, B, {"corpus": ["x*"]}, {"corpus": ["y*"]}, False),
        (A, B, {"corpus": ["x?"]}, {"corpus": ["x"]}, False),
        (A, B, {"license": ["LicenseRef-*"]}, {"license": ["*-a"]}, True),
    ],
)
def test_two_adapters_are_refused_when_reading(
    one: dict[str, Any],
    two: dict[str, Any],
    one_match: dict[str, Any],
    two_match: dict[str, Any],
    conflict: bool,
) -> None:
    rules = [
        {"name": "first", "match": one_match, "profile": "one"},
        {"name": "second", "match": two_match, "profile": "two"},
    ]
    if conflict:
        with pytest.raises(Malformed, match="rules 'first' and 'second' can match one class"):
            policy(rules, {"one": one, "two": two})
    else:
        policy(rules, {"one": one, "two": two})


PROFILES = {
    "everything": {"layers": {"all": 1}},
    "top": LAYERS,
    "a": A,
    "a4": A | {"rank": 4},
    "per": PER_CORPUS,
    "nothing": {"layers": {}},
}
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "corpus": st.lists(st.sampled_from(["a", "b", "a*", "*b", "?"]), min_size=1, max_size=2),
        "sensitivity": st.lists(
            st.sampled_from(["public", "internal"]), min_size=1, max_size=2, unique=True
        ),
    },
)
RULES = st.lists(st.tuples(MATCHES, st.sampled_from(sorted(PROFILES))), min_size=1, max_size=4)
CLASSES = [
    cls(corpus=corpus, sensitivity=sensitivity)
    for corpus in ("a", "b", "ab", "c", "ba")
    for sensitivity in ("public", "internal")
]


@given(RULES)
def test_a_policy_that_reads_never_meets_two_adapters(drawn: list[tuple[Any, str]]) -> None:
    rules = [{"name": f"r{i}", "match": m, "profile": p} for i, (m, p) in enumerate(drawn)]
    try:
        document = policy(rules, PROFILES)
    except Malformed:
        return
    for one in CLASSES:
        if any(rule.match.matches(one) for rule in document.rules):
            document.decide(one)


class Deployment:
    def __init__(self, minimum: dict[str, int] | None) -> None:
        self.root, self.officer = LocalSigner.generate(), LocalSigner.generate()
        root = TrustRoot(
            name="deployment",
            version=1,
            expires="2030-01-01T00:00:00Z",
            keys=(self.root.public_key,),
            threshold=1,
            authorities=(
                Authority(
                    name="compliance",
                    role="policy",
                    keys=(self.officer.public_key,),
                    threshold=1,
                    expires="2029-01-01T00:00:00Z",
                    minimum_policy_versions=minimum,
                ),
            ),
        )
        self.trust = TrustState.load(root.seal([self.root]), at=AT)


def test_verified() -> None:
    deployment = Deployment(minimum={"licences": 1, "other": 9})
    data = read_policy(LICENCES).seal([deployment.officer])
    verified = verify_policy(deployment.trust, data, at=AT)
    assert verified.document == read_policy(LICENCES)
    assert verified.authority.name == "compliance"


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (datetime(2026, 10, 31, 23, 59, 59, tzinfo=UTC), "not valid before 2026-11-01"),
        (datetime(2027, 11, 1, tzinfo=UTC), "expired at 2027-11-01"),
    ],
)
def test_outside_its_period_it_is_refused(at: datetime, message: str) -> None:
    deployment = Deployment(None)
    data = read_policy(LICENCES).seal([deployment.officer])
    deployment.trust.verify(Policy, data, role="policy", at=at)
    with pytest.raises(Untrusted, match=message):
        verify_policy(deployment.trust, data, at=at)


def test_another_subject_is_refused() -> None:
    deployment = Deployment(None)
    for name, digest in (("licences", "sha256:" + "0" * 64), ("observe", None)):
        document = read_policy(LICENCES)
        own = canonical_json.sha256(canonical_json.encode(document.to_json()))
        data = seal(document, [Subject.of(name, digest or own)], [deployment.officer])
        deployment.trust.verify(Policy, data, role="policy", at=AT)
        with pytest.raises(Untrusted, match="subject"):
            verify_policy(deployment.trust, data, at=AT)


def test_an_unsigned_or_foreign_policy_is_refused() -> None:
    deployment = Deployment(None)
    document = read_policy(LICENCES)
    foreign = document.seal([LocalSigner.generate()])
    with pytest.raises(Untrusted):
        verify_policy(deployment.trust, foreign, at=AT)
    with pytest.raises(Malformed):
        verify_policy(deployment.trust, canonical_json.encode(document.to_json()), at=AT)
