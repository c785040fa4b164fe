"""What a governed run is asked for: the arguments of `GovernedTrainer`, and what follows from them.

Nothing is read here but the operator's key, when somebody asks for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train

from govray.errors import UsageError, suggestion
from govray.governance.formats.keys import Signer, read_password
from govray.governance.formats.row_schema import RowKind
from govray.governance.record.canary import Canaries
from govray.governance.submission.code_archive import check_digest
from govray.governance.submission.submission import Submission
from govray.storage.place import Place, place
from govray.storage.storage_url import check_path
from govray.train.driver.preparation import Preparation
from govray.train.driver.progress import StepCallback
from govray.train.experiment.sections import GROUP, LogPolicy, Profiling, Validation
from govray.train.inputs import operator_key, run_listing
from govray.train.inputs.experiment_config import (
    DATA,
    Experiment,
    Quota,
    Reader,
    ReserveBy,
    StepCount,
)
from govray.train.inputs.run_settings import RunSettings
from govray.train.inputs.shared_inputs import Shared
from govray.train.loop.entrypoint import own_loop
from govray.train.loop.experiment_loop import REPORTED, train_loop
from govray.train.loop.until_govern import Loop
from govray.train.run_folder.clock import instant
from govray.train.watching.model_size import ModelSize
from govray.train.watching.run_callback import RunCallback

Admission = Callable[[int, int], None]
"""Called with (records done, records in all) while data is admitted and packed."""


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunSettings):
    """What a run is asked for.

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
        reserve_by: ``"family"``: near copies, in whatever corpus, lie on one side; or ``"record"``.
        exclude: Corpora left out, as tombstones of the plan.
        canaries: What to plant in which corpora, for `govray runs audit`.
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
        pretrained_optimizer: The run whose attested model ``pretrained`` is, or its last commit:
            its optimizer's moments are taken over, and nothing else of it.
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
        other_code: The run that goes on may do so under other code of govray, model or loop.
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
    reserve_by: ReserveBy = "family"
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
    pretrained_optimizer: str | Path | None = None
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
    other_code: bool = False
    submission: Submission | None = None
    archive: str | None = None
    shared: Shared | None = None

    def __post_init__(self) -> None:
        """Refuse settings out of range, and a URL where a path is read or written."""
        super().__post_init__()
        if self.archive is not None:
            check_digest(self.archive)
        if self.max_steps != DATA:
            self.check_length(self.max_steps)
        paths = (
            "tokenizer",
            "pretrained",
            "pretrained_optimizer",
            "attestation_key_password_file",
        )
        places = ("corpora", "policy", "trust_root", "delegations", "revocations", "resume")
        given = {name: getattr(self, name) for name in (*paths, *places)}
        given["run_config.storage_path"] = self.configured
        for name, value in given.items():
            check = check_path if name in paths else place
            for each in value if isinstance(value, list | tuple) else filter(None, [value]):
                try:
                    check(each)
                except ValueError as error:
                    raise UsageError(str(error), where=name) from None

    def check_length(self, steps: int) -> None:
        """Raises ``UsageError`` for a profile of steps that a run of this length doesn't do."""
        if self.profiling and self.profiling.range.stop > steps:
            raise UsageError(
                f"profiling.steps {self.profiling.steps!r}: the run has {steps} steps",
                do="Give steps that it does",
            )

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

    def check_metric(self) -> None:
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

    @property
    def workers(self) -> int | tuple[int, int]:
        given: Any = self.scaling_config.num_workers if self.scaling_config else 1
        return given if isinstance(given, int) else (given[0], given[1])

    @property
    def input_files(self) -> run_listing.InputFiles:
        return run_listing.InputFiles(
            corpora=place(self.corpora),
            policy=place(self.policy),
            trust_root=place(self.trust_root),
            delegations=tuple(place(path) for path in self.delegations),
        )

    @property
    def preparation(self) -> Preparation:
        judged = self.validation.corpora if self.validation else None
        return Preparation(
            files=self.input_files,
            revocations=tuple(place(path) for path in self.revocations),
            storage=self.storage_place,
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

    @property
    def named(self) -> str | None:
        """The run's name; None if it is to be drawn."""
        if self.resume:
            return place(self.resume).resolve().name
        return self.run_config.name if self.run_config else None

    @property
    def storage_place(self) -> Place:
        if self.resume:
            return place(self.resume).resolve().parent
        return place(self.configured or "runs").resolve()

    @property
    def configured(self) -> str | Path | None:
        return self.run_config.storage_path if self.run_config else None

    def ray_run_config(self, run_id: str) -> ray.train.RunConfig:
        given = self.run_config or ray.train.RunConfig()
        return replace(given, name=run_id, storage_path=str(self.storage_place))


def new_run_id(name: str) -> str:
    """A name with the time and four random bytes: Ray resumes a run by equal names."""
    return f"{name}-{instant():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
