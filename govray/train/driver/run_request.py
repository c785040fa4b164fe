"""What the start of a governed run says beside its experiment, and what follows from both.

Nothing is read here but the operator's key, when somebody asks for it, and a tokenizer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import ray.train

from govray.errors import UsageError, suggestion
from govray.governance.formats.keys import Signer, read_password
from govray.governance.submission.code_archive import check_digest
from govray.governance.submission.pool_labels import node_labels
from govray.governance.submission.submission import Submission
from govray.storage.place import Place, place
from govray.train.driver.preparation import Preparation, words
from govray.train.driver.progress import StepCallback
from govray.train.experiment.sections import GROUP
from govray.train.inputs import operator_key
from govray.train.inputs.experiment_config import APART, DATA, Experiment, StepCount
from govray.train.inputs.shared_inputs import Shared
from govray.train.loop.described_optimizer import check_optimizer
from govray.train.loop.described_schedule import check_schedule
from govray.train.loop.entrypoint import own_loop
from govray.train.loop.experiment_loop import REPORTED, train_loop
from govray.train.loop.until_govern import Loop
from govray.train.run_folder.clock import instant
from govray.train.watching.model_size import ModelSize
from govray.train.watching.run_callback import RunCallback

Admission = Callable[[int, int], None]
"""Called with (records done, records in all) while data is admitted and packed."""


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked for.

    Args:
        experiment: What the run is, as its file says it (`govray.train.read_experiment`).
        train_loop_per_worker: A script's own loop, in the place of the experiment's entrypoint. It
            calls `govray.train.govern` once, then loops over its `Run`. The record then has no
            experiment, and the run can't be replayed from its folder.
        train_loop_config: What the loop gets; the experiment as JSON by default.
        scaling_config, run_config: As for `TorchTrainer`, in the place of the experiment's
            resources, and of its name, storage path and restarts.
        max_steps: Steps to plan, if the run is to end before its schedule.
        commit_at: Further numbers of steps done at which a commit is due.
        unsigned: No key is loaded: the data must be prepared, and others attest.
        callbacks: Told of the run on the driver, beside the experiment's; see `RunCallback`.
        on_admission, on_step: Called on the driver as work proceeds.
        on_size: Called on the driver with the run's size, before workers start.
        on_wait: Called on the driver with a line that says for what room the run waits.
        resume: Folder of a run to go on with, instead of a new one. Everything that it rests on
            must be as it was when it began.
        other_code: The run that goes on may do so under other code of govray, model or loop.
        submission: Who submitted the run. A new run is named after it, so that a submission can't
            have two. It is resumed for the same submission alone, and one that is attested
            already is left as it is.
        archive: Digest of the archived working directory, if no submission states it.
        shared: What other runs verified and prepared already; then corpora, policy and trust root
            are not read.

    Raises:
        Refused: A governed step can't call the experiment's optimizer.
        UsageError: What the experiment chooses can't be joined, or is not to be reached.
    """

    experiment: Experiment
    _: KW_ONLY
    train_loop_per_worker: Loop = train_loop
    train_loop_config: Mapping[str, Any] | None = None
    scaling_config: ray.train.ScalingConfig | None = None
    run_config: ray.train.RunConfig | None = None
    max_steps: int | None = None
    commit_at: Collection[int] = ()
    unsigned: bool = False
    callbacks: Sequence[RunCallback] = ()
    on_admission: Admission = lambda done, total: None
    on_step: StepCallback = lambda step, metrics: None
    on_size: Callable[[ModelSize], None] = lambda size: None
    on_wait: Callable[[str], None] = lambda line: None
    resume: str | Place | None = None
    other_code: bool = False
    submission: Submission | None = None
    archive: str | None = None
    shared: Shared | None = None

    def __post_init__(self) -> None:
        experiment = self.experiment
        _ = experiment.settings  # refused where they can't be joined
        optimizer = check_optimizer(experiment.optimizer)
        check_schedule(experiment.schedule, optimizer, experiment.steps_in(1))
        if self.archive is not None:
            check_digest(self.archive)
        if self.length != DATA:
            self.check_length(self.length)
        given = self.run_config and self.run_config.storage_path
        for name, value in (("resume", self.resume), ("run_config.storage_path", given)):
            try:
                place(value or "")
            except ValueError as error:
                raise UsageError(str(error), where=name) from None

    @property
    def length(self) -> StepCount:
        """Steps to plan, or ``"data"``."""
        return self.max_steps or self.experiment.max_steps

    def check_length(self, steps: int) -> None:
        """Raises ``UsageError`` for a profile of steps that a run of this length doesn't do."""
        profiling = self.experiment.profiling
        if profiling and profiling.range.stop > steps:
            raise UsageError(
                f"profiling.steps {profiling.steps!r}: the run has {steps} steps",
                do="Give steps that it does",
            )

    def signer(self) -> Signer:
        """The operator's key, from where ``attestation_key`` says.

        A variable that holds the key itself is out of the environment afterwards.
        """
        if self.unsigned:
            raise UsageError("the run was told to do without a key")
        password = self.experiment.attestation_key_password_file
        return operator_key.load(
            self.experiment.attestation_key,
            password=(lambda: read_password(Path(password))) if password else None,
        )

    def check_metric(self) -> None:
        """Refuse a metric that govray's own loop does not report."""
        section, file = self.experiment.validation, self.file
        if section is None or file is None or own_loop(file):
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

    @property
    def file(self) -> Experiment | None:
        """The experiment, if it says all of the run; None if a script has a loop of its own."""
        return self.experiment if self.train_loop_per_worker is train_loop else None

    @property
    def where(self) -> str | None:
        """What errors call an experiment's loop."""
        return f"entrypoint {self.file.entrypoint}" if self.file else None

    @cached_property
    def loop_config(self) -> Mapping[str, Any]:
        """What the loop gets."""
        if self.train_loop_config is not None:
            return self.train_loop_config
        tokenizer = words(self.experiment.data)
        resolved = self.experiment.resolved(tokenizer.vocabulary, tokenizer.separator)
        return resolved.model_dump(mode="json", exclude=APART)

    @property
    def scaling(self) -> ray.train.ScalingConfig:
        """What Ray reserves for the workers."""
        if self.scaling_config is not None:
            return self.scaling_config
        # Ray's annotations have the older class, which knows neither pairs nor labels.
        scaling: Any = ray.train.ScalingConfig
        resources = self.experiment.resources
        made: ray.train.ScalingConfig = scaling(
            num_workers=resources.num_workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker=resources.worker,
            placement_strategy=resources.placement.upper(),
            label_selector=node_labels(resources.labels) or None,
        )
        return made

    @property
    def workers(self) -> int | tuple[int, int]:
        given: Any = self.scaling.num_workers
        return given if isinstance(given, int) else (given[0], given[1])

    @property
    def preparation(self) -> Preparation:
        return Preparation(
            experiment=self.experiment,
            storage=self.storage_place,
            resume=place(self.resume) if self.resume else None,
            submission=self.submission,
            progress=self.on_admission,
        )

    @cached_property
    def run_id(self) -> str:
        """The run's name, drawn if nobody gives one."""
        if self.resume:
            return place(self.resume).resolve().name
        if self.run_config and self.run_config.name:
            return self.run_config.name
        name = self.experiment.name
        return self.submission.run_of(name) if self.submission else new_run_id(name)

    @property
    def storage_place(self) -> Place:
        if self.resume:
            return place(self.resume).resolve().parent
        given = self.run_config and self.run_config.storage_path
        return place(given or self.experiment.storage_path).resolve()

    def ray_run_config(self, run_id: str) -> ray.train.RunConfig:
        given = self.run_config or ray.train.RunConfig(
            failure_config=ray.train.FailureConfig(max_failures=self.experiment.max_restarts)
        )
        return replace(given, name=run_id, storage_path=str(self.storage_place))


def new_run_id(name: str) -> str:
    """A name with the time and four random bytes: Ray resumes a run by equal names."""
    return f"{name}-{instant():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
