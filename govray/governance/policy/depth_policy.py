"""Depth policies: which credential class may update which layer groups.

People write YAML (snake_case; `govray.governance.policy.policy_yaml` reads it), and the policy
is signed as canonical JSON (camelCase). A policy is closed (an unknown field is an
error) and total by refusal: a class that no rule matches is refused by name.

**All matching rules apply, and the strictest wins.** Each rule names a profile; a class
gets the meet of the profiles of every rule that matches it:

* a layer group's weight is the smallest that any of them gives it;
* a profile without adapter is neutral; a profile with one names the class's only adapter, so two
  different ones are a contradiction;
* a profile that permits nothing at all is the bottom: the class is quarantined.

A class whose rights are reserved (``opt_out: reserved``) needs a rule that names this. A rule that
matches it by other attributes, or by none, is not enough: such a class reaches no layer by default.

The meet is a set operation, so the order of rules and repeated rules change nothing,
and a further rule never raises a weight. Whether two adapters can meet is decided when
a policy is read or signed, over every pair of rules that can match one class. That
check treats attributes as independent, so it may refuse a contradiction that no real
class can reach; it never misses one.

A profile's weights may follow the training step, in phases: from a step on other weights hold. The
meet is taken phase by phase, at every step where one of the profiles changes.

Weights scale the gradient that a class contributes. Under AdamW a factor that all
classes of a group share cancels, so weights are relative.

``engine`` decides which parameters form a layer group, and `route` what a profile means for a given
model. `lint` advises on valid policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import combinations, product
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from govray.errors import Malformed, Refused, Untrusted, suggestion
from govray.governance.formats.bounds import Label, Positive, Share
from govray.governance.formats.document import Document, Name, wrong_field
from govray.governance.formats.statement import Signed
from govray.governance.policy import globs
from govray.governance.policy.corpus_description import (
    RESERVED,
    UNSTATED,
    Language,
    Modality,
    OptOut,
    PersonalData,
    Source,
)
from govray.governance.policy.credential import CredentialClass, Jurisdiction, Period
from govray.governance.policy.globs import Glob
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.selector import parse_selector
from govray.governance.trust.authority import Sensitivity
from govray.governance.trust.license import LicenseCategory, Use
from govray.governance.trust.trust_state import TrustState, Verified, check_subjects

SCHEMA = "govray.dev/depth-policy/v1"

#: An adapter named after each class's own corpus.
PER_CORPUS = "{corpus}"

_MAX_ENTRIES = 256


def _check_selector(text: str) -> str:
    try:
        parse_selector(text)
    except Malformed as error:
        raise ValueError(f"{error.what}. {error.do}") from None
    return text


def _check_group_name(name: str) -> str:
    if name in {"all", "none", "embedding", "final_norm", "head"} or name.startswith("block"):
        raise ValueError(f"{name!r} is the name of a built-in layer group; choose another")
    return name


SelectorText = Annotated[str, AfterValidator(_check_selector)]
"""A selector of layer groups, in the syntax of `selector`."""

GroupName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"),
    AfterValidator(_check_group_name),
]
"""A layer group of the policy's own; ``block…`` and the built-in names are taken."""

Weight = Share
"""Share of a class's gradient: 1 is all of it, 0 none."""

AdapterName = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,127}|\{corpus\})$")
]
"""A literal adapter name, or ``{corpus}``."""

_Unstated: TypeAlias = Literal["unstated"]
_Globs: TypeAlias = Annotated[tuple[Glob, ...], Field(min_length=1, max_length=_MAX_ENTRIES)]


_Layers: TypeAlias = Annotated[dict[SelectorText, Weight], Field(max_length=_MAX_ENTRIES)]


class Phase(Document):
    """The weights that hold from a step on, until the next phase.

    Attributes:
        from_step: The first step of the phase, counted from 0.
        layers: Selector → weight, instead of those before.
    """

    from_step: Positive
    layers: _Layers


_Held = TypeVar("_Held")


def in_force(step: int, first: _Held, later: Iterable[tuple[int, _Held]]) -> _Held:
    """What holds in a step, of things that have phases.

    Args:
        step: From 0.
        first: Holds before the first of the later phases.
        later: Of each phase its first step, ascending, and what holds from then on.
    """
    for since, held in later:
        if since <= step:
            first = held
    return first


class Profile(Document):
    """How deep a gradient may reach. Layer groups that no selector means get none.

    Attributes:
        layers: Selector → weight. Where selectors overlap, the smallest weight holds.
        adapter: The adapter that the class trains, if any. It does so in every phase.
        rank: The adapter's rank; present exactly if ``adapter`` is.
        phases: From which steps on other layers hold, in their order. Absent, ``layers`` hold in
            every step. A profile with phases permits something in each.
    """

    layers: _Layers
    adapter: AdapterName | None = None
    rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=_MAX_ENTRIES)] | None = None

    @model_validator(mode="after")
    def _rank_with_adapter(self) -> Self:
        if (self.adapter is None) != (self.rank is None):
            raise ValueError("adapter and rank belong together; write both or neither")
        return self

    @model_validator(mode="after")
    def _phases_in_order_and_none_empty(self) -> Self:
        before = 0
        for index, phase in enumerate(self.phases or ()):
            if phase.from_step <= before:
                raise wrong_field(
                    f"a phase from step {phase.from_step} after one from step {before}",
                    *("phases", index, "from_step"),
                )
            before = phase.from_step
        for step in (0, *self.changes) if self.phases else ():
            if self.at(step).is_empty:
                raise ValueError(
                    f"the profile permits nothing from step {step} on; one with phases permits "
                    "something in each"
                )
        return self

    @property
    def is_empty(self) -> bool:
        """Whether the profile permits nothing: its classes are quarantined."""
        return self.adapter is None and not any(self.layers.values())

    @property
    def changes(self) -> tuple[int, ...]:
        """The first step of every phase but the first one."""
        return tuple(phase.from_step for phase in self.phases or ())

    def at(self, step: int) -> Profile:
        """What holds in a step: a profile without phases."""
        if self.phases is None:
            return self
        later = ((phase.from_step, phase.layers) for phase in self.phases)
        layers = in_force(step, self.layers, later)
        return Profile(layers=layers, adapter=self.adapter, rank=self.rank)

    def for_corpus(self, corpus: str) -> Profile:
        """The profile with its adapter named for ``corpus``."""
        if self.adapter != PER_CORPUS:
            return self
        return Profile(layers=self.layers, adapter=corpus, rank=self.rank, phases=self.phases)

    def within(self, other: Profile) -> bool:
        """Whether the meet of both is this profile, on any model.

        Never true wrongly; false also where it depends on the model.
        """
        if self.is_empty or other.is_empty:  # bottom, which drops adapters too
            return self.is_empty
        if other.adapter is not None and (other.adapter, other.rank) != (self.adapter, self.rank):
            return False
        return self.layers_within(other)

    def layers_within(self, other: Profile) -> bool:
        """Whether this profile gives no layer group more weight than ``other``, on any model, in
        any step.

        Never true wrongly; false also where it depends on the model.
        """
        if self.phases or other.phases:
            steps = {0, *self.changes, *other.changes}
            return all(self.at(step).layers_within(other.at(step)) for step in steps)
        if self.layers == other.layers:
            return True
        asked = {selector for selector, weight in self.layers.items() if weight > 0}
        least = min(other.layers.values(), default=0.0)
        return max(self.layers.values(), default=0.0) <= least and (
            "all" in other.layers or asked <= other.layers.keys()
        )


class Match(Document):
    """A condition on a class: every attribute given has one of its values.

    ``corpus`` and ``license`` take globs; the others take values of their enumeration.
    No attribute at all matches every class.

    ``source`` and those behind it are of a credential's description. A class that does not state
    one is matched by ``unstated`` alone. Of several modalities or languages one is enough.
    """

    corpus: _Globs | None = None
    license: _Globs | None = None
    license_category: Annotated[tuple[LicenseCategory, ...], Field(min_length=1)] | None = None
    jurisdiction: Annotated[tuple[Jurisdiction, ...], Field(min_length=1)] | None = None
    sensitivity: Annotated[tuple[Sensitivity, ...], Field(min_length=1)] | None = None
    use: Annotated[tuple[Use, ...], Field(min_length=1)] | None = None
    source: Annotated[tuple[Source | _Unstated, ...], Field(min_length=1)] | None = None
    modality: Annotated[tuple[Modality | _Unstated, ...], Field(min_length=1)] | None = None
    # "unstated" has the form of a language tag, and nobody registered it.
    languages: Annotated[tuple[Language, ...], Field(min_length=1)] | None = None
    opt_out: Annotated[tuple[OptOut | _Unstated, ...], Field(min_length=1)] | None = None
    personal_data: Annotated[tuple[PersonalData | _Unstated, ...], Field(min_length=1)] | None = (
        None
    )

    GLOBS: ClassVar[tuple[str, ...]] = ("corpus", "license")
    SEVERAL: ClassVar[tuple[str, ...]] = ("modality", "languages")

    @cached_property
    def conditions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The attributes that are given, and their values: a policy is asked of many classes.

        Iterating over a rule's match gives this too once it was asked for, and a copy keeps it.
        """
        return tuple((attribute, accepted) for attribute, accepted in self if accepted is not None)

    def matches(self, cls: CredentialClass) -> bool:
        """Whether ``cls`` satisfies every attribute."""
        for attribute, accepted in self.conditions:
            value = getattr(cls, attribute)
            if attribute in self.GLOBS:
                if not any(globs.matches(pattern, value) for pattern in accepted):
                    return False
                continue
            values = value if attribute in self.SEVERAL and value else (value or UNSTATED,)
            if not _spelt(attribute, values) & _spelt(attribute, accepted):
                return False
        return True

    @property
    def names_reserved(self) -> bool:
        """Whether it says of classes whose rights are reserved that it means them."""
        return RESERVED in (self.opt_out or ())

    def overlaps(self, other: Match) -> bool:
        """Whether some class can match both, taking attributes as independent."""
        for attribute, accepted in self.conditions:
            others = getattr(other, attribute)
            if others is None:
                continue
            if attribute in self.GLOBS:
                if not any(globs.overlap(a, b) for a, b in product(accepted, others)):
                    return False
            elif attribute in self.SEVERAL and {UNSTATED} not in (set(accepted), set(others)):
                continue  # one class may have a value of each
            elif not _spelt(attribute, accepted) & _spelt(attribute, others):
                return False
        return True

    def covers(self, other: Match) -> bool:
        """Whether this matches every class that ``other`` does; never true wrongly."""
        for attribute, accepted in self.conditions:
            others = getattr(other, attribute)
            if others is None:
                return False
            if attribute in self.GLOBS:
                if not all(any(globs.covers(a, b) for a in accepted) for b in others):
                    return False
            elif not _spelt(attribute, others) <= _spelt(attribute, accepted):
                return False
        return True


def _spelt(attribute: str, values: Iterable[str]) -> set[str]:
    """Values as they are compared: tags of languages in any case (RFC 5646 section 2.1.1)."""
    return {each.casefold() for each in values} if attribute == "languages" else set(values)


class Rule(Document):
    """Classes that match get at most this profile."""

    name: Label
    match: Match
    profile: Label


@dataclass(frozen=True)
class PolicyDecision:
    """What a policy says about one class, before any model is known.

    Attributes:
        policy: ``name vN``, for messages.
        rules: Names of the rules that match, in the policy's order.
        profiles: Name → profile of those rules, adapters named for the corpus. The
            class gets their meet.
        label: Name of the profile that the meet equals, or the names of the strictest
            profiles, sorted and joined by ``&``.
        quarantined_by: The first rule whose profile is empty, if any.
        own_adapter: Whether every profile that names an adapter says ``{corpus}``.
        fallback: What holds of a class's rows after a gate, where that permits something. Its rules
            are those that gate, its profiles their fallbacks.
    """

    policy: str
    credential_class: CredentialClass
    rules: tuple[str, ...]
    profiles: Mapping[str, Profile]
    label: str
    adapter: str | None
    rank: int | None
    quarantined_by: str | None
    own_adapter: bool = True
    fallback: PolicyDecision | None = None

    @property
    def quarantined(self) -> bool:
        """Whether the class permits no training at all."""
        return self.quarantined_by is not None

    @property
    def changes(self) -> tuple[int, ...]:
        """The steps from which on another phase of some profile holds."""
        return tuple(sorted({step for each in self.profiles.values() for step in each.changes}))


class Policy(Signed):
    """A signed depth policy: closed, and total by refusal.

    Attributes:
        name: Which policy; versions are counted per name.
        version: Only increases. A trust root states the least it accepts.
        valid: When the policy may be used.
        on_expiry: What a run does when a credential in force expires or is revoked.
            ``stop``: it stops before the next step. ``gate``: it goes on without the
            corpus, while another one is left. When the policy itself ends it stops.
        groups: Layer groups of the policy's own: name → globs over parameter names.
        rules: All that match apply.
        memorization: What is measured of memorization, and what follows; absent, nothing is.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/depth-policy/v1"

    name: Name
    version: Positive
    valid: Period
    on_expiry: Literal["stop", "gate"]
    groups: Annotated[dict[GroupName, _Globs], Field(max_length=_MAX_ENTRIES)] | None = None
    profiles: Annotated[dict[Label, Profile], Field(min_length=1, max_length=_MAX_ENTRIES)]
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=_MAX_ENTRIES)]
    memorization: Monitoring | None = None

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"

    @model_validator(mode="after")
    def _rules_are_distinct_and_name_profiles(self) -> Self:
        seen: set[str] = set()
        for index, rule in enumerate(self.rules):
            if rule.name in seen:
                raise wrong_field(f"two rules are called {rule.name!r}", "rules", index, "name")
            seen.add(rule.name)
            if rule.profile not in self.profiles:
                raise wrong_field(
                    f"rule {rule.name!r} names profile {rule.profile!r}, which does not exist"
                    + suggestion(rule.profile, self.profiles),
                    *("rules", index, "profile"),
                )
        return self

    @model_validator(mode="after")
    def _monitors_by_its_rules_and_falls_back_to_its_profiles(self) -> Self:
        if self.memorization is None:
            return self
        rules = {rule.name for rule in self.rules}
        for index, name in enumerate(self.memorization.rules or ()):
            if name not in rules:
                raise wrong_field(
                    f"memorization measures classes of rule {name!r}, which does not exist"
                    + suggestion(name, rules),
                    *("memorization", "rules", index),
                )
        for name, each in self.memorization.actions.items():
            path = ("memorization", "actions", name)
            if name not in rules:
                raise wrong_field(
                    f"memorization acts on rule {name!r}, which does not exist"
                    + suggestion(name, rules),
                    *path,
                )
            if each.fallback is not None and (odd := self._unfit(name, each.fallback)):
                raise wrong_field(
                    f"the fallback of rule {name!r} is profile {each.fallback!r}, {odd}", *path
                )
        return self

    def _unfit(self, name: str, fallback: str) -> str | None:
        """Why a gate of a rule can't fall back to this profile, on any model."""
        if fallback not in self.profiles:
            return "which does not exist" + suggestion(fallback, self.profiles)
        if self.profiles[fallback].phases:
            return "which has phases; after a gate one profile holds in every step"
        adapter, rank = self.profiles[fallback].adapter, self.profiles[fallback].rank
        match = next(rule.match for rule in self.rules if rule.name == name)
        met = [self.profiles[r.profile] for r in self.rules if r.match.overlaps(match)]
        if adapter is None or any((p.adapter, p.rank) == (adapter, rank) for p in met):
            return None
        if adapter != PER_CORPUS:
            return (
                f"which trains adapter {adapter!r}; a fallback trains the class's own route's "
                f"adapter, or {PER_CORPUS}"
            )
        if other := next((p.rank for p in met if p.adapter == PER_CORPUS), None):
            return f"which gives {PER_CORPUS} rank {rank}, where its rules give it rank {other}"
        return None

    @model_validator(mode="after")
    def _no_two_adapters_can_meet(self) -> Self:
        with_adapter = [r for r in self.rules if self.profiles[r.profile].adapter is not None]
        for one, two in combinations(with_adapter, 2):
            a, b = self.profiles[one.profile], self.profiles[two.profile]
            if one.match.overlaps(two.match) and _adapters_differ(a, one.match, b, two.match):
                raise ValueError(
                    f"rules {one.name!r} and {two.name!r} can match one class, but name two "
                    f"different adapters ({a.adapter} of rank {a.rank}, {b.adapter} of rank "
                    f"{b.rank})"
                )
        return self

    def decide(self, cls: CredentialClass) -> PolicyDecision:
        """Return what the policy says about ``cls``.

        Raises:
            Refused: No rule matches the class, or its rules name two adapters. Or rights in it are
                reserved, and none of its rules names that.
        """
        rules = [rule for rule in self.rules if rule.match.matches(cls)]
        if not rules:
            raise Refused(
                f"no rule of policy {self} matches the class ({cls})",
                where=f"corpus {cls.corpus!r}",
                do="Add a rule for it, or leave the corpus out; nothing is allowed by default",
            )
        if cls.opt_out == RESERVED and not any(rule.match.names_reserved for rule in rules):
            raise Refused(
                f"rights in it are reserved (opt_out: {RESERVED}), and no rule of policy {self} "
                "that matches it names that",
                where=f"corpus {cls.corpus!r}",
                do=f"Leave the corpus out, or name opt_out: {RESERVED} in a rule that matches it; "
                "one with an empty profile puts it into quarantine",
            )
        decision = self._meet(cls, {rule.name: rule.profile for rule in rules})
        if self.memorization is None or decision.quarantined:
            return decision
        named = self.memorization.fallbacks(decision.rules)
        if not named or any(self.profiles[each].is_empty for each in named.values()):
            return decision
        return replace(decision, fallback=self._meet(cls, named))

    def _meet(self, cls: CredentialClass, named: Mapping[str, str]) -> PolicyDecision:
        """What rules, each with a profile, say about a class together."""
        profiles = {n: self.profiles[n].for_corpus(cls.corpus) for n in named.values()}
        quarantined_by = next((r for r, n in named.items() if profiles[n].is_empty), None)
        adapter, rank = None, None
        if quarantined_by is None:
            adapter, rank = _one_adapter(profiles, f"corpus {cls.corpus!r}, policy {self}")
        return PolicyDecision(
            policy=str(self),
            credential_class=cls,
            rules=tuple(named),
            profiles=profiles,
            label=_label(profiles),
            adapter=adapter,
            rank=rank,
            quarantined_by=quarantined_by,
            own_adapter=all(self.profiles[n].adapter in (None, PER_CORPUS) for n in profiles),
        )


def verify_policy(trust: TrustState, data: bytes, *, at: datetime) -> Verified[Policy]:
    """Return the policy in the envelope ``data`` if the trust root carries it.

    1. An authority for policies signed it, with its threshold of keys.
    2. The subject is the policy itself.
    3. Its version is not below the least that the trust root accepts.
    4. It is valid at ``at``.

    Raises:
        Untrusted: The first of the numbered conditions that does not hold.
    """
    verified = verify_rules(trust, Policy, data, at=at, where="policy")  # 1, 2, 3
    verified.document.valid.check(at, where=f"policy {verified.document}")  # 4
    return verified


_Ruled = TypeVar("_Ruled", bound=Signed)


def verify_rules(
    trust: TrustState, kind: type[_Ruled], data: bytes, *, at: datetime, where: str
) -> Verified[_Ruled]:
    """A document with a name and a version that an authority for policies signed. It is about
    itself, and not below the least version of the trust root. Raises as `verify_policy`."""
    verified = trust.verify(kind, data, role="policy", at=at, where=where)
    rules: Any = verified.document
    where = f"{where} {rules}"
    check_subjects(verified, where=where)
    least = trust.minimum_policy_version(rules.name)
    if rules.version < least:
        raise Untrusted(
            f"older than version {least}, the least that the trust root accepts",
            where=where,
            do="Use the current version",
        )
    return verified


def _adapters_differ(a: Profile, a_match: Match, b: Profile, b_match: Match) -> bool:
    """Whether overlapping rules with these profiles can name two adapters."""
    if a.rank != b.rank:
        return True
    if a.adapter == b.adapter:
        return False
    if PER_CORPUS not in (a.adapter, b.adapter):
        return True
    # "{corpus}" against a literal: the same only if no other corpus matches both.
    literal = b.adapter if a.adapter == PER_CORPUS else a.adapter
    return not any(match.corpus == (literal,) for match in (a_match, b_match))


def _one_adapter(profiles: Mapping[str, Profile], where: str) -> tuple[str | None, int | None]:
    adapters = {(p.adapter, p.rank): name for name, p in profiles.items() if p.adapter is not None}
    if len(adapters) > 1:
        raise Refused(
            f"profiles {' and '.join(sorted(adapters.values()))} name different adapters",
            where=where,
            do="Let the rules that match this class name one adapter of one rank",
        )
    return next(iter(adapters), (None, None))


def _label(profiles: Mapping[str, Profile]) -> str:
    """The names of the profiles that no other one makes redundant."""
    strictest = dict(sorted(profiles.items()))
    for name, profile in sorted(profiles.items(), reverse=True):
        rest = [other for key, other in strictest.items() if key != name]
        if any(other.within(profile) for other in rest):
            del strictest[name]
    return "&".join(strictest)
