"""A model and a version as any caller reads them: what the public does not see is None.

The service has a class for each audience instead, so that none can hold what it may not see. All
other documents are those of `govray.platform.wire.answers`.
"""

from __future__ import annotations

from govray.platform.wire.answers import Answer, Validation, VersionReference


class Model(Answer):
    """A registered model. The public sees its name alone."""

    name: str
    description: str | None = None
    labels: dict[str, str] | None = None
    production: str | None = None


class Version(VersionReference):
    """A version of a model. The public sees which attestation it has."""

    stage: str | None = None
    labels: dict[str, str] | None = None
    validation: Validation | None = None
    notes: str | None = None
    created: str | None = None
    user: str | None = None
