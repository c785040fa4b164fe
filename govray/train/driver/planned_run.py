"""From what a run is asked for to what its workers are ordered: claimed, verified, planned.

Three phases, each a function whose result does not change any more. `claimed` says whose run it is,
`verified` under which signed documents it goes, `planned` what each step reads. Nothing is trained
here, and no run is written: `govray.train.driver.trainer` does that with what these give.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from govray.data.admission import Prepared
from govray.engine.gradients.precision import cast_parameters
from govray.errors import UsageError
from govray.governance.attestation.model_folder import MODEL
from govray.governance.formats.keys import Signer
from govray.governance.submission.submission import Submission
from govray.storage.atomic_file import make_folder
from govray.storage.place import Place, place
from govray.train.checkpoint import storage
from govray.train.checkpoint.room import require_room
from govray.train.driver.gang import await_room, refuse_nowhere
from govray.train.driver.gpu_request import gpus_per_worker, require_gpus
from govray.train.driver.loader_files import loader_files
from govray.train.driver.run_request import RunRequest
from govray.train.experiment.sections import check_copies
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import DATA
from govray.train.inputs.monitored import monitored
from govray.train.inputs.order import HeldOut, Order
from govray.train.inputs.planning import Planned, advice, local_order, make_plan, routes_of
from govray.train.inputs.pretrained_start import Start
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.inputs.shared_inputs import ValidationData
from govray.train.inputs.verified_inputs import Inputs
from govray.train.jax.joined_processes import cpu_platform, refuse_unbuilt
from govray.train.loop.described_optimizer import check_optimizer
from govray.train.loop.described_schedule import check_schedule
from govray.train.loop.entrypoint import declared_start
from govray.train.loop.until_govern import discover
from govray.train.run_folder import events
from govray.train.run_folder.clock import instant
from govray.train.run_folder.environment_probe import environment_here
from govray.train.run_folder.register_posts import RegisterPosts, register_of
from govray.train.run_folder.source_code import source_of
from govray.train.state.optimizer_start import check_optimizer_fits
from govray.train.state.pretrained import check_fits, find_weights, read_start
from govray.train.validation.validation_data import (
    recorded_validation,
)
from govray.train.watching.model_size import ModelSize, model_size
from govray.train.worker.run_start import Discovered


@dataclass(frozen=True)
class Claim:
    """Which run is asked for, and by whom.

    Attributes:
        record: Of a run that goes on; None of a new one.
        register: Where the attestor learns of the run, if there is one.
        attested: The run's folder, if this submission's run is attested already.
        allowed: What may have changed since the run began. Nobody can allow it to a trial, nor to a
            run whose code an attestor registered.
    """

    run_id: str
    submission: Submission | None
    record: RunRecord | None
    register: RegisterPosts | None
    attested: Place | None
    allowed: run_listing.Allowed


@dataclass(frozen=True)
class VerifiedRun:
    """What a run rests on, verified at the time when it began.

    Attributes:
        signer: The operator's, if the run is to be attested: what can't be signed isn't trained.
        key: Loads the operator's key once, for data that are not prepared yet.
    """

    claim: Claim
    started: datetime
    inputs: Inputs
    key: Callable[[], Signer]
    signer: Signer | None


@dataclass(frozen=True)
class PlannedRun:
    """What workers do, and what is recorded of it.

    Attributes:
        config: The training loop's.
        made: The record of a new run, with which that of an old one must agree.
    """

    order: Order
    config: Mapping[str, Any]
    made: RunRecord


def claimed(request: RunRequest) -> Claim:
    """The first phase. Raises ``GovrayError``: it can't be done, or the run is somebody else's."""
    elsewhere = request.experiment.checkpoint.storage
    if elsewhere:
        storage.require_reachable(elsewhere)
    request.check_metric()
    require_gpus(request.scaling)
    try:
        check_copies(request.workers, request.experiment.copies)
    except ValueError as error:
        raise UsageError(str(error), where="scaling_config") from None
    record = read_record(place(request.resume)) if request.resume else None
    shared = request.shared
    submission = shared.submission if shared else request.submission
    run_id = request.run_id
    register = register_of(run_id)
    if request.resume and record:
        run_listing.refuse_other_submission(record, submission)
    if register is not None:
        if request.other_code:
            raise UsageError(
                "what the attestor registered of the run is its code too",
                where="--other-code",
                do="Submit the new code as a new run, which may start from this one's model",
            )
        if elsewhere:
            raise UsageError(
                "the attestor copies a run's folder, and the commits would lie elsewhere",
                where="checkpoint.storage",
                do="Leave it out, or let storage_path be the URL",
            )
        # A search has made its trials' folders.
        there = not shared and (request.storage_place / run_id).exists()
        register.started(planted=record is not None or there)
    attested = None
    if request.resume and record and submission and (place(request.resume) / MODEL).is_dir():
        attested = place(request.resume).resolve()  # its job was started once more
        if register is not None:
            register.ended()
    trial = shared is not None and shared.carried is None
    said = run_listing.OTHER_CODE if request.other_code else frozenset()
    allowed = None if trial or register else said
    return Claim(run_id, submission, record, register, attested, allowed)


def verified(request: RunRequest, claim: Claim, *, attest: bool) -> VerifiedRun:
    """The second phase: wait for room, then verify trust root, policy and every credential."""
    shared, record, experiment = request.shared, claim.record, request.experiment
    # A search looks for its trials.
    if (shared is None or shared.carried is not None) and not (record and record.finished):
        await_room(request.scaling, on_wait=request.on_wait)
        if request.resume:
            excluded = events.excluded_nodes(place(request.resume))
            refuse_nowhere(request.scaling, excluded)
    if record and shared:
        shared.refuse_changes(record)
        run_listing.refuse_other_code(record, claim.allowed)
    elif record:
        run_listing.refuse_changes(record, experiment, claim.allowed)
    # What a run began with was valid then; what has ended since, its steps find out.
    started = record.started if record else instant()
    key = cache(request.signer)
    signer = key() if attest else None
    if shared:
        started, inputs = shared.at, shared.inputs
    else:
        inputs = request.preparation.inputs(started)
    if signer:
        inputs.check_operator(signer.public_key)
    policy = inputs.policy.document
    if experiment.framework == "jax":
        refuse_unbuilt(
            {
                "pretrained": experiment.pretrained,
                "profiling": experiment.profiling,
                "validation.corpora": experiment.validation and experiment.validation.corpora,
                f"memorization in the policy {policy.name} v{policy.version}": policy.memorization,
            }
        )
    return VerifiedRun(claim, started, inputs, key, signer)


def planned(request: RunRequest, run: VerifiedRun) -> PlannedRun:
    """The third phase: the model's layer groups and routes, the data, and every step."""
    claim, inputs, shared, experiment = run.claim, run.inputs, request.shared, request.experiment
    policy = inputs.policy.document
    config = dict(request.loop_config)
    by_data = config.get("max_steps") == DATA
    if by_data:
        config["max_steps"] = 1  # any will do until the plan is made
    with cpu_platform() if experiment.framework == "jax" else nullcontext():
        found = discover(
            request.train_loop_per_worker,
            dict(config),  # which a loop may change
            policy.groups or {},
            where=request.where,
        )
    _require_framework(request, found)
    start = read_pretrained(request, inputs, found, run.started)
    decisions, routes = routes_of(policy, inputs.classes, list(found.groups))
    if shared:
        prepared, validation = shared.prepared, shared.validation
    else:
        prepared = request.preparation.data(inputs, run.started, run.key)
        validation = request.preparation.validation(inputs, prepared, run.started, run.key)
    experiment.check_rows(prepared.manifest.rows)
    data, record = experiment.data, claim.record
    plan = make_plan(
        prepared.manifest,
        prepared.digest,
        decisions,
        routes,
        profiles=policy.profiles,
        quotas=data.rows_per_step,
        epochs=data.epochs,
        exclude=data.exclude,
        seed=experiment.seed,
        max_steps=request.length,
        mixture=data.mixture,
        order=record.plan.order if record else local_order(prepared.manifest.width - 1),
    )
    if request.length == DATA:
        request.check_length(plan.plan.max_steps)
    if by_data:
        config["max_steps"] = steps = plan.plan.max_steps
        check_schedule(experiment.schedule, check_optimizer(experiment.optimizer), steps)
    for each in advice(plan.plan):
        logging.getLogger(__name__).warning(each)
    size = _size(request, found, plan)
    request.on_size(size)
    if experiment.checkpoint.storage is None and isinstance(request.storage_place, Path):
        require_room(request.storage_place, size.commit_bytes)
    order = _order(request, claim.run_id, inputs, found.groups, prepared, plan, start, validation)
    submission = claim.submission
    made = RunRecord(
        run_id=order.run_id,
        started=run.started,
        finished=None,
        groups=found.groups,
        plan=plan.plan,
        policy=inputs.policy_bytes,
        root=inputs.root_bytes,
        manifest=prepared.envelope,
        credentials=inputs.credential_bytes,
        delegations=inputs.delegations,
        config=config,
        experiment=request.file,
        environment=environment_here(
            seed=experiment.seed,
            threads=experiment.threads,
            source=order.source,
            chosen=experiment.chosen_kernels,
        ),
        start=start,
        loader_files=loader_files(found.model, start, data.tokenizer, data.rows),
        selection=shared.selection if shared else None,
        validation=recorded_validation(experiment.validation, validation),
        ema=experiment.ema,
        gpus_per_worker=gpus_per_worker(request.scaling),
        submission=submission,
        archive=None if submission and submission.archive else request.archive,
    )
    return PlannedRun(order, config, made)


def read_pretrained(
    request: RunRequest, inputs: Inputs, found: Discovered, at: datetime
) -> Start | None:
    """The existing weights that the run begins with, compared with the model they fill."""
    if request.shared and request.shared.carried:
        return request.shared.carried.start  # its commit holds what became of them
    declared = declared_start(request.file) if request.file else []
    pretrained, kept = request.experiment.pretrained, request.experiment.pretrained_optimizer
    if declared and pretrained is not None:
        raise UsageError(
            f"the model starts from {declared[0]} by its hyperparameters already",
            where=f"pretrained {pretrained}",
            do="Name the weights in one place",
        )
    if kept and pretrained is None:
        raise UsageError(
            "the optimizer's state belongs to weights, and none are named",
            where=f"pretrained_optimizer {kept}",
            do="Name the model of the same run in pretrained",
        )
    files = declared if pretrained is None else find_weights(Path(pretrained))
    if not files:
        return None
    start = read_start(
        files,
        found.groups,
        trust_root=inputs.anchor,
        at=at,
        loaded_by_model=bool(declared),
        optimizer=Path(kept) if kept else None,
    )
    if not start.loaded_by_model:
        check_fits(found.model, start)
    if start.optimizer and found.optimizer:
        if request.experiment.precision == "bf16":
            cast_parameters(found.model)  # as the workers will
        check_optimizer_fits(found.model, found.optimizer, start.optimizer)
    return start


def _require_framework(request: RunRequest, found: Discovered) -> None:
    """Compare what the loop calls with what the run was announced as."""
    framework = request.experiment.framework
    if found.framework != framework:
        raise UsageError(
            f"the training loop calls the govern() of {found.framework}, and the run says "
            f"framework: {framework}",
            where=request.where or "loop",
            do=f"Write framework: {found.framework}, or call the other one",
        )


def _size(request: RunRequest, found: Discovered, planned: Planned) -> ModelSize:
    # An elastic run holds most on a rank when there are fewest.
    fewest = request.workers if isinstance(request.workers, int) else min(request.workers)
    experiment = request.experiment
    if experiment.precision == "bf16":
        cast_parameters(found.model)  # as the workers will; nobody trains this one
    return model_size(
        found.model,
        found.optimizer,
        found.groups,
        planned.plan,
        planned.stream_routes,
        shards=fewest // experiment.copies if experiment.settings.shards else 1,
        # Over JAX nobody looked which parameters are tables.
        text=experiment.data.rows != "images" and experiment.framework == "torch",
        averaged=experiment.ema is not None,
    )


def _order(
    request: RunRequest,
    run_id: str,
    inputs: Inputs,
    groups: Mapping[str, tuple[str, ...]],
    prepared: Prepared,
    planned: Planned,
    start: Start | None,
    validation: ValidationData | None,
) -> Order:
    folder = request.storage_place / run_id
    make_folder(folder)
    excluded = request.experiment.data.exclude
    read = [corpus for corpus in planned.routes if corpus not in excluded]
    held_out = None
    if validation is not None:
        # What a run is judged by ends like what it trains on.
        inputs = validation.joined(inputs)
        read += validation.corpora
        packed = validation.prepared
        held_out = HeldOut(prepared=str(packed.folder), manifest=packed.manifest)
    return Order(
        run_id=run_id,
        experiment=request.experiment,
        folder=str(folder),
        prepared=str(prepared.folder),
        manifest=prepared.manifest,
        manifest_digest=prepared.digest,
        plan=planned.plan,
        routes=planned.stream_routes,
        fallbacks=planned.read.fallbacks,
        groups=dict(groups),
        policy_groups=inputs.policy.document.groups or {},
        policy_digest=inputs.policy.digest,
        expiries=inputs.expiries(read),
        on_expiry=inputs.policy.document.on_expiry,
        revocations=inputs.revocation_source(read),
        held_out=held_out,
        commit_at=request.commit_at,
        start=start,
        source=source_of(
            request.train_loop_per_worker,
            request.file.entrypoint if request.file else None,
        ),
        monitored=monitored(
            inputs.policy.document,
            {corpus: decision.rules for corpus, decision in planned.decisions.items()},
            planned.routes,
            list(groups),
            prepared.manifest,
            planned.plan.max_steps,
            excluded,
        ),
    )
