"""How a run was executed: who asked for it, whose code ran, and what else could reach it.

Unlike the counts, norms and environment, which the job reports, all of this is from the records of
the operator that signs. What of it shows offline: the times are in order, the policy and the setup
are those that the rest of the attestation has. ``commit`` is the digest of the manifest of the
commit that the model was taken from. The model folder does not have that manifest, so only those
with the run's folder can compare it.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from govray.governance.attestation.environment import Setup
from govray.governance.formats.bounds import Positive
from govray.governance.formats.document import Digest, Document, Timestamp
from govray.governance.submission.register_forms import Isolation
from govray.governance.submission.submission import Owner, SubmissionId

Origin: TypeAlias = Literal["deployment", "submitted"]


class CodeFacts(Document):
    """Whose code ran, and in what.

    ``deployment``: govray's own alone, in an image that the operator allows. ``submitted``: any
    other. ``archive`` is the digest of the archived working directory.
    """

    origin: Origin
    archive: Digest | None = None
    setup: Setup | None = None

    @model_validator(mode="after")
    def _own(self) -> Self:
        added = self.archive or (self.setup and (self.setup.pip or self.setup.uv_lock))
        if self.origin == "deployment" and added:
            raise ValueError("code of the deployment has no archive and no further packages")
        return self

    def __str__(self) -> str:
        if self.origin == "deployment":
            return "the deployment's own"
        archive = f", archive {self.archive}" if self.archive else ""
        return f"submitted{archive}; its author could have reported other counts"


class Execution(Document):
    """How one run was executed, by the operator's records.

    Attributes:
        submission, user, project, submitted: Who asked for it and when. All absent of a run that
            the operator started by hand.
        policy: Digest of the depth policy that it was submitted under, if that was decided then.
        attempts: How often its workers started.
        commit: Digest of the manifest of the commit that the model is.
        registered: When the run became known to the operator's records, before it started.
        attested: When this was signed.
    """

    submission: SubmissionId | None = None
    user: Owner | None = None
    project: Owner | None = None
    policy: Digest | None = None
    submitted: Timestamp | None = None
    code: CodeFacts
    isolation: Isolation
    attempts: Annotated[Positive, Field(le=1 << 31)]
    commit: Digest
    registered: Timestamp
    attested: Timestamp

    @model_validator(mode="after")
    def _whole(self) -> Self:
        told = (self.submission, self.user, self.project, self.submitted)
        if any(told) != all(told):
            raise ValueError("submission, user, project and submitted are all there, or none is")
        if self.policy and not self.submission:
            raise ValueError("a policy of no submission")
        if self.code.origin == "deployment" and self.isolation != "run":
            raise ValueError("code of the deployment needs the isolation run")
        return self

    @property
    def who(self) -> str | None:
        """The person and the project that submitted it; None of a run started by hand."""
        if self.submission is None:
            return None
        return f"submitted by {self.user}, project {self.project}"

    @property
    def apart(self) -> str:
        """The isolation in words."""
        return _APART[self.isolation]


_APART: dict[Isolation, str] = {
    "machine": "one person's machine",
    "sharedCluster": "a shared cluster: any of its jobs could have altered the run",
    "project": "its project's own: any of the project's jobs could have altered the run",
    "run": "the run's own",
}
