"""Who submitted a run, for which project and under which policy.

What takes in a submission, such as the service, gives it an id and writes these facts into a
file. The job that it becomes reads the file and records them. They are the operator's word: nothing
here shows that the named user was there.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from govray.errors import UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Digest, Document, Timestamp
from govray.storage.place import Place, place

LARGEST = 1 << 16
"""Bytes of a submission's file."""

SubmissionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,55}$")]
"""Behind the name of an experiment it is still a name: the run of a submission is called so."""

PRIORITY: Final = 1000
"""The highest of a submission, and with a minus the lowest."""

WORD: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""What an experiment, its project, its pool or one of its tags may be called."""
MOST_TAGS: Final = 20
"""Of one experiment."""

Owner = Annotated[str, Field(min_length=1, max_length=256)]


class Submission(Document):
    """One submission, which becomes one run or one search and no other.

    Attributes:
        id: Its own; no other submission has it.
        user: Who submitted it.
        project: What it counts for.
        policy: Digest of the depth policy that it was submitted under, if that was decided then.
        submitted: When.
        archive: Digest of the working directory that its job gets, if it was archived.
    """

    id: SubmissionId
    user: Owner
    project: Owner
    policy: Digest | None = None
    submitted: Timestamp
    archive: Digest | None = None

    def run_of(self, name: str) -> str:
        """The one run, or the folder of the search, that the submission of ``name`` becomes."""
        return f"{name}-{self.id}"

    def __str__(self) -> str:
        return f"submitted by {self.user}, project {self.project}"


def read_submission(file: str | Place) -> Submission:
    """Read the file that states a submission. ``file``: a path, or a URL of an object store."""
    try:
        with place(file).open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no such file"
        raise UsageError(
            f"the submission's file is not readable: {why}",
            where=str(file),
            do="Give the file that the service wrote for this job",
        ) from None
    value = canonical_json.parse(data, limit=LARGEST, where=str(file))
    return Submission.from_json(value, where=str(file))
