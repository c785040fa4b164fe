"""Promotion gates: what must hold before a version of a model moves to a stage.

The gates of each stage are a small closed document, written as YAML
(``policies/promotion.yaml``) and signed as a depth policy is. The trust root names who signs, by
the role ``policy``. The operator, whose models pass or fail, is not asked. So neither those
who may write the registry, nor those who put files beside the policies, can lower its bar. Every
promotion records the digest of the signed statement.

Invariants

* A document names every stage that can be promoted to; an empty list is written, never implied.
  A field, gate or stage that is not known is an error.
* ``failures`` is pure, looks at every gate, and returns all that failed.
* A gate whose question the evidence leaves open has failed.

What a gate looks at was verified when the attestation was indexed. Of signatures, this module
checks the gates' own. What an attestation does not show, no gate can ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from govray.errors import Malformed, Refused
from govray.governance.attestation.execution import Origin
from govray.governance.attestation.model_attestation import AssuranceLevel, Attestation
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Positive, Share, ShortText
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.formats.statement import Signed
from govray.governance.formats.strict_yaml import read_yaml
from govray.governance.policy import globs
from govray.governance.policy.depth_policy import verify_rules
from govray.governance.policy.globs import Glob
from govray.governance.policy.revoked import check_unrevoked_policy
from govray.governance.submission.register_forms import Isolation
from govray.governance.trust.license import LicenseCategory
from govray.governance.trust.trust_state import TrustState, Verified

SCHEMA = "govray.dev/promotion-policy/v1"

_MOST = 64
"""Gates of a stage, and entries of a list in one."""

_Globs: TypeAlias = Annotated[tuple[Glob, ...], Field(min_length=1, max_length=_MOST)]
_Categories: TypeAlias = Annotated[
    tuple[LicenseCategory, ...], Field(min_length=1, max_length=_MOST)
]


@dataclass(frozen=True)
class GateEvidence:
    """What gates look at.

    Attributes:
        records: Corpus → how many records its credential counts, for every admitted corpus.
        assurance: What the signatures amounted to when they were verified, replay checks
            included.
    """

    attestation: Attestation
    records: Mapping[str, int]
    assurance: str

    @property
    def run(self) -> str:
        """Where a gate fails that is about the whole run."""
        return self.attestation.run.id


@dataclass(frozen=True)
class FailedGate:
    """A gate that failed: which, what is wrong, where, and what to do."""

    gate: str
    what: str
    where: str
    do: str


Wrong: TypeAlias = tuple[str, str, str]
"""What is wrong, where, and what to do."""


class PromotionGate(Document):
    """One gate. It has failed where it finds anything."""

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        raise NotImplementedError


class Selecting(PromotionGate):
    """The corpora that a gate is about: by name, by licence category, or both together."""

    corpora: _Globs | None = None
    categories: _Categories | None = None

    @model_validator(mode="after")
    def _selects(self) -> Self:
        if self.corpora is None and self.categories is None:
            raise ValueError('says of which corpora: write corpora, such as ["*"], or categories')
        return self

    def of(self, attestation: Attestation) -> list[str]:
        """The admitted corpora that are meant, in order."""
        return [
            each.corpus
            for each in attestation.corpora
            if (
                self.categories is None or each.credential_class.license_category in self.categories
            )
            and (self.corpora is None or any(globs.matches(g, each.corpus) for g in self.corpora))
        ]


_REPLAY = "Replay the run: govray replay RUN --without {} --key KEY; attest it"


class LevelGate(Selecting):
    """Each such corpus is kept out of some layer group, and of each at this level or above."""

    gate: Literal["level"]
    at_least: Annotated[int, Field(ge=1, le=3)]

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        for corpus in self.of(evidence.attestation):
            levels = evidence.attestation.levels.get(corpus, {})
            low = {group: level for group, level in levels.items() if level < self.at_least}
            if not levels:
                what = "it may update every layer group, so it is kept out of none"
                yield what, corpus, "Sign a policy that keeps it out of some, and train under it"
            elif low:
                group, level = min(low.items(), key=lambda each: (each[1], each[0]))
                what = f"level {level} in {group}, the gate asks for {self.at_least}"
                if len(low) > 1:
                    what += f"; the same holds of {len(low) - 1} other layer groups"
                do = "Level 3 also needs the removal of its adapter: govray adapter remove"
                if level == 0:
                    do = "Start from weights that have not seen it"
                elif self.at_least == 2:
                    do = _REPLAY.format(corpus)
                yield what, corpus, do


class ReplayedGate(Selecting):
    """The attestation holds a replay without each such corpus that gave the same files."""

    gate: Literal["replayed"]

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        replayed = {each.corpus for each in evidence.attestation.replays}
        for corpus in self.of(evidence.attestation):
            if corpus not in replayed:
                what = "the attestation holds no replay without it"
                yield what, corpus, _REPLAY.format(corpus)


def _unmonitored(evidence: GateEvidence) -> Wrong:
    return (
        "the run was not monitored, so nothing was measured",
        evidence.run,
        "Add a memorization section to the depth policy, sign it, and train under it",
    )


class FlagGate(PromotionGate):
    """No corpus was found memorized without being rolled back or removed with its adapter.

    It fails where nothing was measured, since then nothing could be found. `MonitoredGate` asks
    that every corpus was measured.
    """

    gate: Literal["no_open_memorization_flag"]

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        findings = evidence.attestation.memorization
        if findings is None:
            yield _unmonitored(evidence)
        elif not findings.measured:
            yield (
                "no corpus was measured, so none could be found memorized",
                evidence.run,
                "Give corpora reserve rows (data.reserve), or the run more steps than the policy's "
                "memorization.every",
            )
        else:
            do = "Audit the model, and train again without the corpus or with fewer passes"
            for corpus, step in open_flags(evidence.attestation).items():
                what = f"found memorized at step {step}, and its weights are still in the model"
                yield what, corpus, do


class MonitoredGate(PromotionGate):
    """The run was monitored for memorization, and each of its corpora was measured at least once.

    A corpus that has no reserve cannot be measured, and fails the gate.
    """

    gate: Literal["monitored"]

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        findings = evidence.attestation.memorization
        if findings is None:
            yield _unmonitored(evidence)
            return
        do = "It needs reserve rows (data.reserve), and a rule that the policy's monitor measures"
        for corpus in evidence.attestation.plan.corpora:
            if corpus not in findings.measured:
                yield "it was never measured", corpus, do


class QuarantinedGate(PromotionGate):
    """At most this share of the records that were offered was refused at admission."""

    gate: Literal["quarantined"]
    at_most: Share

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        admitted = [each.corpus for each in evidence.attestation.corpora]
        unknown = [corpus for corpus in admitted if corpus not in evidence.records]
        if unknown:
            what = "nothing says how many records it has, so no share can be formed"
            yield what, unknown[0], "Index the model again: its credentials are missing"
            return
        refused = sum(each.records for each in evidence.attestation.quarantine)
        total = refused + sum(evidence.records[corpus] for corpus in admitted)
        if refused > self.at_most * total:
            what = f"{refused:,} of {total:,} records were quarantined"
            what += f", a share above {self.at_most:g}"
            do = "Leave out the corpora that the depth policy refuses, and train again"
            yield what, evidence.run, do


class AssuranceGate(PromotionGate):
    """The assurance level is one of these."""

    gate: Literal["assurance"]
    one_of: Annotated[tuple[AssuranceLevel, ...], Field(min_length=1, max_length=_MOST)]

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        if evidence.assurance not in self.one_of:
            asked = ", ".join(self.one_of)
            what = f"the assurance level is {evidence.assurance}, not one of {asked}"
            do = "Have a second party replay the run and sign what it found"
            yield what, evidence.run, do


class ExecutionGate(PromotionGate):
    """The run's execution is as asked: its code's origin and its isolation are listed.

    With ``archives``, code that was submitted is of one of these archives. Code of the deployment
    has none, and passes.
    """

    gate: Literal["execution"]
    origins: Annotated[tuple[Origin, ...], Field(min_length=1, max_length=_MOST)] | None = None
    isolation: Annotated[tuple[Isolation, ...], Field(min_length=1, max_length=_MOST)] | None = None
    archives: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=_MOST)] | None = None

    @model_validator(mode="after")
    def _asks(self) -> Self:
        if not (self.origins or self.isolation or self.archives):
            raise ValueError("asks for nothing: write origins, isolation or archives")
        return self

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        stated = evidence.attestation.execution
        code, isolation, do = stated.code, stated.isolation, "Submit it again as the gate asks"
        if self.origins and code.origin not in self.origins:
            what = f"its code's origin is {code.origin}, not {' or '.join(self.origins)}"
            yield what, evidence.run, do
        if self.isolation and isolation not in self.isolation:
            what = f"its isolation was {isolation}, not {' or '.join(self.isolation)}"
            yield what, evidence.run, do
        if self.archives and code.origin == "submitted" and code.archive not in self.archives:
            what = f"its code is of {code.archive or 'no archive'}, which is not allowed"
            yield what, evidence.run, do


class ValidatedGate(PromotionGate):
    """Validation data gave this metric for the attested weights, and its value is good enough.

    The corpora that it was measured on all match one of ``corpora``, if these are given. A metric
    that the training loop measured by itself fails the gate.
    """

    gate: Literal["validated"]
    metric: ShortText
    at_least: Annotated[float, Field(allow_inf_nan=False)] | None = None
    at_most: Annotated[float, Field(allow_inf_nan=False)] | None = None
    corpora: _Globs | None = None

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("write at_least for a metric to be high, or at_most, and not both")
        return self

    def wrong(self, evidence: GateEvidence) -> Iterator[Wrong]:
        found = evidence.attestation.validation
        do = "Give the run a validation section with corpora, and train it again"
        if found is None or found.metric != self.metric or not found.corpora:
            what = f"no validation data gave {self.metric}"
            if found is not None:
                what += (
                    f", but {'they' if found.corpora else 'the loop itself'} gave {found.metric}"
                )
            yield what, evidence.run, do
            return
        for corpus in sorted(found.corpora) if self.corpora is not None else ():
            if not any(globs.matches(each, corpus) for each in self.corpora or ()):
                what = f"{self.metric} was measured on it too, and the gate names other corpora"
                yield what, corpus, do
                return
        bound = ""
        if self.at_least is not None and found.value < self.at_least:
            bound = f"below {self.at_least:g}"
        elif self.at_most is not None and found.value > self.at_most:
            bound = f"above {self.at_most:g}"
        if bound:
            do = "Train a better model, or let whoever owns the gates change the bound"
            yield f"{self.metric} is {found.value:g}, {bound}", evidence.run, do


Gate: TypeAlias = Annotated[
    LevelGate
    | ReplayedGate
    | FlagGate
    | MonitoredGate
    | QuarantinedGate
    | AssuranceGate
    | ExecutionGate
    | ValidatedGate,
    Field(discriminator="gate"),
]

GATES: Mapping[str, type[Document]] = {
    get_args(kind.model_fields["gate"].annotation)[0]: kind for kind in get_args(get_args(Gate)[0])
}


class Stages(Document):
    """The gates of every stage that has any."""

    staging: Annotated[tuple[Gate, ...], Field(max_length=_MOST)]
    production: Annotated[tuple[Gate, ...], Field(max_length=_MOST)]


class PromotionPolicy(Signed):
    """The document. ``str()`` of it is ``name vN``."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/promotion-policy/v1"

    name: Name
    version: Positive
    stages: Stages

    def gates(self, stage: str) -> tuple[Gate, ...]:
        if stage not in Stages.model_fields:
            raise Refused("no gates are defined for this stage", where=stage)
        found: tuple[Gate, ...] = getattr(self.stages, stage)
        return found

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


def read_promotion_policy(text: str | bytes, *, name: str = "promotion policy") -> PromotionPolicy:
    """Read the YAML source. A gate without arguments may be written as its bare name."""
    source = read_yaml(text, name=name)
    if not isinstance(source.value, dict):
        raise Malformed("no mapping of fields", where=name, do=f"Begin with schema: {SCHEMA}")
    fields = dict(source.value)
    if (schema := fields.pop("schema", None)) != SCHEMA:
        raise Malformed(
            f"the schema is {schema!r}" if schema else "the schema is missing",
            where=source.where("schema"),
            do=f"Write schema: {SCHEMA}",
        )
    stages = fields.get("stages")
    if isinstance(stages, dict):
        written = dict(stages)
        for stage, gates in written.items():
            if isinstance(gates, list):
                written[stage] = [
                    _written_out(gate, source.where("stages", stage, number))
                    for number, gate in enumerate(gates)
                ]
        fields["stages"] = written
    return PromotionPolicy.from_source(fields, where=source.where)


def _written_out(gate: canonical_json.JSON, where: str) -> canonical_json.JSON:
    gate = {"gate": gate} if isinstance(gate, str) else gate
    named = gate.get("gate") if isinstance(gate, dict) else None
    kind = GATES.get(named) if isinstance(named, str) else None
    if kind is None:
        raise Malformed(
            f"{named!r} is no gate" if named else "a gate without a name",
            where=where,
            do=f"Gates are {', '.join(GATES)}",
        )
    kind.from_source(gate, where=where)  # here, so that an error names the gate's own fields
    return gate


def verify_promotion_policy(
    trust: TrustState, data: bytes, *, at: datetime, where: str
) -> Verified[PromotionPolicy]:
    """The gates in the envelope ``data``, if the trust root carries them at ``at``.

    Raises:
        Untrusted: As `verify_rules`.
        Refused: It is no envelope, or revoked.
    """
    if not data.startswith(b'{"payload"'):
        raise unsigned(where)
    found = verify_rules(trust, PromotionPolicy, data, at=at, where="promotion gates")
    check_unrevoked_policy(trust, found, at=at)
    return found


def unsigned(where: str) -> Refused:
    """That these gates bear no signature, with the command that signs them."""
    source = where.removesuffix(".dsse.json").removesuffix(".yaml") + ".yaml"
    return Refused(
        "the promotion gates are not signed, so nothing can be promoted",
        where=where,
        do=f"Let an authority for policies run: govray sign policies/{source} --key KEY",
    )


def failures(gates: Sequence[Gate], evidence: GateEvidence) -> tuple[FailedGate, ...]:
    """Every failure of every gate, in the order of the gates. Pure."""
    return tuple(FailedGate(gate.gate, *wrong) for gate in gates for wrong in gate.wrong(evidence))


def open_flags(attestation: Attestation) -> dict[str, int]:
    """Corpus → the step of the last finding that it was memorized, where that is still open.

    A rollback closes a finding: the weights are from before it. So does the removal of the only
    adapter that the corpus trained. A gate does not: it ends the reading, and what the weights
    hold by then stays.
    """
    if attestation.memorization is None:
        return {}
    gone = {each.adapter for each in attestation.removals}
    removed = {
        each.corpus
        for each in attestation.corpora
        if each.route.adapter is not None
        and each.route.adapter.name in gone
        and not each.route.weights
        and not any(phase.weights for phase in each.route.phases or ())
    }
    last = {each.corpus: each for each in attestation.memorization.decisions}
    return {
        corpus: decision.step
        for corpus, decision in sorted(last.items())
        if decision.action != "rollback" and corpus not in removed
    }


def refusal(
    policy: PromotionPolicy, stage: str, what: str, failed: Sequence[FailedGate]
) -> Refused:
    """The error that names every failure. ``failed``: at least one."""
    told = "; ".join(f"{each.gate}: {each.where}: {each.what}" for each in failed)
    return Refused(
        f"{len(failed)} {'gate' if len(failed) == 1 else 'findings of gates'} of {policy} before "
        f"{stage} failed: {told}",
        where=what,
        do="; ".join(dict.fromkeys(each.do for each in failed)),
    )
