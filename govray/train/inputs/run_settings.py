"""What a user chooses about a run and its workers need: declared here, and nowhere else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from govray.engine.collective.step_settings import SHARDING, StepSettings
from govray.errors import UsageError
from govray.train.checkpoint.retention import DEFAULT, Rules
from govray.train.experiment.sections import USUAL_STEPS, Ema
from govray.train.inputs.experiment_config import Experiment


@dataclass(frozen=True, kw_only=True)
class RunSettings(StepSettings):
    """How a run's workers train and commit; `GovernedTrainer` takes each as an argument.

    Args:
        framework, seed, clip_norm, max_rows, aggregator, precision, activation_checkpointing,
            compile, cuda_graphs, norms_every, collective_timeout_s: See `StepSettings`.
        checkpoint_every: Steps between commits, or None; the last step always commits.
        checkpoint_minutes: Minutes between commits, by the clock of rank 0; ranks agree on each.
        commit_at: Further numbers of steps done at which a commit is due.
        keep: Which commits stay.
        ema: How the base model's weights are averaged; None for not at all.
        replicate: Copies of a model that ranks share, where the aggregator shards.
        threads: Threads of one worker's kernels; part of bit reproducibility.
        deterministic: Whether workers use only kernels that give equal bits for equal inputs, and
            an operator without one is an error.

    Raises:
        UsageError: As `StepSettings`, or copies are asked for of a model that is not shared.
    """

    checkpoint_every: int | None = USUAL_STEPS
    checkpoint_minutes: float | None = None
    commit_at: Collection[int] = ()
    keep: Rules = DEFAULT
    ema: Ema | None = None
    replicate: int = 1
    threads: int = 1
    deterministic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.framework == "jax":
            self._refuse_torchs(("ema", "deterministic"))
        if self.replicate < 1 or (self.replicate > 1 and not self.shards):
            raise UsageError(
                f"replicate is {self.replicate} with aggregator {self.aggregator}",
                do=f"Give aggregator {SHARDING} and a number from 1, or leave replicate out",
            )

    @property
    def settings(self) -> RunSettings:
        """These alone, without what a class that takes them too has besides."""
        return RunSettings(**{each.name: getattr(self, each.name) for each in fields(RunSettings)})

    @property
    def chosen_kernels(self) -> dict[str, str]:
        """What an attestation states of these: all that decide which kernels run, but defaults."""
        precision = {} if self.precision == "fp32" else {"run.precision": self.precision}
        framework = {} if self.framework == "torch" else {"run.framework": self.framework}
        switched = {
            "deterministic": self.deterministic,
            "compile": self.compile,
            "cuda_graphs": self.cuda_graphs,
        }
        return framework | precision | {f"run.{name}": "on" for name, on in switched.items() if on}


def run_settings(experiment: Experiment) -> RunSettings:
    """Those of an experiment file."""
    return RunSettings(
        framework=experiment.framework,
        seed=experiment.seed,
        clip_norm=experiment.optimizer.clip_norm,
        max_rows=experiment.max_rows,
        aggregator=experiment.aggregator,
        precision=experiment.precision,
        deterministic=experiment.deterministic,
        activation_checkpointing=experiment.activation_checkpointing,
        compile=experiment.compile,
        cuda_graphs=experiment.cuda_graphs,
        collective_timeout_s=experiment.collective_timeout_s,
        checkpoint_every=experiment.commit_steps,
        checkpoint_minutes=experiment.checkpoint.every_minutes,
        keep=Rules(
            best=experiment.checkpoint.save_trial_best,
            latest=experiment.checkpoint.save_trial_latest,
        ),
        ema=experiment.ema,
        replicate=experiment.sharding.replicate if experiment.sharding else 1,
        threads=max(1, int(experiment.resources.cpus_per_worker)),
    )
