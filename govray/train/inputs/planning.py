"""From verified inputs to routes and a batch plan. Pure: the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from govray.data.shard_file import rows_per_group
from govray.errors import UsageError
from govray.governance.policy.corpus_routes import CorpusRoutes, resolve_all
from govray.governance.policy.credential import CredentialClass
from govray.governance.policy.depth_policy import Policy, PolicyDecision
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, StreamPlan, plan_streams, stream_phase
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.row_order import RowOrder
from govray.train.inputs.experiment_config import Quota

MOST_DUE = 16
"""With more streams of one profile at one step, `advice` warns. Each stream in a domain of its own
needs a forward and a backward of its own."""
BLOCK_GROUPS = 2
"""Row groups' worth of rows in a block of new plans. A block that does not begin where a row group
does touches one more."""
WINDOW_TOKENS = 1 << 22
"""About how many tokens a window of new plans holds: some megabytes of decoded row groups."""
LEAST_WINDOW = 2048
"""Rows of a window at least, however long they are."""


@dataclass(frozen=True)
class Planned:
    """A batch plan, and the decision and route of every admitted corpus in it."""

    plan: BatchPlan
    decisions: Mapping[str, PolicyDecision]
    routes: CorpusRoutes

    @property
    def read(self) -> CorpusRoutes:
        """Of the corpora that the plan reads."""
        return self.routes.of([c for c in self.routes if c not in self.plan.excluded])

    @property
    def stream_routes(self) -> dict[str, Route]:
        """Stream id to route, for streams that read anything; and the routes of later phases and
        fallbacks, which have no stream, by digest."""
        return self.read.by_digest


def routes_of(
    policy: Policy, classes: Mapping[str, CredentialClass], groups: Sequence[str]
) -> tuple[dict[str, PolicyDecision], CorpusRoutes]:
    """Decision and route of each corpus that the policy admits.

    Raises:
        Refused: No rule matches a class, or a selector names no layer group. Or a gate's fallback
            is not narrower than the class's own route.
    """
    decisions = {corpus: policy.decide(cls) for corpus, cls in sorted(classes.items())}
    admitted = {c: d for c, d in decisions.items() if not d.quarantined}
    return admitted, resolve_all(admitted, groups)


def local_order(context: int) -> RowOrder:
    """The order of new plans, for rows of ``context`` + 1 words: nothing else changes it.

    A window is a whole number of blocks.
    """
    block = BLOCK_GROUPS * rows_per_group(context)
    rows = max(WINDOW_TOKENS // (context + 1), LEAST_WINDOW)
    return RowOrder(block=block, window=-(-rows // block) * block)


def make_plan(
    manifest: Manifest,
    manifest_digest: str,
    decisions: Mapping[str, PolicyDecision],
    routes: CorpusRoutes,
    *,
    profiles: Collection[str],
    quotas: Mapping[str, Quota],
    epochs: int,
    exclude: Sequence[str],
    seed: int,
    max_steps: int,
    order: RowOrder,
    mixture: Mapping[str, float] | None = None,
) -> Planned:
    """The batch plan over the manifest's rows.

    ``order`` is `local_order` for a new run, and for one that goes on what its plan states.
    ``mixture`` says of corpora how often an epoch of their stream reads them, 1 by default.

    Raises:
        UsageError: A profile in use has no quota, or a quota names an unknown profile. A corpus of
            ``exclude`` or ``mixture`` was not admitted.
    """
    routes = routes.until(max_steps)
    prepared = {c.corpus for c in manifest.corpora}
    labels = {c: (routes[c].digest, decisions[c].label) for c in sorted(prepared)}
    for where, named in (("exclude", set(exclude)), ("mixture", set(mixture or {}))):
        if odd := sorted(named - prepared):
            raise UsageError(
                f"no admitted corpus is called {odd[0]!r}",
                where=where,
                do=f"There are: {', '.join(sorted(prepared)[:8])}, …",
            )
    if odd := sorted(set(quotas) - set(profiles) - {label for _, label in labels.values()}):
        raise UsageError(
            f"the policy has no profile {odd[0]!r}",
            where="rows_per_step",
            do=f"It has: {', '.join(sorted(profiles))}",
        )
    plan = BatchPlan(
        seed=seed,
        max_steps=max_steps,
        manifest=manifest_digest,
        context=manifest.context,
        excluded=tuple(sorted(exclude)),
        order=order,
        streams=plan_streams(
            labels,
            {c: manifest.train_rows(c) for c in prepared},
            rows_per_step={label: q.rows for label, q in quotas.items()},
            every={label: q.every for label, q in quotas.items()},
            epochs=dict.fromkeys(quotas, epochs),
            draws={
                c: max(1, round(weight * manifest.train_rows(c))) if manifest.train_rows(c) else 0
                for c, weight in (mixture or {}).items()
            },
        ),
    )
    kept = routes.of(sorted(prepared))
    return Planned(plan, {c: decisions[c] for c in kept}, kept)


def advice(plan: BatchPlan) -> tuple[str, ...]:
    """Warnings about quotas that may be a mistake, one or two sentences for each profile.

    A quota counts for each route stream. A profile with an adapter for each corpus has as many
    streams as corpora.
    """
    by_profile: dict[str, list[StreamPlan]] = {}
    for stream in plan.streams:
        if any(corpus.corpus not in plan.excluded for corpus in stream.corpora):
            by_profile.setdefault(stream.profile, []).append(stream)
    found = []
    for profile, streams in sorted(by_profile.items()):
        ids = [stream.id for stream in streams]
        due = busiest(ids, streams[0].every)
        if due > MOST_DUE:
            enough = next(k for k in count(1) if busiest(ids, k) <= MOST_DUE)
            found.append(
                f"rows_per_step: {due} of the {len(ids)} streams of profile {profile!r} fall due "
                f"on one step, and each is a pass of its own. With 'every: {enough}' at most "
                f"{busiest(ids, enough)} do."
            )
        late = sum(stream.phase >= plan.max_steps for stream in streams)
        if late:
            found.append(
                f"rows_per_step: {late} of the {len(ids)} streams of profile {profile!r} are not "
                f"read at all: their first turn comes after step {plan.max_steps}. Use fewer "
                f"steps between turns than every: {streams[0].every}, or a longer run."
            )
    return tuple(found)


def busiest(streams: Iterable[str], every: int) -> int:
    """The largest number of these streams due at one step, each read every ``every`` steps."""
    return max(Counter(stream_phase(stream, every) for stream in streams).values(), default=0)
