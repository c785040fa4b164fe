"""Gates: from which step on a run no longer trained on a corpus as before, and why.

Under a policy with ``on_expiry: gate``, a credential that expires or is revoked doesn't stop a run.
Under one with a ``memorization`` section, neither does a corpus that the model memorizes. The
corpus's rows are left out from that step on, as if they were tombstones of the plan, and a gate
records it. Where the policy names a fallback that permits something, the rows are read as before,
and train by the fallback's route. The leaves show the effect, the gates the cause. A verifier
accepts a leaf that lacks rows of its plan, or names another route, only if a gate says so.

`changed_routes` says which route rows take, by gates and by the phases of their route. All that
trains, records, adds up or verifies asks it.

``governance/gates.jsonl`` holds one gate a line, canonical, sorted by branch, step and corpus. It
is there exactly if there are gates.

Invariants: in a branch a corpus is gated at most once by its credential and once for memorization,
and nothing lifts a gate. A gate of a credential is a fact of its time, and holds from the first
step of every later branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal, Self

from pydantic import model_validator

from govray.errors import Malformed, Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Natural, ShortText
from govray.governance.formats.document import Digest, Document, Name, Timestamp, parse_time
from govray.governance.policy.corpus_routes import Fallback
from govray.governance.policy.route import Route

MAX_GATES = 1_000_000
MAX_LINE = 1 << 14


class Gate(Document):
    """One corpus left out, or sent elsewhere, from one step on. The times are the signer's own
    assertion.

    Attributes:
        branch: Of the ledger.
        step: The first step without the corpus, or by its fallback.
        corpus: Which.
        reason: Its credential no longer held, or it was found to be memorized.
        fallback: The profile that its rows follow from then on; absent if they are left out.
        since: The first instant at which the credential no longer held; absent if it did.
        time: The time on which the ranks agreed in the step, at ``since`` or later.
        revocations: Digest of the revocation list; present exactly if it was revoked.
        evidence: Digest of the entropy profile that completed the evidence; present exactly if
            it was memorized.
    """

    branch: Natural = 0
    step: Natural
    corpus: Name
    reason: Literal["expired", "revoked", "memorization"]
    fallback: ShortText | None = None
    since: Timestamp | None = None
    time: Timestamp | None = None
    revocations: Digest | None = None
    evidence: Digest | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.reason == "memorization") != (self.evidence is not None):
            raise ValueError("evidence stands exactly where a corpus was memorized")
        if self.fallback is not None and self.reason != "memorization":
            raise ValueError("a corpus whose credential ended has no fallback")
        if self.reason == "memorization":
            if self.since is not None or self.time is not None:
                raise ValueError("memorization has evidence, and no time")
        elif self.since is None or self.time is None:
            raise ValueError("a credential that ended did so at a time, and was found to at one")
        elif self.time < self.since:
            raise ValueError("a gate before the credential ended")
        if (self.reason == "revoked") != (self.revocations is not None):
            raise ValueError("the list's digest stands exactly where a credential was revoked")
        return self

    @property
    def place(self) -> tuple[int, int, str, bool]:
        """Branch, step, corpus and kind: the order of the file."""
        return self.branch, self.step, self.corpus, not self.legal

    @property
    def legal(self) -> bool:
        """Whether a credential ended."""
        return self.evidence is None

    @property
    def last_use(self) -> datetime | None:
        """The last second in which the credential held; None where memorization is the reason."""
        return parse_time(self.since) - timedelta(seconds=1) if self.since else None


def encode_gates(gates: Iterable[Gate]) -> bytes:
    """The file's bytes, whatever the order of ``gates``."""
    ordered = sorted(gates, key=lambda gate: gate.place)
    return b"".join(canonical_json.encode(gate.to_json()) + b"\n" for gate in ordered)


def read_gates(data: bytes) -> tuple[Gate, ...]:
    """The gates in a file. Raises ``Malformed``: lines not canonical or out of order, or a corpus
    gated twice in a branch."""
    if data and not data.endswith(b"\n"):
        raise Malformed("the last line is cut off", where="gates.jsonl")
    lines = data.split(b"\n")[:-1]
    if len(lines) > MAX_GATES:
        raise Malformed(f"more than {MAX_GATES} gates", where="gates.jsonl")
    gates: list[Gate] = []
    seen: set[tuple[int, str, bool]] = set()
    for number, line in enumerate(lines, start=1):
        where = f"gates.jsonl line {number}"
        value = canonical_json.parse_canonical(line, limit=MAX_LINE, where=where)
        gate = Gate.from_json(value, where=where)
        if gates and gate.place <= gates[-1].place:
            raise Malformed("out of order", where=where)
        if (gate.branch, gate.corpus, gate.legal) in seen:
            raise Malformed(f"corpus {gate.corpus!r} is gated a second time", where=where)
        seen.add((gate.branch, gate.corpus, gate.legal))
        gates.append(gate)
    return tuple(gates)


def joined(gates: Iterable[Gate]) -> tuple[Gate, ...]:
    """One for each branch, corpus and kind, the one that comes first."""
    found: dict[tuple[int, str, bool], Gate] = {}
    for gate in sorted(gates, key=lambda gate: gate.place):
        found.setdefault((gate.branch, gate.corpus, gate.legal), gate)
    return tuple(sorted(found.values(), key=lambda gate: gate.place))


def carried(gates: Iterable[Gate], starts: Sequence[int]) -> tuple[Gate, ...]:
    """Credentials' gates, and those that follow from them on later branches.
    ``gates``: of any reason; others than credentials' are left out."""
    legal = [gate for gate in gates if gate.legal]
    later = [
        gate.model_copy(update={"branch": branch, "step": starts[branch]})
        for gate in legal
        for branch in range(gate.branch + 1, len(starts))
    ]
    return joined([*legal, *later])


def on_lineage(gates: Iterable[Gate], starts: Sequence[int]) -> tuple[Gate, ...]:
    """As a run without rollbacks would have them that ends with the same state: in branch 0."""
    # A branch's steps count up to where a later one begins, the earliest of those.
    ends = [min(starts[branch + 1 :], default=None) for branch in range(len(starts))]
    effective = [
        gate.model_copy(update={"branch": 0})
        for gate in gates
        if (end := ends[gate.branch]) is None or gate.step < end
    ]
    return joined(effective)


def changed_routes(
    gates: Iterable[Gate],
    fallbacks: Mapping[str, Fallback],
    branch: int,
    step: int,
    phased: Mapping[str, Route] = MappingProxyType({}),
) -> dict[str, Route | None]:
    """Corpus → the route that its rows take in one step of one branch, where it isn't the corpus's
    own in its first phase.

    None stands for a corpus that is left out. A credential that ended leaves it out, whatever else
    is so. After any other gate no phase matters, since a fallback is narrower than each.

    Args:
        gates: Of any branches.
        fallbacks: Corpus → fallback, of the run's policy and model.
        phased: Corpus → route, of the corpora whose route has phases.

    Raises:
        Refused: A gate names another fallback than the policy does.
    """
    later = {corpus: route.later_at(step) for corpus, route in phased.items()}
    by_phase = {corpus: route for corpus, route in later.items() if route is not None}
    return by_phase | _by_gates(gates, fallbacks, branch, step)


def _by_gates(
    gates: Iterable[Gate], fallbacks: Mapping[str, Fallback], branch: int, step: int
) -> dict[str, Route | None]:
    found: dict[str, Route | None] = {}
    for gate in gates:
        if gate.branch != branch or gate.step > step:
            continue
        if gate.fallback is None:
            found[gate.corpus] = None
            continue
        fallback = fallbacks.get(gate.corpus)
        if fallback is None or fallback.profile != gate.fallback:
            raise Refused(
                f"it falls back to profile {gate.fallback!r}, and the policy names "
                f"{fallback.profile if fallback else 'none'}",
                where=f"gate of corpus {gate.corpus} in step {gate.step}",
            )
        found.setdefault(gate.corpus, fallback.route)
    return found
