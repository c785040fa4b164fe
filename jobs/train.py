"""Train one experiment: `ray job submit --working-dir . -- python jobs/train.py --config FILE`.

Runs on the cluster that it is submitted to, or on this machine. The attestation
key is read here, on the job's driver, from where the experiment says; put it on
the head node, never into the job's environment, which the dashboard shows.
"""

from __future__ import annotations

import argparse
import sys

from govray.errors import GovrayError
from govray.train.config import read_experiment


def main() -> int:
    """Parse the arguments, train, print where the model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="experiment file, such as jobs/train.yaml")
    arguments = parser.parse_args()
    try:
        experiment = read_experiment(arguments.config)
        from govray.train.trainer import from_experiment, start_ray

        start_ray()
        trainer = from_experiment(
            experiment,
            on_step=lambda step, metrics: print(
                f"step {step + 1}/{experiment.max_steps}  loss {metrics['loss']:.3f}", flush=True
            ),
        )
        result = trainer.fit()
    except GovrayError as error:
        print(f"govray: {error}", file=sys.stderr)
        return error.exit_code
    print(f"model  {result.path}/model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
