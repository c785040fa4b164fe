"""`GovernedTrainer`: Ray's TorchTrainer, with verified inputs before and an attestation after.

The driver does what needs a key or a decision; workers do what needs a model.
``fit`` is the order of things:

1. verify the trust root, the policy and every credential;
2. discover the model's layer groups, and resolve each corpus's route;
3. admit and prepare the data (once for equal inputs);
4. plan every step;
5. train, each rank on its planned shard;
6. sign the ledger, write the model folder, attest.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import ray
import ray.train

from govray.data.admission import Prepared
from govray.engine.gradients.precision import cast_parameters
from govray.errors import Stopped, UsageError, suggestion
from govray.governance.attestation.model_folder import MODEL
from govray.governance.formats.keys import Signer, read_password
from govray.governance.formats.row_schema import RowKind
from govray.governance.record.canary import Canaries
from govray.governance.submission.code_archive import check_digest
from govray.governance.submission.pool_labels import node_labels
from govray.governance.submission.submission import Submission
from govray.storage.atomic_file import make_folder
from govray.storage.place import Place, place
from govray.storage.storage_url import check_path
from govray.train.attest.write_model import signed_files, write_model
from govray.train.checkpoint import storage
from govray.train.driver import attempts
from govray.train.driver.gang import await_room
from govray.train.driver.gpu_request import require_gpus
from govray.train.driver.preparation import Preparation, words
from govray.train.driver.progress import StepCallback
from govray.train.driver.ray_cluster import begun_here
from govray.train.experiment.sections import GROUP, LogPolicy, Profiling, Validation, check_copies
from govray.train.inputs import operator_key, run_listing
from govray.train.inputs.experiment_config import (
    APART,
    DATA,
    Experiment,
    Quota,
    Reader,
    ReserveBy,
    StepCount,
)
from govray.train.inputs.monitored import monitored
from govray.train.inputs.order import Order, ValidationTask
from govray.train.inputs.planning import Planned, advice, local_order, make_plan, routes_of
from govray.train.inputs.pretrained_start import Start
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.inputs.run_settings import RunSettings, run_settings
from govray.train.inputs.shared_inputs import Shared, ValidationData
from govray.train.inputs.verified_inputs import Inputs
from govray.train.jax.joined_processes import cpu_platform, refuse_unbuilt
from govray.train.loop.described_optimizer import check_optimizer
from govray.train.loop.described_schedule import check_schedule
from govray.train.loop.entrypoint import declared_start, own_loop
from govray.train.loop.experiment_loop import REPORTED, train_loop
from govray.train.loop.until_govern import Loop, discover
from govray.train.run_folder import events, stop_request
from govray.train.run_folder.clock import instant, now
from govray.train.run_folder.environment_probe import environment_here
from govray.train.run_folder.register_posts import flag_told, register_of
from govray.train.run_folder.run_lock import Driven, hold
from govray.train.run_folder.source_code import source_of
from govray.train.state.garbage_collection import pin_start
from govray.train.state.pretrained import check_fits, find_weights, read_start
from govray.train.state.snapshot import latest
from govray.train.validation.best_so_far import ended_early
from govray.train.validation.validation_data import (
    recorded_validation,
)
from govray.train.watching.chosen_callbacks import chosen_callbacks, settings
from govray.train.watching.model_size import ModelSize, model_size
from govray.train.watching.run_callback import RunCallback, RunStarted, Told
from govray.train.worker.run_start import Discovered

Admission = Callable[[int, int], None]
"""Called with (records done, records in all) while data is admitted and packed."""


@dataclass(frozen=True, kw_only=True)
class GovernedTrainer(RunSettings):
    """`ray.train.torch.TorchTrainer` whose gradients follow a signed depth policy.

    Args:
        train_loop_per_worker: Calls `govray.train.govern` once, then loops over its `Run`.
        corpora: Folder of corpora with their signed credentials.
        policy: Signed depth policy.
        trust_root: Signed trust root.
        delegations: Envelopes that delegate an authority.
        revocations: Revocation lists; workers read the files again while the run goes on.
        max_steps: Optimizer steps; with ``rows_per_step`` it fixes what is read. ``"data"`` ends
            with the last step that has rows; an experiment's loop gets the number.
        rows_per_step: Profile name to rows (or `Quota`) of each of its route streams.
        context: Loss targets of a row.
        tokenizer: ``"bytes"`` or a path to a Hugging Face ``tokenizer.json``.
        reserve: Share of records that are never trained on.
        reserve_by: ``"record"``, or ``"family"``: near copies within a corpus lie on one side.
        exclude: Corpora left out, as tombstones of the plan.
        canaries: What to plant in which corpora, for `govray audit`.
        rows: What the corpora's records are: ``"text"``, ``"chat"`` or ``"images"``. Images have
            one loss target a row, whatever ``context`` says.
        mixture: Corpus to how often an epoch of its stream reads it; 1 where not named.
        epochs: How often a stream may be read before it falls silent.
        reader: Who reads a worker's rows: the worker where it can, unless this says otherwise.
        framework, seed, clip_norm, max_rows, aggregator, precision, activation_checkpointing,
            compile, cuda_graphs, norms_every, collective_timeout_s: How a step computes; see
            `StepSettings`.
        checkpoint_every, commit_at, keep, ema, replicate, threads, deterministic: How a run
            commits, what its workers hold, and on which kernels it computes; see `RunSettings`.
        checkpoint_storage: An object store's URL for the commits; the run's folder by default.
        max_quarantined: Share of records; above it the run is refused.
        attestation_key: ``env:NAME`` or path of the operator's key; stays on the driver. If
            the variable holds the key itself, Ray must not be running yet.
        unsigned: No key is loaded: the data must be prepared, and others attest.
        attestation_key_password_file: Of an encrypted key; its first line is the password.
        train_loop_config, scaling_config, run_config: As for `TorchTrainer`.
        pretrained: Weights to start from, `govern` loads them: a ``.safetensors`` file, or a
            folder that has ``model.safetensors`` or its shards. A loop that loads weights
            itself names them here too, or its attestation is wrong.
        callbacks: Told of the run on the driver; see `RunCallback`.
        profiling: Steps that torch's profiler traces, on rank 0.
        log_policies: What follows from a line of a worker's log.
        on_admission, on_step: Called on the driver as work proceeds.
        on_size: Called on the driver with the run's size, before workers start.
        on_wait: Called on the driver with a line that says for what room the run waits.
        validation: What the run is judged by: "best" commits and early stopping go by it.
        experiment: The experiment file's content where there is one; makes a run replayable
            from its folder.
        resume: Folder of a run to go on with, instead of a new one. Everything that it rests on
            must be as it was when it began.
        submission: Who submitted the run. It is resumed for the same submission alone, and one
            that is attested already is left as it is.
        archive: Digest of the archived working directory, if no submission states it.
        shared: What other runs verified and prepared already; then ``corpora``, ``policy`` and
            ``trust_root`` are not read.
    """

    train_loop_per_worker: Loop
    corpora: str | Place
    policy: str | Place
    trust_root: str | Place
    max_steps: StepCount
    rows_per_step: Mapping[str, int | Quota]
    train_loop_config: Mapping[str, Any] | None = None
    scaling_config: ray.train.ScalingConfig | None = None
    run_config: ray.train.RunConfig | None = None
    delegations: Sequence[str | Place] = ()
    revocations: Sequence[str | Place] = ()
    context: int = 512
    tokenizer: str = "bytes"
    reserve: float = 0.02
    reserve_by: ReserveBy = "record"
    exclude: Sequence[str] = ()
    canaries: Mapping[str, Canaries] | None = None
    rows: RowKind = "text"
    mixture: Mapping[str, float] | None = None
    epochs: int = 1
    reader: Reader | None = None
    checkpoint_storage: str | None = None
    max_quarantined: float = 0.25
    attestation_key: str = "env:GOVRAY_KEY"
    attestation_key_password_file: str | Path | None = None
    unsigned: bool = False
    pretrained: str | Path | None = None
    profiling: Profiling | None = None
    log_policies: Sequence[LogPolicy] = ()
    callbacks: Sequence[RunCallback] = ()
    on_admission: Admission = lambda done, total: None
    on_step: StepCallback = lambda step, metrics: None
    on_size: Callable[[ModelSize], None] = lambda size: None
    on_wait: Callable[[str], None] = lambda line: None
    validation: Validation | None = None
    experiment: Experiment | None = None
    resume: str | Place | None = None
    submission: Submission | None = None
    archive: str | None = None
    shared: Shared | None = None

    def __post_init__(self) -> None:
        """Refuse settings out of range, and a URL where a path is read or written."""
        super().__post_init__()
        if self.archive is not None:
            check_digest(self.archive)
        if self.max_steps != DATA:
            self._check_length(self.max_steps)
        paths = ("tokenizer", "pretrained", "attestation_key_password_file")
        places = ("corpora", "policy", "trust_root", "delegations", "revocations", "resume")
        given = {name: getattr(self, name) for name in (*paths, *places)}
        given["run_config.storage_path"] = self._configured
        for name, value in given.items():
            check = check_path if name in paths else place
            for each in value if isinstance(value, list | tuple) else filter(None, [value]):
                try:
                    check(each)
                except ValueError as error:
                    raise UsageError(str(error), where=name) from None

    def _check_length(self, steps: int) -> None:
        """Raises ``UsageError`` for a profile of steps that a run of this length doesn't do."""
        if self.profiling and self.profiling.range.stop > steps:
            raise UsageError(
                f"profiling.steps {self.profiling.steps!r}: the run has {steps} steps",
                do="Give steps that it does",
            )

    def fit(self) -> ray.train.Result:
        """Train, and leave an attested model in ``<result.path>/model``.

        Raises:
            Stopped: The run was asked to stop, and has committed; it can be resumed.
            GovrayError: What was refused, or which rank failed and why.
        """
        return ray.train.Result.from_path(str(self.train(attest=True)))

    def signer(self) -> Signer:
        """The operator's key, from where ``attestation_key`` says.

        A variable that holds the key itself is out of the environment afterwards.
        """
        if self.unsigned:
            raise UsageError("the run was told to do without a key")
        password = self.attestation_key_password_file
        return operator_key.load(
            self.attestation_key,
            password=(lambda: read_password(Path(password))) if password else None,
        )

    def prepare(self) -> Prepared:
        """Steps 1 and 3 alone: admit and prepare the data, once for equal inputs.
        `govray.train.driver.preparation` does the same without this module's imports."""
        return self.share(instant()).prepared

    def share(self, at: datetime) -> Shared:
        """Steps 1 and 3 for several runs: verified at one time, prepared once.

        Args:
            at: Reference time: now, or when the first of the runs began.
        """
        self._check_metric()
        return self._preparation.share(at, cache(self.signer))

    def train(self, *, attest: bool = False) -> Place:
        """Steps 1 to 5: a trained run without an attestation. Returns the run's folder.

        Without step 6 it needs no key, if the data are prepared already.

        Args:
            attest: Do step 6 too.

        Raises:
            As `fit`.
        """
        if self.checkpoint_storage:
            storage.require_reachable(self.checkpoint_storage)
        self._check_metric()
        require_gpus(self.scaling_config)
        try:
            check_copies(self._workers, self.replicate)
        except ValueError as error:
            raise UsageError(str(error), where="scaling_config") from None
        record = read_record(place(self.resume)) if self.resume else None
        submission = self.shared.submission if self.shared else self.submission
        run_id = self._named or new_run_id("run")
        register = register_of(run_id)
        if self.resume and record:
            run_listing.refuse_other_submission(record, submission)
        if register is not None:
            # A search has made its trials' folders.
            there = not self.shared and (self._storage / run_id).exists()
            register.started(planted=record is not None or there)
        if self.resume and record and submission and (place(self.resume) / MODEL).is_dir():
            if register is not None:
                register.ended()
            return place(self.resume).resolve()  # its job was started once more
        # A search looks for its trials.
        alone = self.shared is None or self.shared.carried is not None
        if alone and not (record and record.finished):
            await_room(self.scaling_config, on_wait=self.on_wait)
        if record and self.shared:
            self.shared.refuse_changes(record)
        elif record:
            run_listing.refuse_changes(record, self._input_files, where=f"run {record.run_id}")
        # What a run began with was valid then; what has ended since, its steps find out.
        started = record.started if record else instant()
        key = cache(self.signer)
        signer = key() if attest else None  # what can't be signed isn't trained
        preparation = self._preparation
        if shared := self.shared:
            started, inputs = shared.at, shared.inputs
        else:
            inputs = preparation.inputs(started)
        if signer:
            inputs.check_operator(signer.public_key)
        policy = inputs.policy.document
        if self.framework == "jax":
            refuse_unbuilt(
                {
                    "pretrained": self.pretrained,
                    "profiling": self.profiling,
                    "validation.corpora": self.validation and self.validation.corpora,
                    f"memorization in the policy {policy.name} v{policy.version}": (
                        policy.memorization
                    ),
                }
            )
        config = dict(self.train_loop_config or {})
        by_data = self.max_steps == DATA
        if by_data and self.experiment:
            config["max_steps"] = 1  # any will do until the plan is made
        with cpu_platform() if self.framework == "jax" else nullcontext():
            found = discover(
                self.train_loop_per_worker,
                dict(config),  # which a loop may change
                policy.groups or {},
                where=f"entrypoint {self.experiment.entrypoint}" if self.experiment else None,
            )
        groups = found.groups
        self._require_framework(found)
        start = self._start(inputs, found, started)
        decisions, routes = routes_of(policy, inputs.classes, list(groups))
        prepared = shared.prepared if shared else preparation.data(inputs, started, key)
        if self.experiment:
            self.experiment.check_rows(prepared.manifest.rows)
        if shared:
            validation = shared.validation
        else:
            validation = preparation.validation(inputs, prepared, started, key)
        planned = make_plan(
            prepared.manifest,
            prepared.digest,
            decisions,
            routes,
            profiles=policy.profiles,
            quotas={
                label: quota if isinstance(quota, Quota) else Quota(rows=quota)
                for label, quota in self.rows_per_step.items()
            },
            epochs=self.epochs,
            exclude=self.exclude,
            seed=self.seed,
            max_steps=self.max_steps,
            mixture=self.mixture,
            order=record.plan.order if record else local_order(prepared.manifest.width - 1),
        )
        if by_data:
            self._check_length(planned.plan.max_steps)
            if self.experiment:
                config["max_steps"] = steps = planned.plan.max_steps
                optimizer = check_optimizer(self.experiment.optimizer)
                check_schedule(self.experiment.schedule, optimizer, steps)
        for each in advice(planned.plan):
            logging.getLogger(__name__).warning(each)
        self.on_size(self._size(found, planned))
        order = self._order(run_id, inputs, groups, prepared, planned, start, validation)
        made = RunRecord(
            run_id=order.run_id,
            started=started,
            finished=None,
            groups=groups,
            plan=planned.plan,
            policy=inputs.policy_bytes,
            root=inputs.root_bytes,
            manifest=prepared.envelope,
            credentials=inputs.credential_bytes,
            delegations=inputs.delegations,
            config=config,
            experiment=self.experiment,
            environment=environment_here(
                seed=self.seed,
                threads=self.threads,
                source=order.source,
                chosen=self.chosen_kernels,
            ),
            start=start,
            selection=self.shared.selection if self.shared else None,
            validation=recorded_validation(self.validation, validation),
            ema=self.ema,
            submission=submission,
            archive=None if submission and submission.archive else self.archive,
        )
        folder = place(order.folder)
        # A trial's process joined the cluster of its search.
        own = self.shared.alone if self.shared and not alone else begun_here()
        with hold(folder, alone=own) as driver, Told(self.callbacks) as told:
            storage.choose(folder, self.checkpoint_storage)
            if record:
                run_listing.refuse_other_run(record, made)
            elif (folder / "record" / "run.json").is_file():
                raise Driven(
                    "another job has begun the run meanwhile",
                    where=f"run {order.run_id}",
                    do="Start this job again: it goes on with the run, if that has no driver then",
                )
            else:
                record = made
                record.write(folder)
                if start:
                    pin_start(Path(start.folder), f"{order.run_id} starts from it")
            stop_request.clear(folder)
            if told:
                told.start(self._run_started(order, config))
            if not record.finished:
                with flag_told(register):
                    done = self._fit(replace(order, driver=driver), config, told)
                if register is not None:
                    register.finished()
                early = done if done < order.stop else None
                record.end(folder, instant(), ended=early)
                events.append(folder, events.Finished(at=now(), step=done))
            stop_request.clear(folder)
            if signer:
                write_model(folder, signer)
                events.append(folder, events.Attested(at=now()))
                told.attested(signed_files(folder))
        if register is not None:
            register.ended()
        return folder

    def _run_started(self, order: Order, config: Mapping[str, Any]) -> RunStarted:
        folder, file = place(order.folder), self.experiment
        commit = latest(folder)
        return RunStarted(
            run_id=order.run_id,
            folder=folder,
            experiment=file.name if file else order.run_id,
            step=commit[1] if commit else 0,
            settings=settings(file.model_dump(mode="json") if file else config),
            policy=order.policy_digest,
        )

    def _fit(self, order: Order, config: Mapping[str, Any], told: Told | None = None) -> int:
        """Train to the end; returns how many steps that was."""
        step = attempts.fit(
            order,
            self.train_loop_per_worker,
            config=config,
            scaling=self.scaling_config,
            run_config=self._ray_run_config(order.run_id),
            on_step=self.on_step,
            on_report=told.step if told else None,
        )
        if step < order.stop and not ended_early(place(order.folder), step):
            events.append(place(order.folder), events.Stopped(at=now(), step=step))
            raise Stopped(
                f"stopped at step {step} of {order.stop}, as requested",
                where=f"run {order.run_id}",
                do=f"Resume with `govray runs resume {quote(str(order.folder))}`",
            )
        return step

    def _check_metric(self) -> None:
        """Refuse a metric that govray's own loop does not report."""
        section = self.validation
        own = self.experiment and own_loop(self.experiment)
        if section is None or own or self.train_loop_per_worker is not train_loop:
            return
        known = (*section.names, *REPORTED)
        if section.metric_name not in known:
            known = tuple(name.removeprefix(f"{GROUP}/") for name in section.names) or REPORTED
            raise UsageError(
                f"nobody reports {section.metric!r}{suggestion(section.metric, known)}",
                where="validation.metric",
                do=f"Take one of {', '.join(known)}, or a training loop of your own that reports "
                "it",
            )

    def _require_framework(self, found: Discovered) -> None:
        """Compare what the loop calls with what the run was announced as."""
        if found.framework != self.framework:
            raise UsageError(
                f"the training loop calls the govern() of {found.framework}, and the run says "
                f"framework: {self.framework}",
                where=f"entrypoint {self.experiment.entrypoint}" if self.experiment else "loop",
                do=f"Write framework: {found.framework}, or call the other one",
            )

    def _size(self, found: Discovered, planned: Planned) -> ModelSize:
        # An elastic run holds most on a rank when there are fewest.
        fewest = self._workers if isinstance(self._workers, int) else min(self._workers)
        if self.precision == "bf16":
            cast_parameters(found.model)  # as the workers will; nobody trains this one
        return model_size(
            found.model,
            found.optimizer,
            found.groups,
            planned.plan,
            planned.stream_routes,
            shards=fewest // self.replicate if self.shards else 1,
            # Over JAX nobody looked which parameters are tables.
            text=self.rows != "images" and self.framework == "torch",
            averaged=self.ema is not None,
        )

    @property
    def _workers(self) -> int | tuple[int, int]:
        given: Any = self.scaling_config.num_workers if self.scaling_config else 1
        return given if isinstance(given, int) else (given[0], given[1])

    @property
    def _input_files(self) -> run_listing.InputFiles:
        return run_listing.InputFiles(
            corpora=place(self.corpora),
            policy=place(self.policy),
            trust_root=place(self.trust_root),
            delegations=tuple(place(path) for path in self.delegations),
        )

    @property
    def _preparation(self) -> Preparation:
        judged = self.validation.corpora if self.validation else None
        return Preparation(
            files=self._input_files,
            revocations=tuple(place(path) for path in self.revocations),
            storage=self._storage,
            tokenizer=self.tokenizer,
            rows=self.rows,
            context=self.context,
            reserve=self.reserve,
            reserve_by=self.reserve_by,
            canaries=self.canaries or {},
            exclude=self.exclude,
            max_quarantined=self.max_quarantined,
            held_out=None if judged is None else place(judged),
            resume=place(self.resume) if self.resume else None,
            submission=self.submission,
            progress=self.on_admission,
        )

    def _start(self, inputs: Inputs, found: Discovered, at: datetime) -> Start | None:
        """The existing weights that the run begins with, compared with the model they fill."""
        if self.shared and self.shared.carried:
            return self.shared.carried.start  # its commit holds what became of them
        declared = declared_start(self.experiment) if self.experiment else []
        if declared and self.pretrained is not None:
            raise UsageError(
                f"the model starts from {declared[0]} by its hyperparameters already",
                where=f"pretrained {self.pretrained}",
                do="Name the weights in one place",
            )
        files = declared if self.pretrained is None else find_weights(Path(self.pretrained))
        if not files:
            return None
        start = read_start(
            files,
            found.groups,
            trust_root=inputs.anchor,
            at=at,
            loaded_by_model=bool(declared),
        )
        if not start.loaded_by_model:
            check_fits(found.model, start)
        return start

    def _order(
        self,
        run_id: str,
        inputs: Inputs,
        groups: Mapping[str, tuple[str, ...]],
        prepared: Prepared,
        planned: Planned,
        start: Start | None,
        validation: ValidationData | None,
    ) -> Order:
        folder = self._storage / run_id
        make_folder(folder)
        read = [corpus for corpus in planned.routes if corpus not in self.exclude]
        settings, task = self.settings, None
        if section := self.validation:
            # What a run is judged by ends like what it trains on.
            if validation is not None:
                inputs = validation.joined(inputs)
                read += validation.corpora
            task = ValidationTask(
                section=section,
                prepared=str(validation.prepared.folder) if validation else None,
                manifest=validation.prepared.manifest if validation else None,
            )
            keep = replace(settings.keep, metric=section.metric_name, goal=section.better)
            settings = replace(settings, keep=keep)
        return Order(
            run_id=run_id,
            experiment=self.experiment.name if self.experiment else None,
            profiled=self.profiling.range if self.profiling else range(0),
            log_policies=tuple(self.log_policies),
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
            settings=settings,
            validation=task,
            reader=self.reader,
            key_variables=operator_key.variables(self.attestation_key),
            start=start,
            source=source_of(
                self.train_loop_per_worker,
                self.experiment.entrypoint if self.experiment else None,
            ),
            monitored=monitored(
                inputs.policy.document,
                {corpus: decision.rules for corpus, decision in planned.decisions.items()},
                planned.routes,
                list(groups),
                prepared.manifest,
                planned.plan.max_steps,
                self.exclude,
            ),
        )

    @property
    def _named(self) -> str | None:
        """The run's name; None if it is to be drawn."""
        if self.resume:
            return place(self.resume).resolve().name
        return self.run_config.name if self.run_config else None

    @property
    def _storage(self) -> Place:
        if self.resume:
            return place(self.resume).resolve().parent
        return place(self._configured or "runs").resolve()

    @property
    def _configured(self) -> str | Path | None:
        return self.run_config.storage_path if self.run_config else None

    def _ray_run_config(self, run_id: str) -> ray.train.RunConfig:
        given = self.run_config or ray.train.RunConfig()
        return replace(given, name=run_id, storage_path=str(self._storage))


def from_experiment(experiment: Experiment, **overrides: Any) -> GovernedTrainer:
    """The trainer that an experiment file describes.

    A new run of a ``submission`` is named after it, so that a submission can't have two.

    Raises:
        Refused: A governed step can't call its optimizer.
    """
    optimizer = check_optimizer(experiment.optimizer)
    check_schedule(experiment.schedule, optimizer, experiment.steps_in(1))
    tokenizer = words(experiment.data.tokenizer, experiment.data.rows)
    resolved = experiment.resolved(tokenizer.vocabulary, tokenizer.separator)
    resources, data, governance = experiment.resources, experiment.data, experiment.governance
    # Ray's annotations have the older class, which knows neither pairs nor labels.
    scaling: Any = ray.train.ScalingConfig
    submission: Submission | None = overrides.get("submission")
    trainer = GovernedTrainer(
        train_loop_per_worker=train_loop,
        train_loop_config=resolved.model_dump(mode="json", exclude=APART),
        corpora=data.corpora,
        policy=governance.policy,
        trust_root=governance.trust_root,
        delegations=governance.delegations,
        revocations=governance.revocations,
        max_steps=experiment.max_steps,
        rows_per_step=data.rows_per_step,
        context=experiment.context,
        tokenizer=data.tokenizer,
        reserve=data.reserve,
        reserve_by=data.reserve_by,
        exclude=data.exclude,
        canaries=data.canaries.by_corpus() if data.canaries else None,
        rows=data.rows,
        mixture=data.mixture,
        epochs=data.epochs,
        reader=data.reader,
        pretrained=experiment.pretrained,
        profiling=experiment.profiling,
        log_policies=experiment.log_policies,
        callbacks=chosen_callbacks(experiment),
        checkpoint_storage=experiment.checkpoint.storage,
        max_quarantined=governance.max_quarantined,
        attestation_key=experiment.attestation_key,
        attestation_key_password_file=experiment.attestation_key_password_file,
        scaling_config=scaling(
            num_workers=resources.num_workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker=resources.worker,
            label_selector=node_labels(resources.labels) or None,
        ),
        run_config=ray.train.RunConfig(
            name=submission.run_of(experiment.name) if submission else new_run_id(experiment.name),
            storage_path=str(place(experiment.storage_path).resolve()),
            failure_config=ray.train.FailureConfig(max_failures=experiment.max_restarts),
        ),
        validation=experiment.validation,
        experiment=experiment,
        **vars(run_settings(experiment)),
    )
    return replace(trainer, **overrides)


def new_or_unfinished(
    experiment: Experiment,
    *,
    new: bool = False,
    submission: Submission | None = None,
    **overrides: Any,
) -> GovernedTrainer:
    """What the command starts: the newest unfinished run of exactly this experiment, or a new one.

    Its ``resume`` tells which. The run that is found need not be the last word: if two commands
    find it at once, the second is refused. Of a submission it is the submission's own run.
    """
    if new and submission:
        raise UsageError(
            "a submission is one run, so its job starts no new one",
            where=f"submission {submission.id}",
            do="Leave --new out, or submit the experiment again",
        )
    resume = None if new else run_listing.find_unfinished(experiment, submission)
    return from_experiment(experiment, resume=resume, submission=submission, **overrides)


def new_run_id(name: str) -> str:
    """A name with the time and four random bytes: Ray resumes a run by equal names."""
    return f"{name}-{instant():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
