"""What a run's folder claims to be, held against its place on storage and against the queue.

A submitter can write its folder, and perhaps others beside it. So a claim gives nothing:
where it contradicts what is known, the run is left out of the index.

A name counts most, for signed documents say which run they are of by its name. Members of the
project of a run's row may read those. So nobody takes another's name for a run within his own.
"""

from __future__ import annotations

from sqlalchemy import Engine
from sqlmodel import Session

from govray.errors import Refused
from govray.platform.store import tables
from govray.platform.store.run_owners import run_name, submission_of
from govray.train.inputs.run_record import RunRecord
from govray.train.run_folder.run_names import is_replay, is_trial_of

REPLAYS = "replays"
"""The folder of a run that its replays lie in."""

_RENAME = "Names of runs are those of their folders; keep copies out of the storage"


def submitted(session: Session, queue: Engine | None, name: str) -> tables.QueueEntry | None:
    """The entry that became the run or search of this name. ``queue``: the store with the
    queue, if the queue has its own."""
    if queue is None:
        return submission_of(session, name)
    with Session(queue) as other:
        return submission_of(other, name)


def entry(session: Session, queue: Engine | None, id: str) -> tables.QueueEntry | None:
    """The entry of the queue with this id; ``queue`` as `submitted`."""
    if queue is None:
        return session.get(tables.QueueEntry, id)
    with Session(queue) as other:
        return other.get(tables.QueueEntry, id)


def refuse_false_claim(
    session: Session, queue: Engine | None, record: RunRecord, name: str
) -> None:
    """Refuse a run that says it is of an experiment of the queue, which another run is. So its name
    is no such id either. An id that the queue does not know says nothing, for or against."""
    for id in (record.submission.id if record.submission else name, name):
        if (row := entry(session, queue, id)) is not None:
            raise Refused(
                f"the run says that it is of the experiment {id}, whose run is called "
                f"{run_name(row)}",
                where=name,
                do="Ask who wrote this folder",
            )


def refuse_another_place(
    session: Session, queue: Engine | None, record: RunRecord, below: str, above: str
) -> None:
    """Refuse a run that lies in another one's folder by its own word.

    A run lies below the storage or its search, by its own name. A replay lies in its run's folder,
    and is called so. A trial of a search that was submitted has the name that its search gave it.

    Args:
        below: The folder's place below the storage.
        above: The folder of the search, below the storage; empty without a search.
    """
    what, called_so = "a run", True
    if record.replay_of is not None:
        what = f"a replay of {record.replay_of}"
        replayed = session.get(tables.RunRow, record.replay_of)
        if replayed is None:
            raise Refused(f"it is {what}, which is not in the index", where=below)
        above, called_so = f"{replayed.folder}/{REPLAYS}", is_replay(record.run_id)
    elif above and submitted(session, queue, above) is not None:
        what, called_so = f"a trial of {above}", is_trial_of(above, record.run_id)
    if not called_so:
        raise Refused(f"{record.run_id} is no name of {what}", where=below, do=_RENAME)
    if below != (f"{above}/{record.run_id}" if above else record.run_id):
        raise Refused(
            f"the folder says that it is {what} called {record.run_id}, which lies elsewhere",
            where=below,
            do=_RENAME,
        )
