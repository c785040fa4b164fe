"""Answer a file of prompts: `ray job submit -- python jobs/infer.py --config FILE`.

The model's attestation is verified here before anything else, and by each worker before it loads
the model. Rows of the output, Parquet in a new folder, name it. Texts are in the order of prompts.
A record beside them has the digests of what they rest on; `--check` compares both.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from govray import __version__
from govray.errors import GovrayError, UsageError
from govray.platform.inference.batch import (
    RECORD,
    BatchAnswers,
    check_described,
    described,
    load_for,
)
from govray.platform.tasks.task_file import InferenceTask, read_task
from govray.printable import printable
from govray.storage.atomic_file import write_whole

ROWS = 16
"""Prompts of one call."""


def main() -> int:
    """Parse the arguments, verify, answer, print where the texts are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="task file of `kind: inference`")
    parser.add_argument("--workers", type=int, default=1, help="that load the model")
    parser.add_argument("--task", help="the task's id in the queue")
    parser.add_argument("--check", action="store_true", help="compare the output with its record")
    arguments = parser.parse_args()
    try:
        try:
            task = read_task(Path(arguments.config).read_bytes(), where=arguments.config)
        except OSError as error:
            raise UsageError(str(error.strerror), where=arguments.config) from None
        if not isinstance(task, InferenceTask):
            raise UsageError("it is not of the kind inference", where=arguments.config)
        if Path(task.output).exists() and not arguments.check:
            raise UsageError("the output is there already", where=task.output)
        if not Path(task.input).is_file():
            raise UsageError("there is no such file", where=task.input)
        attestation = load_for(task).attestation
        if arguments.check:
            check_described(task, attestation)
            print(printable(f"as recorded  {task.output}"))
            return 0
        answer(task, attestation, arguments.workers)
        record = described(task, attestation, id=arguments.task, code=__version__)
        write_whole(Path(task.output) / RECORD, record)
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
