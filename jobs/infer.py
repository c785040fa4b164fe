"""Answer a file of prompts: `ray job submit -- python jobs/infer.py --config FILE`.

The model's attestation is verified here before anything else, and by each worker before it loads
the model. Rows of the output, Parquet in a new folder, name it. Texts are in the order of prompts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from govray.errors import GovrayError, UsageError
from govray.platform.inference.batch import BatchAnswers, load_for
from govray.platform.tasks.task_file import InferenceTask, read_task
from govray.printable import printable

ROWS = 16
"""Prompts of one call."""


def main() -> int:
    """Parse the arguments, verify, answer, print where the texts are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="task file of `kind: inference`")
    parser.add_argument("--workers", type=int, default=1, help="that load the model")
    arguments = parser.parse_args()
    try:
        try:
            task = read_task(Path(arguments.config).read_bytes(), where=arguments.config)
        except OSError as error:
            raise UsageError(str(error.strerror), where=arguments.config) from None
        if not isinstance(task, InferenceTask):
            raise UsageError("it is not of the kind inference", where=arguments.config)
        if Path(task.output).exists():
            raise UsageError("the output is there already", where=task.output)
        if not Path(task.input).is_file():
            raise UsageError("there is no such file", where=task.input)
        attestation = load_for(task).attestation
        answer(task, attestation, arguments.workers)
    except GovrayError as error:
        print(f"govray: {error}", file=sys.stderr)
        return error.exit_code
    if task.adapter is not None:
        print(
            "rights  not asked: any job that reads this folder can use its adapters",
            file=sys.stderr,
        )
    print(printable(f"texts  {task.output}"))
    print(printable(f"model  {attestation}"))
    return 0


def answer(task: InferenceTask, attestation: str, workers: int) -> None:
    """Let workers answer, and write what they say.

    Raises:
        GovrayError: What a worker raised.
    """
    import ray
    from ray.exceptions import RayTaskError

    from govray.train.driver.ray_cluster import start_ray

    start_ray()
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    try:
        ray.data.read_json(task.input, lines=True).map_batches(
            BatchAnswers,
            fn_constructor_args=(task, attestation),
            batch_size=ROWS,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        ).write_parquet(task.output)
    except RayTaskError as error:
        cause = error.cause
        while cause is not None and not isinstance(cause, GovrayError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if cause is not None:
            raise cause from None
        raise


if __name__ == "__main__":
    sys.exit(main())
