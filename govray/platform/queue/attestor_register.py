"""What the queue tells the attestor's register: the submission, and each attempt before its job.

A start may be asked for again. So each start opens its attempt with a fresh secret, of which the
register gets the digest. It replaces the one before while nobody has posted with that. If somebody
has, the job ran and is gone: the next attempt is due (`AttemptGone`).

Of a submission that is the store's row when its first job starts. Tasks make no run, and are not
registered.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from govray.errors import GovrayError, InfrastructureFailed
from govray.governance.attestation.environment import SETUP, Setup
from govray.governance.formats import canonical_json
from govray.governance.formats.document import Document
from govray.governance.submission.http_exchange import get, post
from govray.governance.submission.register_forms import (
    ADDRESS,
    LARGEST,
    SECRET,
    AcceptanceForm,
    AttemptForm,
)
from govray.platform.queue.job import AttemptGone, JobRefused, Unreachable
from govray.platform.store.run_owners import RUN_KINDS, run_name
from govray.platform.store.tables import Submission


class AttestorRegister:
    """The register behind the door at ``url``, for who has the service's token."""

    def __init__(self, url: str, token: str) -> None:
        self._below = f"{url.rstrip('/')}/v1/register/submissions"
        self._token = token

    def variables(self, row: Submission, environment: Mapping[str, Any]) -> dict[str, str]:
        """Register an entry's submission and its attempt.

        Args:
            environment: Ray's, of its job.

        Returns:
            What the job needs in its environment to post.

        Raises:
            Unreachable: The register does not answer, or not to us.
            JobRefused: It has the submission otherwise.
            AttemptGone: A job of this attempt has posted.
        """
        if row.kind not in RUN_KINDS:
            return {}
        secret = secrets.token_urlsafe(32)
        digest = f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"
        own = f"{self._below}/{row.id}"
        if why := self._refusal(self._below, acceptance(row, environment), row):
            raise JobRefused(
                f"the attestor's register refuses it: {why}", where=f"submission {row.id}"
            )
        form = AttemptForm(number=row.attempt, secret=digest)
        if why := self._refusal(f"{own}/attempts", form, row):
            raise AttemptGone(why, where=f"submission {row.id}")
        return {ADDRESS: own, SECRET: secret}

    def decided(self, row: Submission) -> tuple[str, str | None] | None:
        """Whether the runs of an entry are attested, and why not; None while one is undecided.
        Raises `Unreachable`."""
        url = f"{self._below}/{row.id}"
        try:
            answer = get(url, where=url, bearer=self._token)
            said: Any = canonical_json.parse(answer.body, limit=LARGEST)
            found = [each.get("attested") for each in said["runs"]]
        except (GovrayError, KeyError, TypeError, AttributeError) as error:
            raise Unreachable("the attestor's register does not say", where=url) from error
        refused = [each for each in found if each and each["state"] != "ATTESTED"]
        if refused:
            return refused[0]["state"], refused[0].get("why")
        return ("ATTESTED", None) if found and all(found) else None

    def _refusal(self, url: str, form: Document, row: Submission) -> str | None:
        """Why the register refuses what it is told; None if it takes it."""
        body = canonical_json.encode(form.to_json())
        do = "Check that the attestor runs, and attestor.url and attestor.token_file of queue.yaml"
        try:
            answer = post(url, body, kind="application/json", where=url, bearer=self._token)
        except InfrastructureFailed as error:
            raise Unreachable(error.what, where=f"the attestor's register, {url}", do=do) from None
        if answer.status == 200:
            return None
        try:
            said: Any = canonical_json.parse(answer.body, limit=LARGEST)
            detail = str(said["detail"])[:500]
        except (GovrayError, KeyError, TypeError):
            detail = "it speaks as no register does"
        if answer.status in (409, 422):
            return detail
        raise Unreachable(f"the attestor's register answers {answer.status}: {detail}", do=do)


def acceptance(row: Submission, environment: Mapping[str, Any]) -> AcceptanceForm:
    """What the store knows of a submission. On a plain Ray cluster it shares the cluster."""
    stated = (environment.get("env_vars") or {}).get(SETUP)
    setup = Setup.from_json(canonical_json.parse(stated.encode())) if stated else Setup()
    return AcceptanceForm(
        submission=row.id,
        run=run_name(row),
        kind=row.kind,
        user=row.user,
        project=row.project,
        submitted=row.submitted,
        config=canonical_json.sha256(row.config.encode()),
        archive=row.archive,
        policy=row.policy,
        image=setup.image,
        pip=setup.pip,
        uv_lock=setup.uv_lock,
        isolation="sharedCluster",
    )
