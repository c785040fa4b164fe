"""The output of drivers and workers, kept in the run's folder; and what follows from its lines."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from govray.storage.place import Place, place
from govray.train.experiment.sections import LogPolicy
from govray.train.inputs.order import Order
from govray.train.run_folder import events, stop_request
from govray.train.run_folder.clock import now
from govray.train.run_folder.shipped_log import ShippedLog, driver_log, outputs, worker_log


@contextmanager
def of_worker(order: Order, rank: int, attempt: int) -> Iterator[None]:
    """Ship what this worker prints, and the error that ends it."""
    folder, name = place(order.folder), worker_log(rank, attempt)
    with ShippedLog(folder, name, outputs(), on_line=watch(folder, name, order)) as log:
        try:
            yield
        except Exception:
            log.write(traceback.format_exc())
            raise


@contextmanager
def of_driver(order: Order) -> Iterator[None]:
    """Ship what this driver prints from now on, if that goes to a file."""
    name = driver_log(order.driver)
    with ShippedLog(place(order.folder), name, outputs(from_now=True)):
        yield


def watch(folder: Place, name: str, order: Order) -> Callable[[str], None] | None:
    """What looks at the lines of a log: each policy follows once from one log."""
    left = list(order.log_policies)
    if not left:
        return None

    def look(line: str) -> None:
        for each in [policy for policy in left if policy.fits(line)]:
            left.remove(each)
            _follow(folder, name, each, line)

    return look


def _follow(folder: Place, name: str, policy: LogPolicy, line: str) -> None:
    event = events.LogMatched(
        at=now(), log=name, pattern=policy.pattern, action=policy.action, line=line[:500]
    )
    if policy.action == "stop":
        # First: should the event not be written, the run stops all the same.
        stop_request.request(folder, f"log policy {policy.pattern!r}")
    events.append(folder, event)
