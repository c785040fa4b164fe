"""Advice about policies that are valid: lint, explain, diff.

A policy that can be read is safe in the sense that it permits only what it says. These
functions look for what its author may not have meant, say which rule decided what, and
compare two versions. Everything is a pure value; the command line renders it.

What lint can say depends on what it is given. With the classes and layer groups of a run, findings
are exact. Without classes it builds one class for each combination of values that the policies
distinguish, with one text per glob. So it may miss a widening that shows only where two globs
overlap. Without layer groups it compares profiles by their text, so it may report a widening that
no model shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase
from typing import Any, Literal, TypeAlias, get_args

from govray.errors import Malformed, Refused
from govray.governance.policy import globs
from govray.governance.policy.corpus_description import RESERVED, UNSTATED
from govray.governance.policy.corpus_routes import Fallback, resolve_all
from govray.governance.policy.credential import DESCRIBED, CredentialClass
from govray.governance.policy.depth_policy import Match, Policy, PolicyDecision, Rule, in_force
from govray.governance.policy.memorization_section import ACTIONS, Action, relaxed
from govray.governance.policy.route import ADAPTER, RoutePhase, profile_weights, resolve
from govray.governance.policy.selector import parse_selector
from govray.governance.trust.authority import SENSITIVITIES, Authority, TrustRoot
from govray.governance.trust.jurisdiction import JURISDICTIONS
from govray.governance.trust.license import (
    LICENSE_CATEGORIES,
    USES,
    LicenseCategory,
    category_bounds,
    normalise,
)

Code: TypeAlias = Literal[
    "never_matches",  # a rule that no class can match, or none of those given
    "redundant_rule",  # a rule that another one makes superfluous
    "unused_profile",  # a profile that no rule names
    "admits_reserved",  # a rule by which classes whose rights are reserved train
    "unknown_group",  # a selector or group that means nothing in the model
    "wide_fallback",  # a gate's fallback permits what the class's own route does not
    "not_a_successor",  # another name than the previous version's, or no higher version
    "widens",  # a class may update more than under the previous version
    "relaxes_monitor",  # memorization is watched less closely, or less follows from it
    "shared_key",  # of a trust root: one key in several roles
]


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of all enumerations within a type."""
    found = get_args(annotation)
    return tuple(v for each in found for v in ([each] if isinstance(each, str) else _choices(each)))


_DESCRIBED: Mapping[str, tuple[str, ...]] = {
    name: _choices(CredentialClass.model_fields[name].annotation) or ("en", "de")
    for name in DESCRIBED
}
"""Attributes of descriptions → their values; of languages, two."""

_ONE_OF_EACH_CATEGORY = ("CC0-1.0", "MIT", "MPL-2.0", "GPL-3.0-only", "BUSL-1.1", "NOASSERTION")


@dataclass(frozen=True)
class Finding:
    """One piece of advice. ``message``: one sentence without a final full stop."""

    code: Code
    subject: str
    message: str


@dataclass(frozen=True)
class ClassOutcome:
    """What a policy means for one class in one model.

    Attributes:
        status: ``trains``, ``quarantined``, or ``refused`` (no rule matches, or the
            policy does not fit the model).
        label: The decision's label; for ``refused`` the reason.
        weights: Layer group → weight, 0 included; an adapter counts as a group of
            weight 1. Empty unless ``status`` is ``trains``. Of phases, those of the first.
        memorization: What follows if it memorizes; None if it is not measured.
        fallback: Where a gate sends its rows; None if a gate leaves them out.
        phases: From which steps on other weights hold, all of them.
    """

    status: Literal["trains", "quarantined", "refused"]
    label: str
    weights: Mapping[str, float]
    rank: int | None
    memorization: Action | None = None
    fallback: Fallback | None = None
    phases: tuple[RoutePhase, ...] = ()

    def at(self, step: int) -> Mapping[str, float]:
        """The weights in a step."""
        return in_force(
            step, self.weights, ((each.from_step, each.weights) for each in self.phases)
        )

    @property
    def phased(self) -> str | None:
        """What later phases open and close, in words; None without phases."""
        told, before = [], self.weights
        for each in self.phases:
            changed = [g for g, weight in each.weights.items() if weight != before[g]]
            weights = ", ".join(f"{group} {each.weights[group]:g}" for group in changed)
            told.append(f"from step {each.from_step} {weights}")
            before = each.weights
        return "; ".join(told) or None

    @property
    def follows(self) -> str | None:
        """What follows if it memorizes, in words."""
        if self.memorization == "gate" and self.fallback:
            return f"gate, to {self.fallback.profile} ({', '.join(self.fallback.route.groups)})"
        return self.memorization


@dataclass(frozen=True)
class PolicyChange:
    """A class that two policies treat differently."""

    credential_class: CredentialClass
    before: ClassOutcome
    after: ClassOutcome

    @property
    def gains(self) -> tuple[str, ...]:
        """The layer groups whose weight grew in some step, and the adapter if its rank did."""
        return _grown(self.before, self.after)

    @property
    def losses(self) -> tuple[str, ...]:
        """The layer groups whose weight shrank in some step, and the adapter if its rank did."""
        return _grown(self.after, self.before)

    @property
    def widens(self) -> bool:
        """Whether the class may update anything more than before."""
        return bool(self.gains)


@dataclass(frozen=True)
class GroupReason:
    """Why a layer group has its weight: the rules that give it the smallest."""

    group: str
    weight: float
    rules: tuple[str, ...]


@dataclass(frozen=True)
class PhaseReasons:
    """Why layer groups have other weights from a step on; as `Explanation.groups`."""

    from_step: int
    groups: tuple[GroupReason, ...]


@dataclass(frozen=True)
class Explanation:
    """Which rule decided what, for one class in one model.

    Attributes:
        groups: Every layer group in the model's order, then the adapter if one is
            trained. Of phases, the first.
        memorization: What follows if the class memorizes; None if it is not measured.
        fallback: Where a gate then sends its rows; None if a gate leaves them out.
    """

    decision: PolicyDecision
    groups: tuple[GroupReason, ...]
    memorization: Action | None = None
    fallback: Fallback | None = None
    phases: tuple[PhaseReasons, ...] = ()


def lint(
    policy: Policy,
    *,
    previous: Policy | None = None,
    groups: Sequence[str] | None = None,
    classes: Sequence[CredentialClass] | None = None,
) -> tuple[Finding, ...]:
    """Return what the author of ``policy`` may not have meant; empty if nothing.

    Args:
        previous: The version in force, to report what the new one widens.
        groups: The layer groups of the model it is for, without adapters.
        classes: The classes it will meet.
    """
    findings = [
        *_rules_that_never_match(policy, classes),
        *_redundant_rules(policy),
        *_unused_profiles(policy),
        *_admitted_reservations(policy),
        *_wide_fallbacks(policy, classes, groups),
    ]
    if groups is not None:
        findings += _unknown_groups(policy, groups)
    if previous is not None:
        findings += _succession(previous, policy)
        if classes is None:
            classes = representative_classes(previous, policy)
        findings += _widenings(previous, policy, classes, groups)
        findings += _relaxations(previous, policy, classes, groups)
    return tuple(findings)


def explain(policy: Policy, cls: CredentialClass, groups: Sequence[str]) -> Explanation:
    """Return which rules decided the weight of every layer group for ``cls``.

    Args:
        groups: The model's layer groups in order, without adapters.

    Raises:
        Refused: No rule matches, or a selector means no layer group of the model. Or a gate's
            fallback is not narrower than the class's own route.
    """
    decision = policy.decide(cls)
    later = () if decision.quarantined else resolve(decision, groups).phases
    return Explanation(
        decision,
        _reasons(policy, decision, groups, 0),
        _action(policy, decision),
        _fallback(decision, groups),
        tuple(
            PhaseReasons(each.from_step, _reasons(policy, decision, groups, each.from_step))
            for each in later
        ),
    )


def _reasons(
    policy: Policy, decision: PolicyDecision, groups: Sequence[str], step: int
) -> tuple[GroupReason, ...]:
    profile_of = {rule.name: rule.profile for rule in policy.rules}
    weights = {
        name: profile_weights(
            profile.at(step), groups, where=f"profile {name!r} of policy {policy}"
        )
        for name, profile in decision.profiles.items()
    }
    reasons = []
    for group in groups:
        least = min(each[group] for each in weights.values())
        rules = tuple(r for r in decision.rules if weights[profile_of[r]][group] == least)
        reasons.append(GroupReason(group, least, rules))
    if decision.adapter is not None:
        rules = tuple(r for r in decision.rules if decision.profiles[profile_of[r]].adapter)
        reasons.append(GroupReason(f"{ADAPTER}{decision.adapter}", 1.0, rules))
    return tuple(reasons)


def diff(
    old: Policy, new: Policy, classes: Sequence[CredentialClass], groups: Sequence[str]
) -> tuple[PolicyChange, ...]:
    """Return the classes that two policies treat differently, in the order given.
    ``groups``: the model's layer groups in order, without adapters."""
    changes = (PolicyChange(c, outcome(old, c, groups), outcome(new, c, groups)) for c in classes)
    return tuple(
        c
        for c in changes
        if c.gains
        or c.losses
        or c.before.status != c.after.status
        or c.before.memorization != c.after.memorization
        or c.before.fallback != c.after.fallback
    )


def outcome(policy: Policy, cls: CredentialClass, groups: Sequence[str]) -> ClassOutcome:
    """Return what ``policy`` means for ``cls``; a refusal is an outcome, not an error."""
    try:
        decision = policy.decide(cls)
        if decision.quarantined:
            return ClassOutcome("quarantined", decision.label, {}, None)
        route = resolve(decision, groups)
        fallback = _fallback(decision, groups)
    except Refused as error:
        return ClassOutcome("refused", error.what, {}, None)
    own = {} if route.adapter is None else {f"{ADAPTER}{route.adapter}": 1.0}
    weights, *later = [
        (step, {group: each.weights.get(group, 0.0) for group in groups} | own)
        for step, each in route.by_phase
    ]
    return ClassOutcome(
        "trains",
        decision.label,
        weights[1],
        route.rank,
        _action(policy, decision),
        fallback,
        tuple(RoutePhase(step, each) for step, each in later),
    )


def representative_classes(*policies: Policy) -> tuple[CredentialClass, ...]:
    """Return one class for each combination of values that the policies tell apart.

    An attribute that no rule mentions has one value, or is not stated. A class has one modality and
    one language at most. A glob is represented by one text
    that it matches. The number of classes is a product, so policies with hundreds of
    globs in both ``corpus`` and ``license`` are better linted with classes given.
    """
    matches = [rule.match for policy in policies for rule in policy.rules]

    def mentioned(attribute: str) -> list[str]:
        return sorted({v for match in matches for v in getattr(match, attribute) or ()})

    def values(attribute: str, every: Sequence[str]) -> list[str]:
        """The values that rules mention, and one that none does."""
        known = mentioned(attribute)
        return known + [value for value in every if value not in known][:1]

    def texts(attribute: str, others: Sequence[str]) -> list[str]:
        """A text for each glob that rules mention, and one of ``others`` that none matches."""
        patterns = mentioned(attribute)
        strange = [o for o in others if not any(globs.matches(p, o) for p in patterns)]
        return [p.replace("*", "x").replace("?", "x") for p in patterns] + strange[:1]

    def stated(attribute: str) -> list[str]:
        """The values that rules mention, one that none does, and that it is not stated."""
        known = [value for value in mentioned(attribute) if value != UNSTATED]
        every = _DESCRIBED[attribute]
        return [*known, *[value for value in every if value not in known][:1], UNSTATED]

    axes: dict[str, list[str]] = {
        "corpus": texts("corpus", [f"{letter}-corpus" for letter in ascii_lowercase]),
        # A LicenseRef can have any category; other licences have one each.
        "license": sorted(
            {"LicenseRef-any"}.union(*(texts("license", [one]) for one in _ONE_OF_EACH_CATEGORY))
        ),
        "license_category": values("license_category", LICENSE_CATEGORIES),
        "jurisdiction": values("jurisdiction", sorted(JURISDICTIONS)),
        "sensitivity": values("sensitivity", SENSITIVITIES),
        "use": values("use", USES),
        **{name: stated(name) for name in _DESCRIBED if mentioned(name)},
    }
    classes = []
    for combination in product(*axes.values()):
        fields = {
            name: [value] if name in Match.SEVERAL else value
            for name, value in zip(axes, combination, strict=True)
            if value != UNSTATED
        }
        try:
            cls = CredentialClass.from_source(fields)
        except Malformed:
            continue  # a glob's text that is no corpus name or no licence
        if _can_have_category(cls.license, (cls.license_category,)):
            classes.append(cls)
    return tuple(classes)


def _grown(before: ClassOutcome, after: ClassOutcome) -> tuple[str, ...]:
    steps = {0, *(each.from_step for each in (*before.phases, *after.phases))}
    return tuple(
        group
        for group in after.weights
        if any(after.at(step)[group] > before.at(step).get(group, 0.0) for step in steps)
        or (group.startswith(ADAPTER) and (after.rank or 0) > (before.rank or 0))
    )


def _rules_that_never_match(
    policy: Policy, classes: Sequence[CredentialClass] | None
) -> Iterator[Finding]:
    for rule in policy.rules:
        reason = _contradiction(rule)
        if reason is None and classes is not None:
            if any(rule.match.matches(cls) for cls in classes):
                continue
            reason = f"matches none of the {len(classes)} classes"
        if reason is not None:
            yield Finding("never_matches", rule.name, f"rule {rule.name!r} {reason}")


def _contradiction(rule: Rule) -> str | None:
    """Why no class at all can match, as far as licences written out tell."""
    patterns = rule.match.license or ()
    if not patterns or not all(globs.is_literal(pattern) for pattern in patterns):
        return None
    possible = []
    for expression in patterns:
        try:
            normal = normalise(expression)
        except Malformed as error:
            return f"names licence {expression!r}: {error.what}"
        if normal != expression:
            return f"names licence {expression!r}, but credentials write it {normal!r}"
        possible.append(expression)
    accepted = rule.match.license_category
    if accepted and not any(_can_have_category(expression, accepted) for expression in possible):
        return (
            f"asks for licence {' or '.join(possible)} of category {' or '.join(accepted)}, "
            "which it does not have"
        )
    return None


def _can_have_category(expression: str, accepted: Sequence[LicenseCategory]) -> bool:
    rank = LICENSE_CATEGORIES.index
    least, most = category_bounds(expression)
    return any(rank(least) <= rank(category) <= rank(most) for category in accepted)


def _redundant_rules(policy: Policy) -> Iterator[Finding]:
    for index, rule in enumerate(policy.rules):
        for other_index, other in enumerate(policy.rules):
            if index == other_index or not _makes_redundant(policy, other, rule):
                continue
            # Of two rules that say the same, the later one is superfluous.
            if other_index < index or not _makes_redundant(policy, rule, other):
                yield Finding(
                    "redundant_rule",
                    rule.name,
                    f"rule {rule.name!r} never decides: whatever it matches, rule "
                    f"{other.name!r} matches too and is at least as strict",
                )
                break


def _makes_redundant(policy: Policy, stricter: Rule, rule: Rule) -> bool:
    if rule.match.names_reserved and not stricter.match.names_reserved:
        return False  # without it, classes whose rights are reserved would be refused
    return stricter.match.covers(rule.match) and policy.profiles[stricter.profile].within(
        policy.profiles[rule.profile]
    )


def _unused_profiles(policy: Policy) -> Iterator[Finding]:
    used = {rule.profile for rule in policy.rules}
    if policy.memorization:
        used |= {each.fallback for each in policy.memorization.actions.values() if each.fallback}
    for name in sorted(policy.profiles.keys() - used):
        yield Finding("unused_profile", name, f"no rule names profile {name!r}")


def _admitted_reservations(policy: Policy) -> Iterator[Finding]:
    for rule in policy.rules:
        if rule.match.names_reserved and not policy.profiles[rule.profile].is_empty:
            yield Finding(
                "admits_reserved",
                rule.name,
                f"rule {rule.name!r} names opt_out: {RESERVED} and permits something, so classes "
                "whose rights are reserved may train by it",
            )


def _wide_fallbacks(
    policy: Policy, classes: Sequence[CredentialClass] | None, groups: Sequence[str] | None
) -> Iterator[Finding]:
    """Without layer groups, by the text of profiles: it may report what no model shows."""
    actions = policy.memorization.actions.values() if policy.memorization else ()
    if all(each.fallback is None or policy.profiles[each.fallback].is_empty for each in actions):
        return
    told: set[tuple[str, ...]] = set()
    for cls in representative_classes(policy) if classes is None else classes:
        decision = _decision(policy, cls)
        if decision is None or decision.fallback is None or decision.fallback.rules in told:
            continue
        message = None
        if groups is not None:
            try:
                _fallback(decision, groups)
            except Refused as error:
                message = f"for the class {cls}, {error.what}"
        elif not _layers_within(decision.fallback, decision):
            message = (
                f"for the class {cls}, fallback {decision.fallback.label!r} may permit more than "
                f"{decision.label!r}; --blocks or --model tells"
            )
        if message:
            told.add(decision.fallback.rules)
            yield Finding("wide_fallback", ", ".join(decision.fallback.rules), message)


def _fallback(decision: PolicyDecision, groups: Sequence[str]) -> Fallback | None:
    if decision.quarantined:
        return None
    cls = decision.credential_class
    return resolve_all({cls.corpus: decision}, groups).fallbacks.get(cls.corpus)


def _unknown_groups(policy: Policy, groups: Sequence[str]) -> Iterator[Finding]:
    parts = [part for group in groups for part in group.split("+")]
    for name in sorted((policy.groups or {}).keys() - set(parts)):
        yield Finding("unknown_group", name, f"group {name!r} matches no parameter of the model")
    for name, profile in sorted(policy.profiles.items()):
        written = {text for step in (0, *profile.changes) for text in profile.at(step).layers}
        for text in sorted(written):
            if not parse_selector(text).select(parts):
                yield Finding(
                    "unknown_group",
                    name,
                    f"selector {text!r} of profile {name!r} means no layer group of the model",
                )


def _succession(previous: Policy, policy: Policy) -> Iterator[Finding]:
    if policy.name != previous.name:
        yield Finding(
            "not_a_successor",
            policy.name,
            f"the previous policy is called {previous.name!r}; versions count per name",
        )
    elif policy.version <= previous.version:
        yield Finding(
            "not_a_successor",
            str(policy),
            f"version {policy.version} does not follow version {previous.version}",
        )


def _widenings(
    previous: Policy,
    policy: Policy,
    classes: Sequence[CredentialClass],
    groups: Sequence[str] | None,
) -> Iterator[Finding]:
    if groups is not None:
        for change in diff(previous, policy, classes, groups):
            if change.widens:
                yield _widening(
                    change.credential_class,
                    f"gains {', '.join(change.gains)} ({change.before.status} "
                    f"{change.before.label} → {change.after.label})",
                )
        return
    for cls in classes:
        before, after = _decision(previous, cls), _decision(policy, cls)
        if after is None or after.quarantined:
            continue
        if before is None or before.quarantined:
            was = "refused" if before is None else "quarantined"
            yield _widening(cls, f"was {was} and now trains ({after.label})")
        elif not _meet_within(after, before):
            yield _widening(cls, f"may gain layers ({before.label} → {after.label})")


def _relaxations(
    previous: Policy,
    policy: Policy,
    classes: Sequence[CredentialClass],
    groups: Sequence[str] | None,
) -> Iterator[Finding]:
    for sentence in relaxed(previous.memorization, policy.memorization):
        yield Finding("relaxes_monitor", "memorization", f"in the monitor, {sentence}")
    if previous.memorization is None or policy.memorization is None:
        return
    for cls in classes:
        before, after = _decision(previous, cls), _decision(policy, cls)
        if before is None or after is None or before.quarantined or after.quarantined:
            continue
        was, now = _action(previous, before), _action(policy, after)
        if was and not now:
            yield Finding("relaxes_monitor", str(cls), "the class is not measured any more")
        elif was and now and ACTIONS.index(now) < ACTIONS.index(was):
            yield Finding(
                "relaxes_monitor", str(cls), f"if the class memorizes, {now} follows, not {was}"
            )
        elif (was, now) == ("gate", "gate") and (more := _wider(before, after, groups)):
            yield Finding(
                "relaxes_monitor", str(cls), f"if the class memorizes, its fallback {more}"
            )


def _wider(
    before: PolicyDecision, after: PolicyDecision, groups: Sequence[str] | None
) -> str | None:
    """In what a fallback permits more than the one before it; without groups, by its text."""
    if after.fallback is None:
        return None
    change = f"({before.fallback.label if before.fallback else 'none'} → {after.fallback.label})"
    if before.fallback is None:
        return f"goes on training, where it was left out {change}"
    if groups is None:
        within = _meet_within(after.fallback, before.fallback)
        return None if within else f"may permit more {change}"
    try:
        was, now = (_weights(each.fallback, groups) for each in (before, after))
    except Refused:  # reported as what it is
        return None
    gained = [group for group, weight in now.items() if weight > was.get(group, 0.0)]
    return f"gains {', '.join(gained)} {change}" if gained else None


def _weights(decision: PolicyDecision | None, groups: Sequence[str]) -> dict[str, float]:
    assert decision is not None
    route = resolve(decision, groups)
    return dict(route.weights) | {group: 1.0 for group in route.groups if group.startswith(ADAPTER)}


def _action(policy: Policy, decision: PolicyDecision) -> Action | None:
    section = policy.memorization
    if section is None or decision.quarantined or not section.watches(decision.rules):
        return None
    return section.action(decision.rules)


def _widening(cls: CredentialClass, message: str) -> Finding:
    return Finding("widens", str(cls), f"the class {message}")


def _decision(policy: Policy, cls: CredentialClass) -> PolicyDecision | None:
    try:
        return policy.decide(cls)
    except Refused:
        return None


def _meet_within(after: PolicyDecision, before: PolicyDecision) -> bool:
    """Whether the one meet permits at most what the other does; never true wrongly."""
    if after.adapter is not None and (
        after.adapter != before.adapter or (after.rank or 0) > (before.rank or 0)
    ):
        return False
    return _layers_within(after, before)


def _layers_within(narrow: PolicyDecision, wide: PolicyDecision) -> bool:
    return all(
        any(new.layers_within(old) for new in narrow.profiles.values())
        for old in wide.profiles.values()
    )


def lint_root(root: TrustRoot, delegated: Iterable[Authority] = ()) -> tuple[Finding, ...]:
    """Return the keys that have several roles, which the root's owner may not have meant.

    Roles are kept apart so that no single key can vouch for data, decide what it may train, run the
    training and witness it. A root with such a key is still a root.
    """
    return tuple(_shared_keys(root, (*root.authorities, *delegated)))


def _shared_keys(root: TrustRoot, authorities: Iterable[Authority]) -> Iterator[Finding]:
    held: dict[str, dict[str, str]] = {key.keyid: {"root": root.name} for key in root.keys}
    for authority in authorities:
        for key in authority.keys:
            held.setdefault(key.keyid, {}).setdefault(authority.role, authority.name)
    for keyid, roles in held.items():
        if len(roles) > 1:
            parts = ", ".join(f"{role} ({name})" for role, name in roles.items())
            yield Finding(
                "shared_key", keyid, f"one key has several roles: {parts}; give each its own"
            )
