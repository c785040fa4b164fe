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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import ray
import ray.train

from govray.data.admission import Prepared
from govray.errors import Stopped, UsageError
from govray.governance.submission.submission import Submission
from govray.storage.place import Place, place
from govray.train.attest.write_model import signed_files, write_model
from govray.train.checkpoint import storage
from govray.train.driver import attempts
from govray.train.driver.job_metadata import add_metadata, run_metadata
from govray.train.driver.planned_run import PlannedRun, VerifiedRun, claimed, planned, verified
from govray.train.driver.ray_cluster import begun_here
from govray.train.driver.run_request import RunRequest
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import Experiment
from govray.train.inputs.order import Order
from govray.train.inputs.run_record import RunRecord
from govray.train.inputs.shared_inputs import Shared
from govray.train.run_folder import events
from govray.train.run_folder.clock import instant, now
from govray.train.run_folder.register_posts import flag_told
from govray.train.run_folder.requests import STOP
from govray.train.run_folder.run_lock import Driven, hold
from govray.train.state.garbage_collection import pin_start
from govray.train.state.snapshot import latest
from govray.train.validation.best_so_far import ended_early
from govray.train.watching.chosen_callbacks import chosen_callbacks, settings
from govray.train.watching.run_callback import RunCallback, RunStarted, Told


@dataclass(frozen=True)
class GovernedTrainer(RunRequest):
    """`ray.train.torch.TorchTrainer` whose gradients follow a signed depth policy.

    `RunRequest` has its arguments.
    """

    def fit(self) -> ray.train.Result:
        """Train, and leave an attested model in ``<result.path>/model``.

        Raises:
            Stopped: The run was asked to stop, and has committed; it can be resumed.
            GovrayError: What was refused, or which rank failed and why.
        """
        return ray.train.Result.from_path(str(self.train(attest=True)))

    def prepare(self) -> Prepared:
        """Steps 1 and 3 alone: admit and prepare the data, once for equal inputs.
        `govray.train.driver.preparation` does the same without this module's imports."""
        return self.share(instant()).prepared

    def share(self, at: datetime) -> Shared:
        """Steps 1 and 3 for several runs: verified at one time, prepared once.

        Args:
            at: Reference time: now, or when the first of the runs began.
        """
        self.check_metric()
        return self.preparation.share(at, cache(self.signer))

    def train(self, *, attest: bool = False) -> Place:
        """Steps 1 to 5: a trained run without an attestation. Returns the run's folder.

        Without step 6 it needs no key, if the data are prepared already.

        Args:
            attest: Do step 6 too.

        Raises:
            As `fit`.
        """
        claim = claimed(self)
        if claim.attested:
            return claim.attested
        callbacks = (*chosen_callbacks(self.experiment), *self.callbacks)
        run = verified(self, claim, attest=attest)
        return self._run(run, planned(self, run), callbacks)

    def _run(self, run: VerifiedRun, plan: PlannedRun, callbacks: Sequence[RunCallback]) -> Place:
        """Steps 5 and 6: begin the run, or go on with it, as planned."""
        claim, order = run.claim, plan.order
        record, register = claim.record, claim.register
        folder = place(order.folder)
        # A trial's process joined the cluster of its search.
        trial = self.shared is not None and self.shared.carried is None
        alone = self.shared.alone if self.shared and trial else begun_here()
        with hold(folder, alone=alone) as driver, Told(callbacks) as told:
            storage.choose(folder, self.experiment.checkpoint.storage)
            if record:
                run_listing.refuse_other_run(record, plan.made, claim.allowed)
                record = _under_its_code(record, plan.made, folder)
            elif (folder / "record" / "run.json").is_file():
                raise Driven(
                    "another job has begun the run meanwhile",
                    where=f"run {order.run_id}",
                    do="Start this job again: it goes on with the run, if that has no driver then",
                )
            else:
                record = plan.made
                record.write(folder)
                if start := order.start:
                    kept = [start.optimizer.folder] if start.optimizer else []
                    for each in (start.folder, *kept):
                        pin_start(Path(each), f"{order.run_id} starts from it")
            add_metadata(run_metadata(order.run_id, self.experiment.name, order.policy_digest))
            STOP.clear(folder)
            if told:
                told.start(self._run_started(order, plan.config))
            if not record.finished:
                with flag_told(register):
                    done = self.carry_out(replace(order, driver=driver), plan.config, told)
                if register is not None:
                    register.finished()
                early = done if done < order.stop else None
                record.end(folder, instant(), ended=early)
                events.append(folder, events.Finished(at=now(), step=done))
            STOP.clear(folder)
            if run.signer:
                write_model(folder, run.signer)
                events.append(folder, events.Attested(at=now()))
                told.attested(signed_files(folder))
        if register is not None:
            register.ended()
        return folder

    def _run_started(self, order: Order, config: Mapping[str, Any]) -> RunStarted:
        folder, file = place(order.folder), self.file
        commit = latest(folder)
        return RunStarted(
            run_id=order.run_id,
            folder=folder,
            experiment=self.experiment.name,
            step=commit[1] if commit else 0,
            settings=settings(file.model_dump(mode="json") if file else config),
            policy=order.policy_digest,
        )

    def carry_out(self, order: Order, config: Mapping[str, Any], told: Told | None = None) -> int:
        """Train to the end; returns how many steps that was."""
        step = attempts.fit(
            order,
            self.train_loop_per_worker,
            config=config,
            scaling=self.scaling,
            run_config=self.ray_run_config(order.run_id),
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


def _under_its_code(record: RunRecord, made: RunRecord, folder: Place) -> RunRecord:
    """The record of a run that goes on, which tells other code from the code so far."""
    commit = latest(folder)
    step = commit[1] if commit else 0
    over = record.finished or step == record.plan.max_steps or ended_early(folder, step)
    if over or run_listing.same_code(record, made):
        return record  # no step will run under the other code
    # Before the event, after which what the log says of them counts no more.
    record = replace(record, earlier=run_listing.earlier_code(record.earlier, events.read(folder)))
    record.write_summary(folder)
    events.append(folder, events.OtherCode(at=now(), step=step))
    return record.under(made.environment, folder, step=step)


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
    return GovernedTrainer(experiment, resume=resume, submission=submission, **overrides)
