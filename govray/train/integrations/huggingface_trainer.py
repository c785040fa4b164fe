"""An existing Hugging Face `Trainer`, governed: a callback and one call.

    trainer = Trainer(model=model, args=args, callbacks=[GovernCallback(model)])
    trainer = govern_trainer(trainer)
    trainer.train()

`GovernCallback` comes first, because no `Trainer` can be built on the meta device. When the driver
asks there for the model's layer groups, the callback answers and ends that call. `govern_trainer`
then gives the trainer the run's batches and its step. Its form is that of Ray's
``prepare_trainer``.

Invariants:

* The model is wrapped in nothing: neither DDP nor DataParallel. Autocast (``bf16``)
  is the host's, over the forward pass.
* The host's scheduler steps once a step, from the plan's step 0 on.
* What would act on gradients, batches or weights beside the step is refused.

There are no checkpoints of the host, since they hold no governance state. The log has no gradient
norms, since the host sees no gradient.

Source: `Trainer` of transformers 5. The methods overridden here are public, except
``_init_training_state``, which sets the step that a resumed run starts from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from ray.train.huggingface.transformers import RayTrainReportCallback
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from govray.engine.batch import StepBatch
from govray.engine.gradients.forward import LossFn
from govray.errors import Refused, UsageError
from govray.train.integrations.host_loop import (
    PlannedBatches,
    govern_hosted,
    replay_schedule,
    require_device,
    require_same,
)
from govray.train.worker.run import Run
from govray.train.worker.run_start import assignment_for

_METRIC_SCHEDULES = ("reduce_lr_on_plateau", "greedy")


def causal_lm_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of a causal language model, (rows, tokens), unreduced."""
    logits = model(input_ids=batch["tokens"]).logits
    return F.cross_entropy(logits.transpose(1, 2), batch["targets"], reduction="none")


class GovernCallback(TrainerCallback):
    """Commits and reports after each step of a trainer that `govern_trainer` has governed.

    Args:
        model: The model that the trainer gets.
        loss_fn: ``(model, batch) -> (rows, tokens)`` losses, unreduced; that of a
            causal language model if None. ``batch`` holds ``tokens`` and ``targets``.

    Raises:
        UsageError: Made outside a training loop that `GovernedTrainer` started.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn | None = None) -> None:
        assignment = assignment_for(model)
        self.order, self.device = assignment.order, assignment.device
        self.model = model
        self.loss_fn = loss_fn
        self.run: Run | None = None
        self.metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to train a trainer that is not governed."""
        if self.run is None:
            raise UsageError(
                "the trainer has a GovernCallback but is not governed",
                where="trainer.train()",
                do="Call govern_trainer(trainer) before it",
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the step's metrics to Ray Train, and commit a checkpoint when one is due."""
        if self.run is not None:
            self.run.report(self.metrics)


def govern_trainer(trainer: Trainer) -> Trainer:
    """Put a trainer's model and optimizer under the run's depth policy.

    Args:
        trainer: With one `GovernCallback` among its callbacks, and no training data:
            that comes from the credentialed corpora.

    Returns:
        The same trainer. Its ``train`` runs the steps of the plan that remain.

    Raises:
        UsageError: It has no `GovernCallback`, or one for another model.
        Refused: A setting would act beside the governed step, or `govern` refuses.
    """
    callback = _callback_of(trainer)
    refuse_settings(trainer.args)
    require_device(
        "TrainingArguments",
        trainer.args.device,
        callback.device,
        "Leave use_cpu and ACCELERATE_TORCH_DEVICE out; a GPU for each worker is "
        "ScalingConfig(use_gpu=True)",
    )
    _refuse_parts(trainer, callback)
    steps = callback.order.plan.max_steps
    require_plan(trainer.args, max_steps=steps, clip_norm=callback.order.settings.clip_norm)
    trainer.args.max_steps = steps
    assert trainer.model is not None  # _callback_of compared it with the callback's
    callback.run = govern_hosted(trainer.model, trainer.create_optimizer())
    # Prepared as if for evaluation, the model gets autocast but no DDP around it.
    trainer.accelerator.prepare_model = partial(
        trainer.accelerator.prepare_model, evaluation_mode=True
    )
    kind = type(trainer)
    trainer.__class__ = type(kind.__name__, (_Governed, kind), {"governing": callback})
    return trainer


def refuse_settings(args: TrainingArguments) -> None:
    """Refuse what would act on gradients, batches or weights beside the governed step."""
    leave_out = "Leave it out"
    for name, harmless, do in (
        (
            "gradient_accumulation_steps",
            (1,),
            "Write max_rows into the experiment: a larger slice accumulates within its step",
        ),
        (
            "fp16",
            (False,),
            "A loss scale is shared by all domains, so one would act on another. Use bf16=True",
        ),
        ("save_strategy", (SaveStrategy.NO,), "The run commits its own. Give save_strategy='no'"),
        ("deepspeed", (None,), leave_out),
        ("fsdp", (None, False, "", []), leave_out),
        ("torch_compile", (False, None), leave_out),
        ("auto_find_batch_size", (False,), "Write max_rows into the experiment"),
        ("neftune_noise_alpha", (None,), leave_out),
        ("label_smoothing_factor", (0, 0.0), "Smooth in loss_fn"),
        ("include_num_input_tokens_seen", ("no", False), "The ledger counts them"),
        (
            "lr_scheduler_type",
            tuple(t for t in [args.lr_scheduler_type] if t not in _METRIC_SCHEDULES),
            "A learning rate depends on the plan step alone. Use a schedule that does",
        ),
    ):
        value = getattr(args, name)
        if value not in harmless:
            raise Refused(
                f"{name}={value} would act beside the governed step",
                where="TrainingArguments",
                do=do,
            )
    if args.n_gpu > 1:
        raise Refused(
            f"one worker sees {args.n_gpu} GPUs",
            where="TrainingArguments",
            do="Give each worker one: ScalingConfig(use_gpu=True)",
        )


def require_plan(args: TrainingArguments, *, max_steps: int, clip_norm: float | None) -> None:
    """Refuse a length or a clipping other than the run's, if the script sets one.

    ``max_grad_norm`` defaults to 1.0, as ``clip_norm`` does; 0 means no clipping by the host.
    ``num_train_epochs`` is ignored.
    """
    if args.max_steps > 0:
        require_same("max_steps", args.max_steps, "max_steps", max_steps)
    if args.max_grad_norm:
        require_same("max_grad_norm", args.max_grad_norm, "optimizer.clip_norm", clip_norm)


def _callback_of(trainer: Trainer) -> GovernCallback:
    found = [c for c in trainer.callback_handler.callbacks if isinstance(c, GovernCallback)]
    if len(found) != 1:
        raise UsageError(
            f"the trainer has {len(found)} callbacks of kind GovernCallback, not one",
            where="govern_trainer()",
            do="Build it with callbacks=[GovernCallback(model, loss_fn)]",
        )
    if found[0].model is not trainer.model:
        raise UsageError(
            "the GovernCallback was made for another model than the trainer's",
            where="govern_trainer()",
            do="Give both the same model; model_init can't be governed",
        )
    return found[0]


def _refuse_parts(trainer: Trainer, callback: GovernCallback) -> None:
    kind = type(trainer)
    own_loss = trainer.compute_loss_func or kind.compute_loss is not Trainer.compute_loss
    reports = [
        c for c in trainer.callback_handler.callbacks if isinstance(c, RayTrainReportCallback)
    ]
    for present, what, do in (
        (trainer.train_dataset, "train_dataset", "Training data are the credentialed corpora"),
        (trainer.model_init, "model_init", "Build the model, and give it to both"),
        (
            trainer.lr_scheduler,
            "a scheduler made before the adapters joined the optimizer",
            "Name it by lr_scheduler_type and lr_scheduler_kwargs",
        ),
        (
            own_loss and callback.loss_fn is None,
            "a loss of its own, which training would not use",
            "Give it, unreduced, as GovernCallback(model, loss_fn)",
        ),
        (
            kind.training_step is not Trainer.training_step,
            "a training_step of its own, which would not run",
            "Do it in loss_fn",
        ),
        (reports, "a RayTrainReportCallback", "GovernCallback takes its place"),
    ):
        if present:
            raise Refused(f"the trainer has {what}", where=kind.__name__, do=do)


class _Governed(Trainer):
    """The trainer's new class: its own loop, with the batches and step of the run."""

    governing: GovernCallback

    @property
    def _governed_run(self) -> Run:
        assert self.governing.run is not None  # govern_trainer set it
        return self.governing.run

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Run the remaining steps of the plan."""
        if resume_from_checkpoint or trial is not None:
            raise Refused(
                "train() was given a checkpoint or a trial of the host's",
                where="trainer.train()",
                do="Leave it out: the run resumes from its own commits",
            )
        return super().train(ignore_keys_for_eval=ignore_keys_for_eval)

    def get_train_dataloader(self) -> Any:
        return PlannedBatches(self._governed_run)

    def get_batch_samples(
        self, epoch_iterator: Iterator[StepBatch], num_batches: int, device: torch.device
    ) -> tuple[list[StepBatch], None]:
        # No item count: the governed step divides, by layer group.
        return list(islice(epoch_iterator, num_batches)), None

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        assert self.model is not None  # govern_trainer took it
        self.model.train()
        self.governing.metrics = self._governed_run.step(
            inputs, self.governing.loss_fn or causal_lm_loss
        )
        return torch.tensor(self.governing.metrics["loss"], device=self.args.device)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        scheduler = super().create_scheduler(*args, **kwargs)
        replay_schedule(scheduler.step, self._governed_run)
        return scheduler

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        # The host would measure gradients that are already gone.
        super().log({k: v for k, v in logs.items() if k != "grad_norm"}, *args, **kwargs)

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        begun = super()._init_training_state(*args, **kwargs)
        self.state.global_step = self._governed_run.start_step
        return begun
