"""The provenance-coverage attestation: one signed statement about one model folder.

The predicate says which policy and credentials were in force, and how every corpus was routed. It
has what the ledger counted per (corpus, layer group), and what can have flowed indirectly. It says
how well each exclusion is supported, what was refused, and in which environment. Everything that
can be computed from other fields or files *is* computed, by the functions here and in
``coverage.py``. The verifier computes it again, so a signer cannot state a coverage that does not
follow.

What no computation can establish is named in ``DISCLAIMER``, which every attestation carries
word for word.

``build`` is pure. It does not sign (``signing.py``), verify (``verifier.py``) or read files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from govray.errors import Refused, UsageError
from govray.governance.attestation import coverage, model_folder
from govray.governance.attestation.coverage import Coverage
from govray.governance.attestation.environment import EarlierCode, Environment
from govray.governance.attestation.execution import Execution
from govray.governance.attestation.selection_taint import Selection, ended_early
from govray.governance.attestation.validation_result import ValidationResult
from govray.governance.formats.bounds import Natural, Positive, PositiveShare, ShortText
from govray.governance.formats.document import Count, Digest, Document, Name, Timestamp
from govray.governance.policy.corpus_routes import CorpusRoutes, resolve_all
from govray.governance.policy.credential import Credential, CredentialClass
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.route import ADAPTER, Route
from govray.governance.record.ancestry import Ancestor
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.incidents import Findings, Incidents, follow, subjects_of
from govray.governance.record.ledger import Ledger
from govray.governance.record.prepare_manifest import Manifest, Quarantined
from govray.governance.record.prepared_records import RecordCounts
from govray.governance.trust.trust_state import Verified

DISCLAIMER = (
    "The signer states that, during the identified run, govray recorded the listed uses of data "
    "under the identified policy. Verification establishes which key signed, that these files "
    "match the signed digests, and that the totals follow from the supplied ledger. It does not "
    "establish that no other data was used, that licence or rights statements are accurate, that "
    "any use was lawful, that the weights resulted from the recorded steps, or that the model "
    'cannot reproduce a work. "Excluded" means no recorded gradient of that class was applied to '
    "that layer group; indirect effects through other layers remain possible where marked. "
    '"Replay identical" means a rerun without the class, by the named party in the named '
    'environment, gave the same bytes. "Removed" means the adapter\'s tensors are absent from '
    "these files; copies and derivatives are not covered. Coverage percentages refer only to data "
    "presented to govray. The submitter, the time of submission, the submitted code and the run's "
    "isolation are from the signer's records, and times are the signer's. Counts, norms and "
    "environment were reported by the job. The signer checked that they agree with each other, "
    "the policy and the manifest, not that they are true. Where code was submitted, its author "
    "could have reported other counts; a replay runs the same code and does not show otherwise. "
    "On a shared cluster any of its jobs could have altered the run. This is not legal advice, a "
    "warranty or a certification."
)

AssuranceLevel = Literal["selfAttested", "witnessed", "replayChecked"]
Level = Annotated[int, Field(ge=0, le=3)]


class Reference(Document):
    """Another signed document, by name, version and digest."""

    name: Name
    version: Positive
    digest: Digest


class RunFacts(Document):
    """Which run it was. The times are the signer's own assertion.

    ``initial_weights`` maps the files of existing weights that the run began with to their
    digests; what they bring is the attestation's ``pretrained``. Absent if there were none.
    ``initial_optimizer`` is the digest of the commit whose optimizer's state it began with. That is
    the one from which these weights were attested, so they bring the same. Absent if it began anew.
    ``ancestry`` names the runs whose state this one went on from, the oldest first.
    ``earlier_code`` is what the run began with, and each that followed but the last, which the
    attestation's ``environment`` has. Absent if all steps ran under one code.
    """

    id: Name
    name: ShortText
    started: Timestamp
    finished: Timestamp
    initial_weights: Annotated[dict[ShortText, Digest], Field(min_length=1)] | None = None
    initial_optimizer: Digest | None = None
    ancestry: Annotated[tuple[Ancestor, ...], Field(min_length=1)] | None = None
    earlier_code: Annotated[tuple[EarlierCode, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.finished < self.started:
            raise ValueError("the run finished before it started")
        steps = [each.step for each in self.earlier_code or ()]
        if steps != sorted({*steps}):
            raise ValueError("steps of earlier code ascend")
        return self


class LayerGroup(Document):
    """A layer group of the base model and the FQNs of its parameters. Order is model order."""

    group: ShortText
    parameters: Annotated[tuple[ShortText, ...], Field(min_length=1)]


class AdapterRank(Document):
    """The adapter of a route and the rank of its factors."""

    name: Name
    rank: Positive


class PhaseFacts(Document):
    """The weights of a route from a step on, until the next phase."""

    from_step: Positive
    weights: dict[ShortText, PositiveShare]


class RouteFacts(Document):
    """A route as it stands in the attestation; ``Route.digest`` is the stream's id.

    ``phases`` are those that the plan's steps reach; absent if one set of weights holds throughout.
    """

    weights: dict[ShortText, PositiveShare]
    adapter: AdapterRank | None = None
    phases: Annotated[tuple[PhaseFacts, ...], Field(min_length=1)] | None = None


class FallbackFacts(Document):
    """Where a gate sends a corpus's rows: the policy's profile, and its route."""

    profile: ShortText
    route: RouteFacts


class AdmittedCorpus(Document):
    """One corpus that trained: its credential, what the policy saw and what it decided.

    ``fallback`` is absent where a gate leaves the corpus out, or none can fall.
    """

    corpus: Name
    credential: Digest
    credential_class: CredentialClass
    rules: Annotated[tuple[ShortText, ...], Field(min_length=1)]
    profile: ShortText
    route: RouteFacts
    fallback: FallbackFacts | None = None


class Adapter(Document):
    """A removable adapter of this run. Its files are subjects unless it was removed."""

    name: Name
    rank: Positive
    corpora: Annotated[tuple[Name, ...], Field(min_length=1)]
    tensors: Annotated[tuple[ShortText, ...], Field(min_length=1)]


class GroupTaint(Document):
    """What reached a layer group: ``direct`` by its own gradient, ``transitive`` by any path."""

    group: ShortText
    direct: tuple[Name, ...]
    transitive: tuple[ShortText, ...]


ClosedSteps: TypeAlias = Annotated[tuple[tuple[Natural, Positive], ...], Field(min_length=1)]
"""Half-open ranges of steps, in order."""

PhaseExclusions: TypeAlias = Annotated[
    dict[Name, Annotated[dict[ShortText, ClosedSteps], Field(min_length=1)]], Field(min_length=1)
]
"""Corpus → layer group that one of its phases reaches → the steps in which none of its gradient
entered the group."""


class LedgerHead(Document):
    """The tree head that ``governance/ledger.checkpoint`` signs."""

    origin: ShortText
    size: Count
    root: Digest


class Replay(Document):
    """Evidence: a rerun without ``corpus``, by ``party``, reproduced these files byte for byte.

    ``plan`` is the digest of the run's plan with the corpus as a tombstone. ``files`` maps the name
    of each compared file to the digest that both runs gave. ``outcome`` is the digest of a
    witness's signed outcome in ``governance/replays.jsonl``. It is absent if the operator that
    signs this attestation ran the replay. Then ``party`` is that operator's name for itself.
    """

    corpus: Name
    party: ShortText
    plan: Digest
    files: Annotated[dict[ShortText, Digest], Field(min_length=1)]
    environment: Environment
    outcome: Digest | None = None


class Removal(Document):
    """An adapter whose files were deleted from the model folder, at the signer's time."""

    adapter: Name
    removed: Timestamp


class Claims(Document):
    """What a run's folder gives of an attestation: computed, and reported by the job.
    See the module. ``files`` does not pin the ledger's checkpoint, which nobody signed yet."""

    run: RunFacts
    policy: Reference
    trust_root: Reference
    manifest: Digest
    plan: BatchPlan
    corpora: Annotated[tuple[AdmittedCorpus, ...], Field(min_length=1)]
    groups: Annotated[tuple[LayerGroup, ...], Field(min_length=1)]
    buffers: tuple[ShortText, ...]
    domains: tuple[tuple[ShortText, ...], ...]
    adapters: tuple[Adapter, ...]
    coverage: tuple[Coverage, ...]
    taint: tuple[GroupTaint, ...]
    selection_taint: Annotated[tuple[Selection, ...], Field(min_length=1)] | None = None
    pretrained: dict[ShortText, tuple[ShortText, ...]]
    levels: dict[Name, dict[ShortText, Level]]
    phase_exclusions: PhaseExclusions | None = None
    replays: tuple[Replay, ...]
    removals: tuple[Removal, ...]
    ledger: LedgerHead
    quarantine: tuple[Quarantined, ...]
    memorization: Findings | None = None
    validation: ValidationResult | None = None
    environment: Environment
    files: dict[ShortText, Digest]
    assurance_level: AssuranceLevel
    disclaimer: str

    @property
    def manifest_pinned_by_payload(self) -> bool:
        """Whether further signatures may be added to the manifest's envelope.

        ``files`` then holds the digest of its statement, as ``manifest`` does. Attestations
        before held that of the file's bytes, which a further signature changes.
        """
        return self.files.get(model_folder.MANIFEST) == self.manifest

    @property
    def steps(self) -> int:
        """How many steps the run has: its plan's, unless early stopping ended it before."""
        return ended_early(self.selection_taint or ()) or self.plan.max_steps

    @property
    def base_groups(self) -> tuple[str, ...]:
        """The model's layer groups in order, adapters excepted."""
        return tuple(g.group for g in self.groups)


class Attestation(Claims):
    """The predicate: a run's claims, and what the operator's records say of its execution."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/attestation/provenance-coverage/v1"

    execution: Execution

    @classmethod
    def of(cls, claims: Claims, execution: Execution, checkpoint: str) -> Self:
        """``checkpoint``: digest of the signed ledger checkpoint."""
        fields = {name: getattr(claims, name) for name in Claims.model_fields}
        fields["files"] = {**claims.files, model_folder.CHECKPOINT: checkpoint}
        return cls(**fields, execution=execution)


def admitted_corpora(
    policy: Policy,
    credentials: Mapping[str, Verified[Credential]],
    base_groups: Sequence[str],
    steps: int,
) -> tuple[tuple[AdmittedCorpus, ...], CorpusRoutes]:
    """What the policy decides for each corpus, and the routes, for one model's groups and a plan of
    so many steps.

    Raises:
        Refused: the policy sends a corpus to quarantine, matches it with no rule, or names a
            group that the model lacks.
    """
    decisions = {}
    for corpus, credential in sorted(credentials.items()):
        decisions[corpus] = policy.decide(credential.document.credential_class)
        if decisions[corpus].quarantined:
            raise Refused("the policy sends this corpus to quarantine", where=corpus)
    routes = resolve_all(decisions, base_groups).until(steps)
    admitted = tuple(
        AdmittedCorpus(
            corpus=corpus,
            credential=credentials[corpus].digest,
            credential_class=decision.credential_class,
            rules=decision.rules,
            profile=decision.label,
            route=route_facts(routes[corpus]),
            fallback=_fallback_facts(routes, corpus),
        )
        for corpus, decision in decisions.items()
    )
    return admitted, routes


def _fallback_facts(routes: CorpusRoutes, corpus: str) -> FallbackFacts | None:
    fallback = routes.fallbacks.get(corpus)
    if fallback is None:
        return None
    return FallbackFacts(profile=fallback.profile, route=route_facts(fallback.route))


def route_facts(route: Route) -> RouteFacts:
    """The route as a document."""
    adapter = None
    if route.adapter is not None and route.rank is not None:
        adapter = AdapterRank(name=route.adapter, rank=route.rank)
    phases = tuple(
        PhaseFacts(from_step=each.from_step, weights=dict(each.weights)) for each in route.phases
    )
    return RouteFacts(weights=dict(route.weights), adapter=adapter, phases=phases or None)


def frozen_domains(routes: CorpusRoutes, base_groups: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The run's domains in the order of ``route.domains``, each sorted."""
    return tuple(tuple(sorted(domain)) for domain in routes.domains(base_groups))


def group_taint(
    routes: CorpusRoutes,
    base_groups: Sequence[str],
    adapters: Sequence[Adapter],
    plan: BatchPlan,
    frozen: Sequence[Sequence[str]],
    pretrained: Mapping[str, Sequence[str]],
) -> tuple[GroupTaint, ...]:
    """Direct and transitive taint per group; a corpus that the plan excludes was never read.
    ``adapters``: those that the run trained."""
    groups = coverage.all_groups(base_groups, (each.name for each in adapters))
    read = routes.of([corpus for corpus in routes if corpus not in plan.excluded])
    reaching = coverage.direct(groups, read)
    reached = coverage.taint(base_groups, routes, frozen, pretrained, plan.excluded)
    return tuple(
        GroupTaint(
            group=group,
            direct=tuple(sorted(reaching[group])),
            transitive=tuple(sorted(reached[group])),
        )
        for group in groups
    )


def exclusion_levels(
    routes: CorpusRoutes,
    base_groups: Sequence[str],
    adapters: Sequence[Adapter],
    replays: Sequence[Replay],
    removals: Sequence[Removal],
    pretrained: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, int]]:
    """Corpus → group → level, for a ledger whose counts follow from these routes.
    ``adapters``: those that the run trained."""
    groups = coverage.all_groups(base_groups, (each.name for each in adapters))
    replayed: dict[str, set[str]] = {}
    for replay in replays:
        held = replayed.setdefault(replay.corpus, set())
        for group in groups:
            if _file_of(group) in replay.files:
                held.add(group)
    gone = {removal.adapter for removal in removals}
    removed = {c for c in routes if any(route.adapter in gone for route in routes.every(c))}
    found: dict[str, dict[str, int]] = {}
    levels = coverage.levels(groups, routes, replayed, removed, pretrained)
    for (corpus, group), level in levels.items():
        found.setdefault(corpus, {})[group] = level
    return found


def _file_of(group: str) -> str:
    """The model file that holds a group's tensors."""
    if group.startswith(ADAPTER):
        return model_folder.adapter_files(group.removeprefix(ADAPTER))[1]
    return model_folder.WEIGHTS


def run_adapters(routes: CorpusRoutes, tensors: Mapping[str, Sequence[str]]) -> tuple[Adapter, ...]:
    """The adapters that a run trained, sorted by name.
    ``tensors``: adapter → its tensors. One that no step trained, such as that of a gate that
    never fell, is absent."""
    return tuple(
        Adapter(
            name=name,
            rank=rank,
            corpora=tuple(
                sorted(c for c in routes if any(r.adapter == name for r in routes.every(c)))
            ),
            tensors=tuple(sorted(set(tensors[name]))),
        )
        for name, rank in routes.adapters.items()
        if name in tensors
    )


def build(
    *,
    run: RunFacts,
    policy: Verified[Policy],
    trust_root: Reference,
    manifest: Verified[Manifest],
    records: RecordCounts,
    plan: BatchPlan,
    credentials: Mapping[str, Verified[Credential]],
    groups: Sequence[LayerGroup],
    ledger: Ledger,
    adapter_tensors: Mapping[str, Sequence[str]],
    environment: Environment,
    files: Mapping[str, str],
    buffers: Sequence[str] = (),
    pretrained: Mapping[str, Sequence[str]] | None = None,
    replays: Sequence[Replay] = (),
    removals: Sequence[Removal] = (),
    selections: Sequence[Selection] = (),
    validation: ValidationResult | None = None,
    assurance_level: AssuranceLevel = "selfAttested",
) -> Claims:
    """The claims of a finished run.

    Args:
        credentials: Corpus → credential, of the corpora that the plan reads.
        groups: The base model's layer groups, in model order.
        adapter_tensors: Adapter → tensor names in its safetensors file.
        files: Name → digest of the files in ``governance/``, without the attestation and the
            ledger's checkpoint.
        buffers: Tensors of the base weights that no gradient updates.
        pretrained: Group → what a pretrained start brings (T0).
        selections: The searches that the run was a trial of, and its early stopping.

    Raises:
        Refused: the policy does not admit one of the corpora.
    """
    base = [g.group for g in groups]
    corpora, routes = admitted_corpora(policy.document, credentials, base, plan.max_steps)
    frozen = frozen_domains(routes, base)
    told = incidents(
        policy.document, corpora, routes, base, ledger, manifest.document, plan.max_steps
    )
    initial = {g: tuple(sorted(labels)) for g, labels in (pretrained or {}).items()}
    adapters = run_adapters(routes, adapter_tensors)
    return Claims(
        run=run,
        policy=Reference(
            name=policy.document.name, version=policy.document.version, digest=policy.digest
        ),
        trust_root=trust_root,
        manifest=manifest.digest,
        plan=plan,
        corpora=corpora,
        groups=tuple(groups),
        buffers=tuple(sorted(buffers)),
        domains=frozen,
        adapters=adapters,
        coverage=coverage.coverage(
            ledger.steps, ledger.norms, routes, plan, manifest.document, records
        ),
        taint=group_taint(routes, base, adapters, plan, frozen, initial),
        selection_taint=tuple(selections) or None,
        pretrained=initial,
        levels=exclusion_levels(routes, base, adapters, replays, removals, initial),
        phase_exclusions=coverage.phase_exclusions(routes, plan.max_steps) or None,
        replays=tuple(replays),
        removals=tuple(removals),
        ledger=LedgerHead(
            origin=ledger.origin, size=ledger.size, root="sha256:" + ledger.root.hex()
        ),
        quarantine=manifest.document.quarantine,
        memorization=told.findings() if told else None,
        validation=validation,
        environment=environment,
        files=dict(files),
        assurance_level=assurance_level,
        disclaimer=DISCLAIMER,
    )


def incidents(
    policy: Policy,
    corpora: Sequence[AdmittedCorpus],
    routes: CorpusRoutes,
    base_groups: Sequence[str],
    ledger: Ledger,
    manifest: Manifest,
    steps: int,
) -> Incidents | None:
    """The story of a ledger; None under a policy that has no monitor.

    Raises:
        Refused: The ledger has a profile or a branch that the policy does not ask for.
    """
    if policy.memorization is None:
        if ledger.profiles:
            raise Refused("an entropy profile, which the policy does not ask for", where="ledger")
        if any(leaf.branch for leaf in ledger.steps):
            raise Refused("a branch that follows from no rollback", where="ledger")
        return None
    rules = {each.corpus: each.rules for each in corpora}
    subjects = subjects_of(policy, rules, routes, base_groups, manifest, steps)
    return follow(policy.memorization, subjects, ledger.leaves, manifest)


def without_adapter(
    attestation: Attestation,
    routes: CorpusRoutes,
    adapter: str,
    *,
    at: str,
    replaced: Mapping[str, str] | None = None,
) -> Attestation:
    """The attestation of the same folder after ``adapter``'s files were deleted.

    The record of what trained stays; the removal is added and the levels follow.

    Args:
        attestation: As verified.
        routes: As verified.
        replaced: Name → digest of the governance files that were signed again.
    """
    if adapter not in {a.name for a in attestation.adapters}:
        raise UsageError(
            "the model has no such adapter",
            where=adapter,
            do=f"It has {', '.join(a.name for a in attestation.adapters) or 'none'}.",
        )
    if adapter in {r.adapter for r in attestation.removals}:
        raise UsageError("the adapter was already removed", where=adapter)
    removals = (*attestation.removals, Removal(adapter=adapter, removed=at))
    fields = {name: getattr(attestation, name) for name in type(attestation).model_fields}
    fields |= {
        "removals": removals,
        "files": {**attestation.files, **_repinned(attestation, replaced or {})},
        "levels": exclusion_levels(
            routes,
            attestation.base_groups,
            attestation.adapters,
            attestation.replays,
            removals,
            attestation.pretrained,
        ),
    }
    return Attestation(**fields)


def _repinned(attestation: Attestation, replaced: Mapping[str, str]) -> dict[str, str]:
    """The pins of the files that got other bytes; a pin by statement stays as it is."""
    held = {model_folder.MANIFEST} if attestation.manifest_pinned_by_payload else set()
    return {name: digest for name, digest in replaced.items() if name not in held}
