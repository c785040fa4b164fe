"""How many workers a run may have for now: the word of a queue, and the run's answer.

A queue that needs slots of an elastic run writes `REQUEST` into the run's folder, and anew with
each change. What decides over the run's workers obeys the latest. Once no more workers run than it
allows, and no more will be started, the answer repeats it.

A run need not answer at once: its workers commit first. Until it has answered, its slots are not
free.

Invariant: an answer is equal to one word alone, for no two have the same number.
"""

from __future__ import annotations

from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Document
from govray.storage.atomic_file import write_whole
from govray.storage.place import Place
from govray.storage.regular_file import open_regular

REQUEST = "workers.most"
ANSWER = "workers.given"

LARGEST = 1024
"""Bytes of either file."""


class WorkerCap(Document):
    """At most so many workers.

    Attributes:
        number: Which word of the queue to this run it is, from 1.
        most: The workers that it may have. An elastic run never has fewer than its least.
    """

    number: Positive
    most: Positive


def write_cap(run_folder: Place, name: str, cap: WorkerCap) -> None:
    """Write a word or an answer, in the place of the one before.
    ``name``: `REQUEST` or `ANSWER`."""
    write_whole(run_folder / name, canonical_json.encode(cap.to_json()))


def read_cap(run_folder: Place, name: str) -> WorkerCap | None:
    """The word or the answer in a run's folder, if any.
    ``name``: `REQUEST` or `ANSWER`."""
    path = run_folder / name
    try:
        with open_regular(path) as stream:
            data = stream.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    value = canonical_json.parse_canonical(data, limit=LARGEST, where=str(path))
    return WorkerCap.from_json(value, where=str(path))
