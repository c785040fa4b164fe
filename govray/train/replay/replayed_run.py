"""Run a recorded run again, whole or in part, and find out whether it gives the same bytes.

A replay reads the run's rows under the run's plan, with the world sizes in its ledger. Then it
compares leaves and checkpoints. Nothing in it comes from today's files or clock: it uses the
recorded inputs (`govray.train.inputs.recorded_inputs`), and nothing expires. A corpus that the run
left out from some step on (`govray.train.inputs.gating`) is left out there again.

With ``without``, the corpus's positions are tombstones: equal bytes then confirm non-interference
for that corpus. Equal bytes hold for this environment and for whoever ran the replay, not for
others. If data, policy or code changed, equality would mean nothing, so nothing is run. Other
versions or hardware are reported and tried.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray.train

from govray.errors import CouldNotCheck, UsageError
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import Difference, Environment, differences
from govray.governance.attestation.replay_outcome import party_of
from govray.governance.formats import canonical_json
from govray.governance.formats.keys import Signer
from govray.governance.policy.corpus_routes import Fallback
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.ledger import Ledger, read_leaves
from govray.governance.trust.trust_state import TrustState
from govray.train.attest.write_model import environment
from govray.train.checkpoint import commit_folder, whole_file
from govray.train.checkpoint.pins import COMPARED, write_pins
from govray.train.checkpoint.storage import storage_of
from govray.train.driver.progress import StepCallback
from govray.train.driver.trainer import GovernedTrainer
from govray.train.experiment.sections import CheckpointEvery
from govray.train.inputs import gating
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.order import Order
from govray.train.inputs.recorded_inputs import RecordedInputs, recorded_inputs
from govray.train.inputs.run_listing import earlier_code
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.loop.entrypoint import own_loop, resolve
from govray.train.loop.experiment_loop import train_loop
from govray.train.replay.comparison import compared_files, first_leaf, first_tensor
from govray.train.replay.replay_outcome import FOLDER, ReplayFinding
from govray.train.replay.segments import Segment, segments, start_and_stop
from govray.train.run_folder import events
from govray.train.run_folder.environment_probe import environment_here
from govray.train.run_folder.source_code import source_of
from govray.train.state import resume_point
from govray.train.state.carried_governance import read_ledger, rebound
from govray.train.state.pretrained import check_unchanged
from govray.train.state.snapshot import STATE, committed_folders, folder_name

AHEAD = "ledger.ahead.jsonl"

OnDifferences = Callable[[Sequence[Difference]], None]


def replay(
    run: Path,
    *,
    without: str | None = None,
    steps: tuple[int, int] | None = None,
    storage: Path | None = None,
    strict: bool = False,
    signer: Signer | None = None,
    trust: TrustState | None = None,
    on_differences: OnDifferences = lambda found: None,
    on_step: StepCallback = lambda step, metrics: None,
) -> ReplayFinding:
    """Replay ``run`` in a new run folder, and record the outcome there.

    Args:
        run: The run's folder. Only its folder of replays changes.
        steps: From the state before the first to the state before the second. Begins at the newest
            commit at or before the first. By default all that is committed.
        storage: Where the replay's folder goes; ``run/replays`` by default.
        strict: Run nothing if the environment differs at all.
        signer: The signer of whoever runs it; stays on the driver. Without one, the outcome is
            unsigned, and no attestation accepts it.
        trust: Names the signer as an operator or a witness; the run's own root by default.
        on_differences: Called with what differs here, before anything runs.
        on_step: Called on the driver as work proceeds.

    Raises:
        UsageError: The run has no experiment file, never read the corpus, or is shorter than
            ``steps``.
        CouldNotCheck: Code or data are not the run's, or there is nothing to compare with.
        Refused: What the run recorded does not verify, or its start from existing weights
            changed.
    """
    record = read_record(run)
    inputs = recorded_inputs(run, record)
    if signer:
        trust = trust or TrustState.load(
            record.root, at=record.started, delegations=record.delegations
        )
        party_of(trust, signer.public_key)  # refused now rather than after hours
    if without is not None:
        _check_read(run, record.plan, without)
    kept = commits(run)
    start, stop = start_and_stop(steps, kept)
    if record.ancestry and start < record.ancestry[-1].step:
        donor, end = record.ancestry[-1], record.steps
        raise CouldNotCheck(
            f"its first {donor.step} steps are those of {donor.run}, under other settings",
            where=str(run),
            do=f"Replay that run for them, and this one with --steps {donor.step}:{end}",
        )
    record = replace(record, earlier=earlier_code(record.earlier, events.read(run)))
    code = record.code_of(start, stop)
    if code is None:
        first = record.earlier[0].step
        raise CouldNotCheck(
            f"the run went on under other code at step {first}: bits are comparable up to there",
            where=str(run),
            do=f"Replay a part: --steps 0:{first}, under the code that it began with",
        )
    leaves = read_leaves(read_ledger(commit_folder.open_commit(kept[max(kept)])))
    parts = segments(leaves, start, stop)
    _check_environment(run, inputs, code, strict, on_differences)
    if record.start:
        check_unchanged(record.start)

    plan = record.plan.without(without) if without else record.plan
    order = _order(
        inputs,
        plan,
        storage or run / FOLDER,
        decisions=resume_point.as_replayed(gating.resumed(run, kept[max(kept)]), leaves),
        partial=start > 0,
        commit_at=kept,
    )
    folder = Path(order.folder)
    _begin(order, inputs, commit_folder.open_commit(kept[start]) if start else None)
    # The replay's retention rules must keep the commits to compare, and those that begin a segment.
    _pin(folder, {start, *kept, *(part.stop for part in parts)})
    for part in parts:
        _fit(order, inputs, part, on_step)

    repeated = commits(folder)
    ours = {
        step: commit_folder.open_commit(repeated[step]) for step in sorted(repeated) if step > start
    }
    theirs = {step: commit_folder.open_commit(kept[step]) for step in ours if step in kept}
    last = max(theirs, default=None)
    names: list[str] = []
    if last is not None:
        skipped = _adapters_of(record.plan, inputs, plan) if without else frozenset()
        names = compared_files(theirs[last], ours[last], shared_only=without is not None)
        names = [name for name in names if name not in skipped]
    found = differences(
        environment(commit_folder.open_commit(kept[max(kept)])), environment(ours[stop])
    )
    outcome = ReplayFinding(
        of=record.run_id,
        run=order.run_id,
        without=without,
        start=start,
        stop=stop,
        max_steps=record.steps,
        plan=plan.digest,
        checkpoints=tuple(theirs),
        leaf=first_leaf(
            leaves,
            read_leaves(read_ledger(ours[stop])),
            start,
            stop,
            without=without,
            plan=plan.digest,
        ),
        tensor=first_tensor(theirs, ours, start, names),
        original=_digests(theirs[last], names) if last is not None else {},
        replayed=_digests(ours[last], names) if last is not None else {},
        environment=environment(ours[stop]),
        differences=tuple(str(each) for each in found),
    )
    outcome.write(folder)
    if signer and trust:
        outcome.sign(folder, signer, trust, at=datetime.now(UTC))
    return outcome


def commits(run: Path) -> dict[int, commit_folder.Folder]:
    """The step that comes next → folder, of every commit that a run kept."""
    return {
        step: folder
        for step, folder in reversed(committed_folders(run))
        if commit_folder.committed_at(folder) is not None
    }


def _check_read(run: Path, plan: BatchPlan, corpus: str) -> None:
    read = set(plan.corpora) - set(plan.excluded)
    if corpus not in read:
        raise UsageError(
            f"the run did not use a corpus {corpus!r}",
            where=str(run),
            do=f"It used {', '.join(sorted(read))}",
        )


def _check_environment(
    run: Path, inputs: RecordedInputs, then: Environment, strict: bool, tell: OnDifferences
) -> None:
    """Compare this driver's environment with the run's; other code is refused before anything
    runs."""
    record, experiment = inputs.record, inputs.experiment
    if not own_loop(experiment):
        resolve(experiment)
    here = environment_here(
        seed=record.plan.seed,
        threads=then.threads,
        source=source_of(train_loop, experiment.entrypoint),
        chosen=experiment.chosen_kernels,
    )
    found = differences(then, here)
    if code := [each for each in found if each.is_code]:
        raise CouldNotCheck(
            f"the code changed since the run, so equality would show nothing ({code[0].name})",
            where=f"run {record.run_id}",
            do=_how_to_restore(run, record),
        )
    if found and strict:
        raise CouldNotCheck(
            "the environment is not the run's: " + "; ".join(str(each) for each in found),
            where=f"run {record.run_id}",
            do="Run it where these agree, or leave --strict out",
        )
    tell(found)


def _how_to_restore(run: Path, record: RunRecord) -> str:
    version = record.environment.packages.get("govray", "of the run")
    source = record.environment.source
    commit = (
        f", and commit {source.commit[:12]} of its repository" if source and source.commit else ""
    )
    if (archive := record.code_archive) is not None:
        return (
            f"Install govray {version}. The job's own code is archived as {archive}: "
            f"`govray runs code {run} OUT` unpacks it, and there a replay finds it"
        )
    return f"Install govray {version}{commit}, or compare two new runs"


def _order(
    inputs: RecordedInputs,
    plan: BatchPlan,
    storage: Path,
    *,
    decisions: gating.Decisions = gating.UNDECIDED,
    partial: bool = False,
    commit_at: Collection[int] = (),
) -> Order:
    """The run's order, for a new run folder below ``storage``.
    ``commit_at``: steps that the run's clock may have chosen."""
    record = inputs.record
    run_id = f"replay-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    folder = storage.resolve() / run_id
    read = {s.id for s in plan.streams if {c.corpus for c in s.corpora} - set(plan.excluded)}
    # A committed state may have any adapter, so a replay from one keeps them.
    routes: Mapping[str, Route] = inputs.routes
    fallbacks: Mapping[str, Fallback] = inputs.fallbacks
    if not partial:
        fallbacks = {c: each for c, each in fallbacks.items() if c not in plan.excluded}
        streams = [inputs.routes[stream] for stream in read if stream in inputs.routes]
        read |= {later.digest for route in streams for later in route.later}
        read |= {each.route.digest for each in fallbacks.values()}
        routes = {stream: route for stream, route in routes.items() if stream in read}
    return Order(
        run_id=run_id,
        experiment=_experiment(inputs, plan),
        folder=str(folder),
        prepared=str(inputs.prepared),
        manifest=inputs.manifest.document,
        manifest_digest=inputs.manifest.digest,
        plan=plan,
        routes=routes,
        fallbacks=fallbacks,
        groups=record.groups,
        policy_groups=inputs.policy.document.groups or {},
        policy_digest=inputs.policy.digest,
        expiries={},
        commit_at=tuple(commit_at),
        start=record.start,
        decisions=decisions,
        source=record.environment.source,
    )


def _experiment(inputs: RecordedInputs, plan: BatchPlan) -> Experiment:
    """The run's, of which nobody is told, and which nothing judges or ends early."""
    experiment = inputs.experiment
    return experiment.model_copy(
        update={
            # The clock's commits are named one by one, and the last step has one.
            "checkpoint": CheckpointEvery(every_steps=experiment.commit_steps or plan.max_steps),
            # The rows are packed: no tokenizer is read.
            "data": experiment.data.model_copy(update={"tokenizer": "bytes"}),
            "validation": None,
            "log_policies": (),
            "profiling": None,
            "tensorboard": False,
            "tracking": None,  # a second party need not have the trackers
        }
    )


def _begin(order: Order, inputs: RecordedInputs, began: commit_folder.CommitFolder | None) -> None:
    """Make the replay's folder: its record and, for part of a run, its first state."""
    folder = Path(order.folder)
    folder.mkdir(parents=True)
    record = inputs.record
    replace(
        record,
        run_id=order.run_id,
        replay_of=record.run_id,
        submission=None,  # nobody submitted the replay
        archive=None,
        started=datetime.now(UTC).replace(microsecond=0),
        finished=None,
        plan=order.plan,
        config=_config(inputs, order),
        environment=environment_here(
            seed=order.experiment.seed,
            threads=order.experiment.threads,
            source=order.source,
            chosen=order.experiment.chosen_kernels,
        ),
    ).write(folder)
    if began is None:
        return
    state: Any = canonical_json.parse_canonical(began.files[STATE])
    leaves = resume_point.on_one_branch(read_leaves(read_ledger(began)))
    # The only binding that changes without the corpus.
    files = rebound(began, folder, storage_of(folder), leaves, plan=order.plan.digest)
    commit_folder.commit(folder / folder_name(int(state["step"])), files)
    (folder / AHEAD).write_bytes(Ledger(order.run_id, leaves).data)


def _pin(folder: Path, steps: Iterable[int]) -> None:
    write_pins(folder, {folder_name(step): COMPARED for step in sorted(steps)})


def _config(inputs: RecordedInputs, order: Order) -> dict[str, Any]:
    """The loop's configuration, from the experiment, the plan and the tokenizer of the rows."""
    tokenizer = inputs.manifest.document.tokenizer
    resolved = inputs.experiment.resolved(tokenizer.vocabulary, tokenizer.separator)
    steps = resolved.steps_in(order.plan.max_steps)
    return resolved.model_dump(mode="json") | {"max_steps": steps}


def _fit(order: Order, inputs: RecordedInputs, part: Segment, on_step: StepCallback) -> None:
    experiment, config = order.experiment, _config(inputs, order)
    workers = experiment.resources.model_copy(update={"num_workers": part.world_size})
    trainer = GovernedTrainer(
        experiment.model_copy(update={"resources": workers}),
        train_loop_config=config,
        on_step=on_step,
        run_config=ray.train.RunConfig(
            name=order.run_id,
            storage_path=str(Path(order.folder).parent),
            failure_config=ray.train.FailureConfig(max_failures=experiment.max_restarts),
        ),
    )
    trainer.carry_out(replace(order, until=part.stop), config)
    if part.stop not in commits(Path(order.folder)):
        raise CouldNotCheck(
            f"the replay ended without a checkpoint of step {part.stop}", where=order.folder
        )


def _adapters_of(before: BatchPlan, inputs: RecordedInputs, after: BatchPlan) -> frozenset[str]:
    """Weight files of the adapters that no corpus trains in the replay."""

    def trained(plan: BatchPlan) -> set[str]:
        routes = [
            inputs.routes.get(stream.id)
            for stream in plan.streams
            if {c.corpus for c in stream.corpora} - set(plan.excluded)
        ]
        routes += [f.route for c, f in inputs.fallbacks.items() if c not in plan.excluded]
        return {route.adapter for route in routes if route and route.adapter}

    return frozenset(
        model_folder.adapter_files(name)[1] for name in trained(before) - trained(after)
    )


def _digests(committed: commit_folder.CommitFolder, names: Sequence[str]) -> dict[str, str]:
    held = committed.names
    return {name: whole_file.entry(committed, name).digest for name in names if name in held}
