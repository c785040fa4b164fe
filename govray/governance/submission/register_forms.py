"""What the attestor's register is told and what it answers: the forms of its door.

The service says what it accepted, and the queue opens attempts. A job says what it committed. Each
is a statement of its sender. The register adds its own clock, and takes only what extends what it
has (`govray.platform.attestor.register_rules`).

A chain is what the jobs of one submission post of one run. A search has a chain for each trial.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from govray.errors import InfrastructureFailed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Natural, Positive
from govray.governance.formats.document import Count, Digest, Document, Timestamp
from govray.governance.submission.submission import Owner, SubmissionId

RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,191}$")]

Isolation: TypeAlias = Literal["machine", "sharedCluster", "project", "run"]
"""What else could reach the run: one person's machine, any job of a cluster, any job of its
project, nothing."""

PostKind = Literal["started", "committed", "finished", "ended"]

ADDRESS: Final = "GOVRAY_REGISTER"
"""Environment variable of a job: its submission's address at the register's door."""
SECRET: Final = "GOVRAY_ATTEMPT_SECRET"  # noqa: S105  a name

LARGEST: Final = 1 << 18
"""Bytes of any form or answer."""


class Flagged(Refused):
    """Two processes post as one attempt, or it has another secret by now. Another attempt may go
    well, this one never does."""

    exit_code = InfrastructureFailed.exit_code


class OtherThanAccepted(Refused):
    """A job would start from other facts than were accepted, or nothing was accepted."""


class SubmissionFacts(Document):
    """A submission, as the store has it and a job is started from it.

    Attributes:
        run: The folder of the run or search that it becomes.
        submitted: By the service's clock.
        config: Digest of the experiment file.
        archive: Digest of the working directory that its jobs get.
        policy: Digest of the signed depth policy, if it names one.
        isolation: Of the queue's back end, as the pool has it.
    """

    submission: SubmissionId
    run: RunName
    kind: Annotated[str, Field(pattern=r"^[a-z]{1,32}$")]
    user: Owner
    project: Owner
    submitted: Timestamp
    config: Digest
    archive: Digest | None = None
    policy: Digest | None = None
    isolation: Isolation

    @property
    def facts_digest(self) -> str:
        """Of these fields alone, of a form that says more."""
        fields = {name: getattr(self, name) for name in SubmissionFacts.model_fields}
        return canonical_json.sha256(canonical_json.encode(SubmissionFacts(**fields).to_json()))


class AcceptanceForm(SubmissionFacts):
    """What was accepted, as the service knew it then.

    Attributes:
        manifests: Digests of the prepared data that the project's runs may read, if it names any.
        pretrained: Whether the file names weights to start from.
        own_code: Whether the file names no code but govray's and torch's optimizers.
    """

    pretrained: bool = False
    own_code: bool = False
    manifests: Annotated[tuple[Digest, ...], Field(max_length=64)] = ()


class AttemptForm(Document):
    """An attempt that the queue is about to start.

    Attributes:
        number: From 1.
        secret: The SHA-256 of the secret that its posts carry.
        facts: Digest of the `SubmissionFacts` that its job is started from.
        image, pip, uv_lock: Digests of what its job is set up with, where the file names any.
    """

    number: Positive
    secret: Digest
    facts: Digest
    image: Digest | None = None
    pip: Digest | None = None
    uv_lock: Digest | None = None

    @property
    def setup(self) -> tuple[str | None, ...]:
        return self.image, self.pip, self.uv_lock


class CommitPosition(Document):
    """Where a run stands by its last commit.

    Attributes:
        branch: How often the run was rolled back.
        step: The first step that the commit does not hold.
        commit: Digest of its manifest; absent at the beginning.
        ledger_size, ledger_root: Of the ledger's leaves up to it; no root of an empty one.
    """

    branch: Natural = 0
    step: Natural = 0
    commit: Digest | None = None
    ledger_size: Count = 0
    ledger_root: Digest | None = None

    @property
    def position(self) -> CommitPosition:
        """This alone, of a form that says more."""
        return CommitPosition(**{name: getattr(self, name) for name in CommitPosition.model_fields})


class PostForm(CommitPosition):
    """One post of a job: where the run stands by it. Only ``committed`` moves it.

    Attributes:
        sequence: How many posts of this attempt came before, of this run.
        kind: ``ended`` says that the driver writes no more into the run's folder.
        previous: Digest of the last commit before.
    """

    run: RunName
    sequence: Natural
    kind: PostKind
    previous: Digest | None = None


class RunStanding(CommitPosition):
    """Where a run stands by the register, as one of its attempts is told.

    Attributes:
        attempt: Whose secret asked.
        posts: How many there are of the run, of all attempts.
        sequence: Of this attempt's next post.
        last: The kind of this attempt's last post, if it has posted.
    """

    attempt: Positive
    posts: Natural
    sequence: Natural
    last: PostKind | None = None
