"""What the attestor's register is told and what it answers: the forms of its door.

The service says what it accepted, and opens attempts. A job says what it committed. All of them are
statements of whoever sends them. The register adds its own clock, and takes only what extends what
it has (`govray.platform.attestor.register_rules`).

A chain is what the jobs of one submission post of one run. A search has a chain for each trial.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field

from govray.errors import InfrastructureFailed, Malformed, Refused
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


def _check_canonical(text: str) -> str:
    try:
        canonical_json.parse_canonical(text.encode())
    except Malformed as error:
        raise ValueError(error.what) from None
    return text


CanonicalText = Annotated[str, Field(max_length=1 << 16), AfterValidator(_check_canonical)]
"""A JSON value in RFC 8785, as text."""


class Flagged(Refused):
    """Two processes post as one attempt, or it has another secret by now. Another attempt may go
    well, this one never does."""

    exit_code = InfrastructureFailed.exit_code


class AcceptanceForm(Document):
    """What was accepted, as the service knew it then. Digests that it did not know are absent.

    Attributes:
        run: The folder of the run or search that the submission becomes.
        submitted: By the service's clock.
        config: Digest of the accepted experiment file.
        archive: Digest of the working directory that its jobs get.
        policy, trust_root, manifests: Digests of the signed documents.
        limits: The project's adapter rights, policies and revocation lists: canonical JSON.
        start: Digest of the attestation that the run starts from.
        image, pip, uv_lock: Digests of what its jobs are set up with, where it names any.
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
    trust_root: Digest | None = None
    manifests: Annotated[tuple[Digest, ...], Field(max_length=64)] = ()
    limits: CanonicalText | None = None
    start: Digest | None = None
    image: Digest | None = None
    pip: Digest | None = None
    uv_lock: Digest | None = None
    isolation: Isolation


class AttemptForm(Document):
    """An attempt's number, from 1, and the SHA-256 of the secret that its posts carry."""

    number: Positive
    secret: Digest


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
