"""Commit before the workers of a run are replaced by more, so that no step is run twice.

Ray's controller ends healthy workers when there is room for more. Before that, it calls `ask`,
which writes a file to the run's folder. Rank 0 looks for the file before each step and says so in
the step's agreement. After that step all ranks commit, rank 0 answers with another file, and all
wait to be ended.

Invariant: the controller may be gone. Workers that nobody ends go on after `WAIT_S`. A starting
group of workers finds neither file.

`govray.train.driver.scaling_policy` chooses the number of workers.
"""

from __future__ import annotations

import time

from govray.storage.place import Place

REQUEST = "resize"
ANSWER = "resize.committed"

WAIT_S = 30.0
"""How long workers wait to be ended. The controller checks for the answer many times a second."""


def ask(run_folder: Place) -> None:
    """Ask the run's workers to commit and wait."""
    (run_folder / REQUEST).touch()


def asked(run_folder: Place) -> bool:
    """Whether the workers are to commit and wait after the next step."""
    return (run_folder / REQUEST).exists()


def answer(run_folder: Place) -> None:
    """Tell the controller that the commit is whole, and remove the request."""
    (run_folder / ANSWER).touch()
    (run_folder / REQUEST).unlink(missing_ok=True)


def answered(run_folder: Place) -> bool:
    """Whether the workers have committed and wait."""
    return (run_folder / ANSWER).exists()


def clear(run_folder: Place) -> None:
    """Remove request and answer."""
    for name in (REQUEST, ANSWER):
        (run_folder / name).unlink(missing_ok=True)


def wait() -> None:
    """Wait to be ended. A worker that is not ended goes on with the run."""
    time.sleep(WAIT_S)
