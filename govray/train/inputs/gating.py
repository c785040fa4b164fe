"""Which corpora a run leaves out or sends elsewhere, by gates or phases, and from which step on.

`newly_left_out` is the decision. Its inputs are equal on all ranks, and so is its result. All ranks
leave the same corpora out of the same step, or stop together. A step whose agreement finds an
ended credential is itself done without the corpus: no weight has moved by then.

A decision is final. After a crash and in a replay, recorded steps are repeated as they were,
whatever the clock says then. Nothing lifts a gate.

Past decisions come from the run's event log, its write-ahead leaves, and the gates that each commit
holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from govray.engine.steps.expiry import NoLongerValid
from govray.errors import GovrayError, InfrastructureFailed
from govray.governance.formats.document import format_time
from govray.governance.policy.corpus_routes import Fallback
from govray.governance.policy.route import Route
from govray.governance.record.entropy_profile import EntropyProfile
from govray.governance.record.gates import (
    Gate,
    carried,
    changed_routes,
    joined,
    on_lineage,
    read_gates,
)
from govray.governance.record.incidents import Incidents
from govray.storage.place import Place
from govray.train.checkpoint import commit_folder
from govray.train.inputs.revocation_feed import credential_name
from govray.train.run_folder import events
from govray.train.run_folder.ledger_wal import recorded_steps

OnExpiry = Literal["stop", "gate"]

GATES = "gates.jsonl"
"""A commit's file of gates; absent without any."""


@dataclass(frozen=True)
class Decisions:
    """What a run has decided.

    Attributes:
        until: Steps below it were recorded, and are repeated as they were.
        gates: Corpora left out or sent to a fallback, and from which step on; at most one of a
            kind for each corpus and branch. Gates for memorization are here only in a replay: a run
            derives them again.
        starts: The first step of every branch of the ledger, also of one without leaves.
        profiles: Entropy profiles that were recorded, of every branch.
    """

    until: int = 0
    gates: tuple[Gate, ...] = ()
    starts: tuple[int, ...] = (0,)
    profiles: tuple[EntropyProfile, ...] = ()

    def joined(self, other: Decisions) -> Decisions:
        """Both together. Of two gates of one corpus the earlier one stays."""
        return replace(
            self,
            until=max(self.until, other.until),
            gates=joined((*self.gates, *other.gates)),
        )


UNDECIDED = Decisions()


def decisions(run_folder: Place) -> Decisions:
    """What the run in this folder has decided so far; nothing, if it has not begun."""
    logged = tuple(
        event.gate for event in events.read(run_folder) if isinstance(event, events.Gated)
    )
    return Decisions(recorded_steps(run_folder), logged).joined(Decisions())


def resumed(run_folder: Place, commit: commit_folder.Folder | None) -> Decisions:
    """`decisions`, and the gates that a commit holds in case the event log is lost."""
    held: tuple[Gate, ...] = ()
    if commit is not None:
        # The workers that load a damaged commit find the damage and put it aside.
        try:
            files = commit_folder.open_commit(commit).files
            held = read_gates(files[GATES]) if GATES in files else ()
        except InfrastructureFailed:
            raise
        except GovrayError:
            pass
    return decisions(run_folder).joined(Decisions(gates=held))


def newly_left_out(
    error: NoLongerValid,
    on_expiry: OnExpiry,
    credentials: Mapping[str, str],
    left_out: Iterable[str],
) -> tuple[str, ...]:
    """The corpora to leave out from now on, besides those left out before; sorted.

    Raises:
        NoLongerValid: The run stops: the policy says so or has itself ended, or no corpus would
            be left.
    """
    names = {end.name for end in error.ends}
    if on_expiry == "stop" or not names or names - set(credentials.values()):
        raise error
    ended = {corpus for corpus, name in credentials.items() if name in names}
    if not credentials.keys() - ended - set(left_out):
        raise NoLongerValid(
            f"{error.what}; no corpus is left to train on",
            where=error.where,
            do=error.do,
            time=error.time,
            ends=error.ends,
        )
    return tuple(sorted(ended))


class Gating:
    """The gates of one worker's run.

    Args:
        names: Names of all that expires: credentials, by `credential_name`, and policy.
        told: The incidents of a monitored run; its gates apply too.
        fallbacks: Corpus → where a gate for memorization sends its rows, if anywhere.
        phased: Corpus → route, of the corpora whose route has phases.
    """

    def __init__(
        self,
        on_expiry: OnExpiry,
        names: Iterable[str],
        corpora: Iterable[str],
        past: Decisions,
        told: Incidents | None = None,
        fallbacks: Mapping[str, Fallback] = MappingProxyType({}),
        phased: Mapping[str, Route] = MappingProxyType({}),
    ) -> None:
        known = set(names)
        self._on_expiry = on_expiry
        self._starts = past.starts
        self._told = told
        self._fallbacks = fallbacks
        self._phased = phased
        self._credentials = {
            corpus: credential_name(corpus)
            for corpus in corpora
            if credential_name(corpus) in known
        }
        self._gates = joined((*past.gates, *carried(past.gates, past.starts)))

    def branch(self, step: int) -> int:
        """The branch on which the run does a step."""
        return max(b for b, first in enumerate(self._starts) if first <= step)

    def left_out(self, step: int) -> dict[str, str]:
        """Corpora that this step leaves out → their credentials' names, if those ended."""
        branch = self.branch(step)
        held = [g for g in self.gates(step + 1) if g.branch == branch and g.step <= step]
        ended = {gate.corpus for gate in held if gate.legal}
        return {
            corpus: credential_name(corpus) if corpus in ended else f"memorization {corpus}"
            for corpus, route in self._changed(step).items()
            if route is None
        }

    def rerouted(self, step: int) -> dict[str, str]:
        """Corpora whose rows take the route of a later phase or a fallback in this step → its
        digest."""
        return {corpus: route.digest for corpus, route in self._changed(step).items() if route}

    def _changed(self, step: int) -> dict[str, Route | None]:
        gates, branch = self.gates(step + 1), self.branch(step)
        return changed_routes(gates, self._fallbacks, branch, step, self._phased)

    def first_without(self, step: int) -> dict[str, int]:
        """Corpora that no longer train by their own route in this step → the first step of which
        that holds, on this branch's history."""
        found = on_lineage(self.gates(step + 1), self._starts)
        return {g.corpus: g.step for g in reversed(found) if g.step <= step}

    def gates(self, step: int) -> tuple[Gate, ...]:
        """The gates of earlier branches, and those of all steps before ``step``."""
        newest = len(self._starts) - 1
        memorized = self._told.gates(step) if self._told else ()
        found = (g for g in (*self._gates, *memorized) if g.branch < newest or g.step < step)
        return tuple(sorted(found, key=lambda gate: gate.place))

    def gate(self, step: int, error: NoLongerValid, lists: Mapping[str, str]) -> tuple[Gate, ...]:
        """Leave out from ``step`` on what ended. Returns the new gates, equal on all ranks.
        ``lists``: name of what was revoked → digest of the list; only rank 0's is used."""
        corpora = newly_left_out(error, self._on_expiry, self._credentials, self.left_out(step))
        assert error.time is not None
        found = {end.name: end for end in error.ends}
        new = []
        for corpus in corpora:
            end = found[self._credentials[corpus]]
            revoked = end.reason == "revoked"
            new.append(
                Gate(
                    branch=self.branch(step),
                    step=step,
                    corpus=corpus,
                    reason=end.reason,
                    since=format_time(end.since),
                    time=format_time(error.time),
                    # Only rank 0 knows the lists, and only rank 0 records gates.
                    revocations=lists.get(end.name, _UNKNOWN) if revoked else None,
                )
            )
        self._gates = joined((*self._gates, *new))
        return tuple(new)


_UNKNOWN = "sha256:" + "0" * 64
