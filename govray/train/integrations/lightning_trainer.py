"""An existing Lightning script, governed: a callback and a strategy.

    trainer = L.Trainer(strategy=GovernStrategy(), plugins=[RayLightningEnvironment()],
                        callbacks=[GovernCallback(module)], enable_checkpointing=False)
    trainer.fit(module)

The callback takes over two methods of the module, ``training_step`` and ``train_dataloader``, and
makes its optimization manual. The driver asks for the model's layer groups on the meta device
before any `Trainer` exists. Constructing the callback answers it. The strategy is Ray's, without
DDP around the module.

Invariants:

* One epoch is the plan. Lightning counts a step for each step of the plan.
* A scheduler with ``interval: "step"`` steps once a step, from the plan's step 0 on. Adapters join
  the optimizer later, and follow its first group's rate.
* Autocast (``bf16-mixed``) is Lightning's, over the forward pass.
* What would act on gradients, batches or weights beside the step is refused.

There are no checkpoints of the host, since they hold no governance state.

Source: lightning 2.6, `Trainer` and `DDPStrategy`; `ray.train.lightning`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from ray.train.lightning import RayDDPStrategy, RayTrainReportCallback
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from govray.engine.batch import StepBatch
from govray.engine.gradients.forward import LossFn
from govray.errors import Refused, UsageError
from govray.train.integrations.host_loop import (
    PlannedBatches,
    govern_hosted,
    replay_schedule,
    require_same,
)
from govray.train.worker.run import Run
from govray.train.worker.run_start import assignment_for


class GovernStrategy(RayDDPStrategy):
    """Ray's strategy, without DDP: `run.step` reduces gradients, by domain."""

    def setup_environment(self) -> None:
        """Refuse an accelerator of another kind than the worker's device, and begin."""
        worker = self.root_device
        if isinstance(self.accelerator, CPUAccelerator) != (worker.type == "cpu"):
            chosen = self.accelerator.name() if self.accelerator else "none"
            raise Refused(
                f"accelerator {chosen!r} computes elsewhere than this worker, with its batches, "
                f"on {worker}",
                where="lightning.Trainer",
                do="Give accelerator='auto'; a GPU for each worker is ScalingConfig(use_gpu=True)",
            )
        super().setup_environment()

    def configure_ddp(self) -> None:
        """Leave the module as it is."""


class GovernCallback(Callback):
    """Trains a module by the governed step, in Lightning's loop.

    Args:
        module: The module that ``fit`` gets.
        loss_fn: ``(module, batch) -> (rows, tokens)`` losses, unreduced. If None, the module's own
            ``training_step(batch, batch_idx)`` returns them. ``batch`` holds ``tokens`` and
            ``targets``.

    Raises:
        UsageError: Made outside a training loop that `GovernedTrainer` started.
    """

    def __init__(self, module: LightningModule, loss_fn: LossFn | None = None) -> None:
        self._order = assignment_for(module).order
        self._module = module
        self._batch_idx = 0
        # Here it returns losses, whatever Lightning's annotation allows.
        own_step: Callable[..., Any] = module.training_step
        self._loss_fn = loss_fn or (lambda _, batch: own_step(batch, self._batch_idx))
        self._run: Run | None = None
        # Lightning looks its hooks up on the module, and has no other way to exchange them.
        module.training_step = self._training_step  # type: ignore[method-assign]
        module.train_dataloader = self._train_dataloader  # type: ignore[method-assign]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a set-up that would act beside the governed step."""
        if stage != "fit":
            return
        if pl_module is not self._module or self._run is not None:
            raise UsageError(
                "fit() was given another module than the GovernCallback, or called again",
                where="trainer.fit()",
                do="Make one callback, trainer and module for a run",
            )
        refuse_settings(trainer)
        steps, clip_norm = self._order.plan.max_steps, self._order.settings.clip_norm
        require_plan(trainer, max_steps=steps, clip_norm=clip_norm)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the module and its optimizer under the policy."""
        if len(trainer.optimizers) != 1:
            raise Refused(
                f"configure_optimizers gave {len(trainer.optimizers)} optimizers",
                where=type(pl_module).__name__,
                do="A governed step takes one; give it several groups of parameters",
            )
        for config in trainer.lr_scheduler_configs:
            _require_every_step(config)
        pl_module.automatic_optimization = False
        optimizer = trainer.optimizers[0]
        self._own_groups = len(optimizer.param_groups)
        self._run = govern_hosted(pl_module, optimizer)
        replay_schedule(self._step_schedules, self._run)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to train on a part of the plan, or on other data."""
        planned = self._order.plan.max_steps
        if trainer.num_training_batches != planned:
            raise Refused(
                f"Lightning would train on {trainer.num_training_batches} batches, "
                f"the plan has {planned}",
                where="trainer.fit()",
                do="Give fit() no train_dataloaders, and leave limit_train_batches and "
                "fast_dev_run out",
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The plan is one epoch."""
        trainer.should_stop = True

    @property
    def _governed_run(self) -> Run:
        assert self._run is not None  # on_fit_start set it
        return self._run

    def _train_dataloader(self) -> PlannedBatches:
        return _HeldBatches(self._governed_run)

    def _training_step(self, held: Any, batch_idx: int) -> None:
        if not isinstance(held, _Batch):
            raise Refused(
                "the batch comes from another loader than the run's",
                where="trainer.fit()",
                do="Give fit() no train_dataloaders: training data are the credentialed corpora",
            )
        module, run = self._module, self._governed_run
        self._batch_idx = batch_idx
        # Lightning's autocast spans this method and so backward, but it belongs to the forward
        # pass.
        with torch.autocast(module.device.type, enabled=False):
            metrics = run.step(held.batch, self._losses)
        # No gradient is left: Lightning only counts a step. There is one optimizer.
        module.optimizers().step()  # type: ignore[union-attr]
        self._step_schedules()
        run.report(metrics)
        module.log("loss", metrics.pop("loss"), prog_bar=True)
        module.log_dict(metrics)

    def _losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        with self._module.trainer.precision_plugin.train_step_context():
            return self._loss_fn(model, batch)

    def _step_schedules(self) -> None:
        # A schedule refuses an optimizer with new parameter groups.
        optimizer = self._module.trainer.optimizers[0]
        groups = optimizer.param_groups
        optimizer.param_groups = groups[: self._own_groups]
        try:
            for config in self._module.trainer.lr_scheduler_configs:
                config.scheduler.step()  # type: ignore[call-arg]  # not one that needs a metric
        finally:
            optimizer.param_groups = groups
        for adapter in groups[self._own_groups :]:
            adapter["lr"] = groups[0]["lr"]


def refuse_settings(trainer: Trainer) -> None:
    """Refuse what would act on gradients, batches or weights beside the governed step."""
    for present, what, do in (
        (
            not isinstance(trainer.strategy, GovernStrategy),
            f"strategy {type(trainer.strategy).__name__}",
            "Give strategy=GovernStrategy()",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}",
            "Write max_rows into the experiment: a larger slice accumulates within its step",
        ),
        (
            trainer.precision in ("16-mixed", "16-true"),
            f"precision={trainer.precision}",
            "A loss scale is shared by all domains, so one would act on another. Use bf16-mixed",
        ),
        (
            trainer.checkpoint_callbacks,
            "checkpoints of its own",
            "The run commits them. Give enable_checkpointing=False",
        ),
        (
            trainer.ckpt_path,
            f"ckpt_path={trainer.ckpt_path}",
            "Leave it out: the run resumes from its own commits",
        ),
        (
            any(isinstance(c, RayTrainReportCallback) for c in trainer.callbacks),  # type: ignore[attr-defined]
            "a RayTrainReportCallback",
            "GovernCallback takes its place",
        ),
    ):
        if present:
            raise Refused(
                f"{what} would act beside the governed step", where="lightning.Trainer", do=do
            )


def require_plan(trainer: Trainer, *, max_steps: int, clip_norm: float | None) -> None:
    """Refuse a length or a clipping other than the run's, if the script sets one.

    ``max_epochs`` is ignored.
    """
    if trainer.max_steps != -1:
        require_same("max_steps", trainer.max_steps, "max_steps", max_steps)
    if trainer.gradient_clip_val:
        require_same(
            "gradient_clip_val", trainer.gradient_clip_val, "optimizer.clip_norm", clip_norm
        )
    if trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm") != "norm":
        raise Refused(
            f"gradient_clip_algorithm={trainer.gradient_clip_algorithm}",
            where="lightning.Trainer",
            do="The run clips by norm, each domain by its own; leave it out",
        )


def _require_every_step(config: Any) -> None:
    """A learning rate depends on the plan step alone."""
    if (
        config.interval != "step"
        or config.frequency != 1
        or not isinstance(config.scheduler, LRScheduler)
        or config.reduce_on_plateau
    ):
        raise Refused(
            f"the learning rate follows {type(config.scheduler).__name__} every "
            f"{config.frequency} {config.interval}",
            where="configure_optimizers",
            do='Return {"scheduler": ..., "interval": "step"}, and no schedule that reads a metric',
        )


class _Batch:
    """A batch that Lightning passes on unchanged. It would take a dataclass apart."""

    def __init__(self, batch: StepBatch) -> None:
        self.batch = batch


class _HeldBatches(PlannedBatches):
    """The run's batches, held."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield _Batch(batch)
