"""From verified inputs to routes and a batch plan. Pure: the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from govray.data.shard_file import rows_per_group
from govray.errors import UsageError
from govray.governance.formats.bounds import MAX_EXACT
from govray.governance.policy.corpus_routes import CorpusRoutes, resolve_all
from govray.governance.policy.credential import CredentialClass
from govray.governance.policy.depth_policy import Policy, PolicyDecision
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import (
    BatchPlan,
    StreamPlan,
    check_quotas,
    plan_streams,
    stream_phase,
)
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.row_order import RowOrder
from govray.train.inputs.experiment_config import DATA, Quota, StepCount

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
    A window is a whole number of blocks."""
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
    max_steps: StepCount,
    order: RowOrder,
    mixture: Mapping[str, float] | None = None,
) -> Planned:
    """The batch plan over the manifest's rows.

    ``order`` is `local_order` for a new run, and for one that goes on what its plan states.
    ``mixture`` says of corpora how often an epoch of their stream reads them, 1 by default.
    ``max_steps`` of ``"data"`` ends with the last step that has rows.

    Raises:
        UsageError: A profile in use has no quota, or a quota names an unknown profile. A corpus of
            ``exclude`` or ``mixture`` was not admitted. No corpus has a row, or the data end
            before ``max_steps``.
    """
    prepared = {c.corpus for c in manifest.corpora}
    check_names(
        {c: decisions[c].label for c in prepared},
        profiles=profiles,
        quotas=quotas,
        exclude=exclude,
        mixture=mixture or {},
    )

    def planned(steps: int) -> Planned:
        kept = routes.until(steps).of(sorted(prepared))
        labels = {c: (kept[c].digest, decisions[c].label) for c in sorted(prepared)}
        plan = BatchPlan(
            seed=seed,
            max_steps=steps,
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
                    c: max(1, round(weight * rows)) if (rows := manifest.train_rows(c)) else 0
                    for c, weight in (mixture or {}).items()
                },
            ),
        )
        return Planned(plan, {c: decisions[c] for c in kept}, kept)

    # Phases that a run doesn't reach may part its streams, so the length comes first.
    found = planned(MAX_EXACT if max_steps == DATA else max_steps)
    refuse_short_data(found.plan, endless=max_steps == DATA)
    return planned(last_read(found.plan) + 1) if max_steps == DATA else found


def check_names(
    labels: Mapping[str, str],
    *,
    profiles: Collection[str],
    quotas: Collection[str],
    exclude: Iterable[str],
    mixture: Iterable[str],
) -> None:
    """Return if a plan's fields name what there is. It takes neither a model nor prepared data.

    Args:
        labels: Admitted corpus → the label of its decision.
    """
    for where, named in (("exclude", set(exclude)), ("mixture", set(mixture))):
        if odd := sorted(named - labels.keys()):
            raise UsageError(
                f"no admitted corpus is called {odd[0]!r}",
                where=where,
                do=f"There are: {', '.join(sorted(labels)[:8])}, …",
            )
    if odd := sorted(set(quotas) - set(profiles) - {*labels.values()}):
        raise UsageError(
            f"the policy has no profile {odd[0]!r}",
            where="rows_per_step",
            do=f"It has: {', '.join(sorted(profiles))}",
        )
    check_quotas(labels.values(), quotas)


def last_read(plan: BatchPlan) -> int:
    """The last step that has rows; −1 if none has."""
    turns = [
        (s, min(s.readings, -(-(plan.max_steps - s.phase) // s.every))) for s in _reading(plan)
    ]
    return max((s.phase + (turn - 1) * s.every for s, turn in turns), default=-1)


def refuse_short_data(plan: BatchPlan, *, endless: bool = False) -> None:
    """Refuse a plan whose last steps would have no row because every stream ended before.

    Steps between two turns of a stream that is read now and then may have none. A stream of
    excluded corpora alone brings none.

    Args:
        endless: Whether the run ends with its data, however early.
    """
    steps, reading = plan.max_steps, _reading(plan)
    if not reading:
        raise UsageError(
            "no step would have a row: corpora are empty, held back in the reserve or excluded, or "
            "their first turn comes later",
            where="data",
            do="Give corpora with more records, a smaller reserve, or fewer steps between turns",
        )
    if endless or any(s.phase + s.readings * s.every >= steps for s in reading):
        return
    last = last_read(plan)
    enough = min(-(-((-(-(steps - s.phase) // s.every) - 1) * s.quota + 1) // s.n) for s in reading)
    raise UsageError(
        f"the data end before the run: step {last} is the last with rows, and {steps - last - 1} "
        "steps would come after it",
        where=f"max_steps: {steps}",
        do=f"Write max_steps: {last + 1}, or max_steps: data, which is as many; or data.epochs: "
        f"{enough}",
    )


def _reading(plan: BatchPlan) -> list[StreamPlan]:
    """The streams that bring rows to some step of the plan."""
    return [
        stream
        for stream in plan.streams
        if stream.phase < plan.max_steps
        and any(c.rows for c in stream.corpora if c.corpus not in plan.excluded)
    ]


def advice(plan: BatchPlan) -> tuple[str, ...]:
    """Warnings: corpora without a row, and quotas that may be a mistake. A quota counts for each
    route stream. A profile with an adapter for each corpus has as many streams as corpora."""
    found = []
    without: set[str] = set()
    by_profile: dict[str, list[StreamPlan]] = {}
    for stream in plan.streams:
        if any(corpus.corpus not in plan.excluded for corpus in stream.corpora):
            by_profile.setdefault(stream.profile, []).append(stream)
        without |= {each.corpus for each in stream.corpora if not each.rows} - set(plan.excluded)
    if without:
        found.append(
            f"{', '.join(sorted(without))}: no row to train on, so it trains no layer. Its records "
            "are empty, or all held back in the reserve. Add records to it, leave it out, or set a "
            "smaller data.reserve."
        )
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
