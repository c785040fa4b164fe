"""Inputs that several runs share: verified once, with data admitted once.

The driver makes them, with the operator's key, and passes them to the process that drives a run.
That run needs no key. It reads no policy and no credential from a path, so it cannot get others.

Invariants:

* The inputs were verified at one time, ``at``, and each of the runs counts as begun then. Their
  steps find out what has ended since, as in a resumed run.
* A run resumes under the same inputs that it recorded, or is refused.

The key's holder attests the finished runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from govray.data.admission import Prepared
from govray.errors import Refused
from govray.governance.attestation.selection_taint import Selection
from govray.governance.policy.credential import Credential
from govray.governance.submission.submission import Submission
from govray.governance.trust.trust_state import Verified
from govray.train.inputs.run_record import RunRecord
from govray.train.inputs.verified_inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class ValidationData:
    """Admitted validation data.

    Attributes:
        credentials: Verified, by corpus.
        prepared: The packed rows and their signed manifest.
    """

    credentials: Mapping[str, Verified[Credential]]
    prepared: Prepared

    @property
    def corpora(self) -> tuple[str, ...]:
        """Those that are measured, sorted."""
        return tuple(sorted(each.corpus for each in self.prepared.manifest.corpora))

    def joined(self, inputs: Inputs) -> Inputs:
        """A run's inputs with these credentials among its own, to see when any of them ends."""
        return replace(inputs, credentials={**inputs.credentials, **self.credentials})


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Verified inputs, and the data that they admit.

    Attributes:
        inputs: As verified.
        prepared: The admitted and packed data, on storage that the cluster shares.
        at: The reference time at which the inputs were verified.
        selection: How one of the runs is chosen, if they belong to a search.
        validation: The data that each run is judged by, if there are any.
        submission: Of the search that the runs belong to, if it was submitted.
        carried: The record of the one run that goes on with what its commit carries. The weights
            that it started from are not read again.
        alone: The search that the runs belong to started a cluster for itself.
    """

    inputs: Inputs
    prepared: Prepared
    at: datetime
    selection: Selection | None = None
    validation: ValidationData | None = None
    submission: Submission | None = None
    carried: RunRecord | None = None
    alone: bool = False

    def refuse_changes(self, record: RunRecord) -> None:
        """Refuse to resume a run that began with other inputs."""
        inputs = self.inputs
        pairs = {
            "policy": (record.policy, inputs.policy_bytes),
            "trust root": (record.root, inputs.root_bytes),
            "delegations": (record.delegations, inputs.delegations),
            "credentials": (dict(record.credentials), inputs.credential_bytes),
            "prepared data": (record.manifest, self.prepared.envelope),
        }
        if names := [name for name, (then, now) in pairs.items() if not _same(then, now)]:
            raise Refused(
                f"changed since the run began: {', '.join(names)}",
                where=f"run {record.run_id}",
                do="Restore what it began with, or start a new one with --new",
            )


def _same(then: object, now: object) -> bool:
    """Equal bytes, apart from a final newline that a list of envelopes strips."""
    if isinstance(then, bytes) and isinstance(now, bytes):
        return then.rstrip(b"\n") == now.rstrip(b"\n")
    if isinstance(then, dict) and isinstance(now, dict):
        return then.keys() == now.keys() and all(_same(then[key], now[key]) for key in then)
    if isinstance(then, tuple) and isinstance(now, tuple):
        return len(then) == len(now) and all(map(_same, then, now))
    return then == now
