"""What the queue tells the attestor's register: each attempt, before its job starts.

A start may be asked for again. So each start opens its attempt with a fresh secret, of which the
register gets the digest. It replaces the one before while nobody has posted with that. If somebody
has, the job ran and is gone: the next attempt is due (`AttemptGone`).

The service has told what it accepted. An attempt opens only if the store's row is still that, so a
row that was changed since starts nothing. Tasks make no run, and are not registered.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from govray.errors import GovrayError, InfrastructureFailed, Refused
from govray.governance.attestation.environment import SETUP, Setup
from govray.governance.formats import canonical_json
from govray.governance.submission.register_client import RegisterClient
from govray.governance.submission.register_forms import (
    ADDRESS,
    SECRET,
    AttemptForm,
    Isolation,
    OtherThanAccepted,
)
from govray.platform.queue.job import AttemptGone, JobRefused, Unreachable
from govray.platform.store.run_owners import RUN_KINDS, submission_facts
from govray.platform.store.tables import QueueEntry


class AttestorRegister:
    """The attestor's register, as the queue's back end asks it."""

    def __init__(self, client: RegisterClient) -> None:
        self._client = client

    def variables(
        self, row: QueueEntry, environment: Mapping[str, Any], isolation: Isolation
    ) -> dict[str, str]:
        """Register an entry's attempt.

        Args:
            environment: Ray's, of its job.
            isolation: The back end's. What was accepted for another is refused.

        Returns:
            What the job needs in its environment to post.

        Raises:
            Unreachable: The register does not answer, or not to us.
            JobRefused: The service did not accept this.
            AttemptGone: A job of this attempt has posted.
        """
        if row.kind not in RUN_KINDS:
            return {}
        stated = (environment.get("env_vars") or {}).get(SETUP)
        setup = Setup.from_json(canonical_json.parse(stated.encode())) if stated else Setup()
        secret, where = secrets.token_urlsafe(32), f"submission {row.id}"
        form = AttemptForm(
            number=row.attempt,
            secret=f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}",
            facts=submission_facts(row, isolation).facts_digest,
            **dict(setup),
        )
        try:
            self._client.open(row.id, form)
        except OtherThanAccepted as error:
            what = f"the attestor's register refuses it: {error.what}"
            raise JobRefused(what, where=where, do=error.do) from None
        except Refused as error:
            raise AttemptGone(error.what, where=where) from None
        except InfrastructureFailed as error:
            raise Unreachable(error.what, where=error.where, do=error.do) from None
        return {ADDRESS: self._client.address(row.id), SECRET: secret}

    def decided(self, row: QueueEntry) -> tuple[str, str | None] | None:
        """Whether the runs of an entry are attested, and why not; None while one is undecided.
        A trial that never ended is not attested, and not waited for. Raises `Unreachable`."""
        try:
            runs = self._client.shown(row.id)["runs"]
            found = [each.get("attested") for each in runs if each["ended"] or "attested" in each]
            refused = [each for each in found if each and each["state"] != "ATTESTED"]
        except (GovrayError, KeyError, TypeError, AttributeError) as error:
            where = self._client.address(row.id)
            raise Unreachable("the attestor's register does not say", where=where) from error
        if refused:
            return refused[0]["state"], refused[0].get("why")
        return ("ATTESTED", None) if found and all(found) else None
