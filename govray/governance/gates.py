"""Gates: from which step on a run no longer trained on a corpus whose credential had ended.

Under a policy with ``on_expiry: gate``, a credential that expires or is revoked while a run goes on
doesn't stop it: the corpus's rows are left out from that step on, as if they were tombstones of
the plan, and a gate records it. The leaves show the effect, the gates the cause: a verifier
accepts a leaf that lacks rows of its plan only where a gate says so.

``governance/gates.jsonl`` holds one gate a line, canonical, sorted by branch, step and corpus. It
is there exactly if there are gates.

Invariants: a corpus is gated at most once in a branch, and nothing lifts a gate. What this module
does not do: decide when to gate (``train/gating.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from govray.errors import Malformed
from govray.governance import canonical
from govray.governance.document import Digest, Document, Name, Timestamp

MAX_GATES = 1_000_000
MAX_LINE = 1 << 14

Natural = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]


class Gate(Document):
    """One corpus left out from one step on. The times are the signer's own assertion.

    Attributes:
        branch: Of the ledger.
        step: The first step without the corpus.
        corpus: Which.
        reason: Why its credential no longer held.
        since: The first instant at which it no longer held.
        time: The time on which the ranks agreed in the step, at ``since`` or later.
        revocations: Digest of the revocation list; present exactly if it was revoked.
    """

    branch: Natural = 0
    step: Natural
    corpus: Name
    reason: Literal["expired", "revoked"]
    since: Timestamp
    time: Timestamp
    revocations: Digest | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.time < self.since:
            raise ValueError("a gate before the credential ended")
        if (self.reason == "revoked") != (self.revocations is not None):
            raise ValueError("the list's digest stands exactly where a credential was revoked")
        return self

    @property
    def place(self) -> tuple[int, int, str]:
        """Branch, step and corpus: the order of the file."""
        return self.branch, self.step, self.corpus


def encode_gates(gates: Iterable[Gate]) -> bytes:
    """The file's bytes, whatever the order of ``gates``."""
    ordered = sorted(gates, key=lambda gate: gate.place)
    return b"".join(canonical.encode(gate.to_json()) + b"\n" for gate in ordered)


def read_gates(data: bytes) -> tuple[Gate, ...]:
    """The gates in a file.

    Raises:
        Malformed: A line is too long, not canonical or no gate; lines are out of order; or a
            corpus is gated twice in a branch. Names the line, counted from 1.
    """
    if data and not data.endswith(b"\n"):
        raise Malformed("the last line is cut off", where="gates.jsonl")
    lines = data.split(b"\n")[:-1]
    if len(lines) > MAX_GATES:
        raise Malformed(f"more than {MAX_GATES} gates", where="gates.jsonl")
    gates: list[Gate] = []
    seen: set[tuple[int, str]] = set()
    for number, line in enumerate(lines, start=1):
        where = f"gates.jsonl line {number}"
        value = canonical.parse_canonical(line, limit=MAX_LINE, where=where)
        gate = Gate.from_json(value, where=where)
        if gates and gate.place <= gates[-1].place:
            raise Malformed("out of order", where=where)
        if (gate.branch, gate.corpus) in seen:
            raise Malformed(f"corpus {gate.corpus!r} is gated a second time", where=where)
        seen.add((gate.branch, gate.corpus))
        gates.append(gate)
    return tuple(gates)


def gated(gates: Iterable[Gate], branch: int, step: int) -> frozenset[str]:
    """The corpora that are left out in one step of one branch."""
    return frozenset(g.corpus for g in gates if g.branch == branch and g.step <= step)
