"""A credential that ends while a run goes on: which corpora are left out, from which step on.

`decide` is the decision. Its inputs are equal on all ranks, so its result is, and all ranks leave
the same corpora out of the same step, or stop together. The step in whose agreement something
lapsed is itself done without it: no weight has moved by then.

What was decided is never decided again. Steps that a run has recorded are repeated as they were,
after a crash and in a replay, whatever the clock says by then; and nothing lifts a gate.

Source of past decisions: the run's event log, its write-ahead leaves, and the gates that each
commit holds. What this module does not do: read a clock or a revocation list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from govray.engine import checkpoint
from govray.engine.lapse import Lapsed
from govray.errors import GovrayError, InfrastructureFailed
from govray.governance.document import format_time
from govray.governance.gates import Gate, read_gates
from govray.train import events
from govray.train.writeahead import recorded_steps

OnExpiry = Literal["stop", "gate"]

GATES = "gates.jsonl"
"""A commit's file of gates; there if there are any."""


@dataclass(frozen=True)
class Decisions:
    """What a run has decided.

    Attributes:
        until: Steps below it were run and recorded; they are repeated as they were.
        gates: Corpora left out, and from which step on; a corpus once.
    """

    until: int = 0
    gates: tuple[Gate, ...] = ()

    def joined(self, other: Decisions) -> Decisions:
        """Both; of two gates of one corpus, the one that came first."""
        gates: dict[str, Gate] = {}
        for gate in sorted((*self.gates, *other.gates), key=lambda gate: gate.place):
            gates.setdefault(gate.corpus, gate)
        ordered = sorted(gates.values(), key=lambda gate: gate.place)
        return Decisions(max(self.until, other.until), tuple(ordered))


UNDECIDED = Decisions()


def decisions(run_folder: Path) -> Decisions:
    """What the run in this folder has decided so far; nothing, if it has not begun.

    Raises:
        Malformed: Its event log or its write-ahead file is damaged.
    """
    logged = tuple(
        event.gate for event in events.read(run_folder) if isinstance(event, events.Gated)
    )
    return Decisions(recorded_steps(run_folder), logged).joined(Decisions())


def resumed(run_folder: Path, commit: checkpoint.Folder | None) -> Decisions:
    """`decisions`, and the gates that a commit holds, should the event log be lost.

    Raises:
        InfrastructureFailed: Remote storage refuses.
        Malformed: As `decisions`.
    """
    held: tuple[Gate, ...] = ()
    if commit is not None:
        # A commit that turns out damaged is found, and put aside, by the workers that load it.
        try:
            files = checkpoint.open_commit(commit).files
            held = read_gates(files[GATES]) if GATES in files else ()
        except InfrastructureFailed:
            raise
        except GovrayError:
            pass
    return decisions(run_folder).joined(Decisions(gates=held))


def credential_name(corpus: str) -> str:
    """Under which name a corpus's credential expires."""
    return f"credential {corpus}"


def decide(
    lapsed: Lapsed, on_expiry: OnExpiry, credentials: Mapping[str, str], left_out: Iterable[str]
) -> tuple[str, ...]:
    """The corpora that the run goes on without, besides those left out before; sorted.

    Args:
        lapsed: What no longer holds.
        on_expiry: What the policy says.
        credentials: Every corpus that the run reads → the name of its credential.
        left_out: Corpora left out before.

    Raises:
        Lapsed: The run stops: the policy says so, or is itself what ended, or nothing would
            be left to train on.
    """
    names = {lapse.name for lapse in lapsed.lapses}
    if on_expiry == "stop" or not names or names - set(credentials.values()):
        raise lapsed
    ended = {corpus for corpus, name in credentials.items() if name in names}
    if not credentials.keys() - ended - set(left_out):
        raise Lapsed(
            f"{lapsed.what}; no corpus is left to train on",
            where=lapsed.where,
            do=lapsed.do,
            time=lapsed.time,
            lapses=lapsed.lapses,
        )
    return tuple(sorted(ended))


class Gating:
    """The gates of one worker's run.

    Args:
        on_expiry: What the policy says.
        names: Of all that expires: the credentials', by `credential_name`, and the policy's.
        corpora: That the run reads.
        past: What was decided before.
    """

    def __init__(
        self, on_expiry: OnExpiry, names: Iterable[str], corpora: Iterable[str], past: Decisions
    ) -> None:
        known = set(names)
        self._on_expiry = on_expiry
        self._credentials = {
            corpus: credential_name(corpus)
            for corpus in corpora
            if credential_name(corpus) in known
        }
        self._gates = {gate.corpus: gate for gate in past.gates}

    def left_out(self, step: int) -> dict[str, str]:
        """Corpora that this step leaves out → the names of their credentials."""
        return {
            corpus: credential_name(corpus)
            for corpus, gate in self._gates.items()
            if gate.step <= step
        }

    def gates(self, step: int) -> tuple[Gate, ...]:
        """The gates of all steps before ``step``."""
        held = (gate for gate in self._gates.values() if gate.step < step)
        return tuple(sorted(held, key=lambda gate: gate.place))

    def gate(self, step: int, lapsed: Lapsed, lists: Mapping[str, str]) -> tuple[Gate, ...]:
        """Leave what lapsed out from ``step`` on, and return the new gates. Equal on all ranks.

        Args:
            step: The step that was agreed on.
            lapsed: What no longer holds.
            lists: Name of what was revoked → digest of the list that says so; rank 0's.

        Raises:
            Lapsed: The run stops.
        """
        corpora = decide(lapsed, self._on_expiry, self._credentials, self.left_out(step))
        assert lapsed.time is not None
        found = {lapse.name: lapse for lapse in lapsed.lapses}
        new = []
        for corpus in corpora:
            lapse = found[self._credentials[corpus]]
            revoked = lapse.reason == "revoked"
            new.append(
                Gate(
                    step=step,
                    corpus=corpus,
                    reason=lapse.reason,
                    since=format_time(lapse.since),
                    time=format_time(lapsed.time),
                    # Only rank 0 knows, and only rank 0 writes gates down.
                    revocations=lists.get(lapse.name, _UNKNOWN) if revoked else None,
                )
            )
        self._gates |= {gate.corpus: gate for gate in new}
        return tuple(new)


_UNKNOWN = "sha256:" + "0" * 64
