"""Train one experiment: `ray job submit --working-dir . -- python jobs/train.py --config FILE`.

The job runs on the cluster that it is submitted to, or on this machine. The attestation key is read
here, on the job's driver, from where the experiment says. On a cluster, name a file on the head
node. A variable there would reach every worker, and is refused if it holds a key. With --unsigned
no key is read: `govray prepare` has signed the data, and the attestor signs the model.

An unfinished run of exactly this experiment is resumed; with --submission, that submission's own.
On SIGTERM, which `ray job stop` sends, it commits and exits with code 75. Set
RAY_JOB_STOP_WAIT_TIME_S to what that takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from govray.errors import GovrayError
from govray.governance.submission.submission import read_submission
from govray.printable import printable
from govray.train.inputs.experiment_config import read_experiment


def main() -> int:
    """Parse the arguments, train, print where the model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="experiment file, such as jobs/train.yaml")
    parser.add_argument("--new", action="store_true", help="don't go on with an unfinished run")
    parser.add_argument("--submission", metavar="FILE", help="JSON that says who submitted the run")
    parser.add_argument("--archive", metavar="DIGEST", help="of the archived working directory")
    parser.add_argument("--unsigned", action="store_true", help="read no key: others sign")
    arguments = parser.parse_args()
    try:
        experiment = read_experiment(arguments.config)
        file = arguments.submission
        submission = read_submission(file) if file else None
        from govray.train.driver.ray_cluster import start_ray
        from govray.train.inputs import operator_key

        operator_key.take(experiment.attestation_key, refuse=arguments.unsigned)
        start_ray(meanwhile="govray.train.driver.trainer", experiment=experiment.name)
        from govray.train.driver.trainer import new_or_unfinished

        trainer = new_or_unfinished(
            experiment,
            new=arguments.new,
            submission=submission,
            archive=arguments.archive,
            unsigned=arguments.unsigned,
            on_step=said,
            on_wait=lambda line: print(printable(line), flush=True),
        )
        if trainer.resume:
            print(printable(f"resuming {trainer.resume}"), flush=True)
        run = trainer.train(attest=not arguments.unsigned)
    except GovrayError as error:
        print(f"govray: {error}", file=sys.stderr)
        return error.exit_code
    if arguments.unsigned:
        print(printable(f"run    {run}  trained; the attestor signs its model"))
    else:
        print(printable(f"model  {run}/model"))
    return 0


def said(step: int, metrics: Mapping[str, float]) -> None:
    """A line for each step that is seen; one without loss targets has no loss."""
    loss = f"{metrics['loss']:.3f}" if "loss" in metrics else "none"
    print(f"step {step + 1}  loss {loss}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
