"""Run one task: `ray job submit -- python jobs/task.py --id ID --storage PLACE --config FILE`.

A notebook, a shell or TensorBoard answers at the node's address, and says so in the storage, where
the service's proxy finds it. It ends when nobody uses it. A command ends by itself with its own
code. `kind: inference` starts jobs/infer.py.

On SIGTERM, which `ray job stop` sends, the program ends and this exits with code 75.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from threading import Event

from govray.errors import GovrayError, UsageError
from govray.platform.tasks.finite_task import run_command
from govray.platform.tasks.task_file import CommandTask, InferenceTask, check_id, read_task
from govray.platform.tasks.watched_program import run_watched
from govray.printable import printable
from govray.storage.place import place


def main() -> int:
    """Parse the arguments and run the task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--id", required=True, help="the task's, as the queue has it")
    parser.add_argument("--storage", required=True, help="a folder or URL; files go to tasks/ID")
    parser.add_argument("--config", required=True, help="task file, such as jobs/notebook.yaml")
    parser.add_argument("--listen", help="IP address to answer at; the node's by default")
    arguments = parser.parse_args()
    stop = Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stop.set())
    try:
        try:
            task = read_task(Path(arguments.config).read_bytes(), where=arguments.config)
            storage = place(arguments.storage)
        except (OSError, ValueError) as error:
            raise UsageError(str(error), where="jobs/task.py") from None
        id = check_id(arguments.id)
        if isinstance(task, CommandTask):
            return run_command(task.argv, id=id, storage=storage, stop=stop)
        if isinstance(task, InferenceTask):
            infer = str(Path(__file__).with_name("infer.py"))
            words = (sys.executable, infer, "--config", arguments.config, "--task", id)
            return run_command(words, id=id, storage=storage, stop=stop)
        if arguments.listen is None:
            from ray.util import get_node_ip_address

            # The address towards the head, by which Ray knows the node.
            arguments.listen = get_node_ip_address(os.environ.get("RAY_ADDRESS"))
        run_watched(
            task,
            id=id,
            storage=storage,
            listen=arguments.listen,
            environment=dict(os.environ),
            stop=stop,
            on_ready=lambda found: print(printable(f"{found.kind} {id} answers"), flush=True),
            note=lambda text: print(printable(text), flush=True),
        )
    except GovrayError as error:
        print(f"govray: {error}", file=sys.stderr)
        return error.exit_code
    why = f"nobody used it for {task.idle_minutes:g} minutes"
    print(printable(f"{task.kind} {id} ended: {why}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
