"""Memorization as a governed quantity: what is measured, what a policy says of it, what follows.

An **entropy profile** is a table of measures. Each compares, at one layer, rows of a corpus that
were trained on (probe rows) with rows that never were (reserve rows). It has mean predictive
entropy, entropy-normalised surprise and Min-K%++ of each side. It counts how many of the best
known records of both sides were trained on, by the named statistic. These are facts: what evidence
they are follows from them (``rank_evidence.py``). A profile stands in the ledger, behind the leaf
of the step after which it was measured.

Decisions are pure functions of recorded profiles and the signed policy, so run and verifier come to
the same ones. ``e_process.py`` decides, by the evidence of the whole run.

* **One domain never decides for another.** The procedure runs over the corpora of one domain, and
  rollbacks are counted per domain. So an adapter's corpus changes neither a threshold nor the
  budget of the trunk.
* A corpus that was gated is not decided on again, also where the gate sent it to a fallback. A
  rollback whose budget is spent is a gate that leaves the corpus out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from govray.errors import Refused
from govray.governance.formats import canonical_json
from govray.governance.formats.bounds import Natural, Positive, ShortText
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.policy.memorization_section import (
    Action,
    Magnitude,
    Monitoring,
    Number,
    Statistic,
)
from govray.governance.record import rank_evidence

Layer = ShortText


class Side(Document):
    """Means over the records of one side, per token.

    Attributes:
        records: How many.
        entropy: Predictive entropy, in nats.
        surprise: Entropy-normalised surprise; absent where the layer has none.
        min_k: Min-K%++ score; absent where the layer has none.
    """

    records: Positive
    entropy: Number
    surprise: Number | None = None
    min_k: Number | None = None


class Measure(Document):
    """One corpus at one layer: records trained on against records of its reserve.

    Attributes:
        corpus: Whose records.
        layer: At which layer's output.
        probe: Those trained on.
        reserve: Those never trained on.
        top: Of the best known of both sides, how many were trained on: one count for each of
            ``rank_evidence.FRACTIONS``.
        tested: Whether they were drawn without regard to their lengths. Others show what was
            measured, and are no evidence.
    """

    corpus: Name
    layer: Layer
    probe: Side
    reserve: Side
    top: tuple[Natural, ...]
    tested: bool = True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            rank_evidence.check_counts(self.probe.records, self.reserve.records, self.top)
        except Refused as impossible:
            raise ValueError(str(impossible)) from None
        return self

    def e(self, odds: float) -> float:
        """Evidence that the odds ratio is larger than this."""
        if not self.tested:
            return 1.0
        return rank_evidence.e_value(self.probe.records, self.reserve.records, self.top, odds)

    @property
    def place(self) -> tuple[str, str]:
        """Corpus and layer: the order in a profile."""
        return self.corpus, self.layer


class EntropyProfile(Document):
    """What was measured after one step; a leaf of the ledger, behind that of its step.

    Attributes:
        branch: Of the ledger.
        step: The last step that the measured weights hold.
        statistic: By which records were ranked.
        measures: Sorted by corpus and layer; at least one.
    """

    kind: Literal["entropyProfile"] = "entropyProfile"
    branch: Natural = 0
    step: Natural
    statistic: Statistic
    measures: Annotated[tuple[Measure, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        places = [measure.place for measure in self.measures]
        if places != sorted(set(places)):
            raise ValueError("measures are not sorted by corpus and layer, or not distinct")
        return self

    @property
    def line(self) -> bytes:
        """The leaf's canonical bytes, without newline."""
        return canonical_json.encode(self.to_json())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the line; how evidence is named."""
        return canonical_json.sha256(self.line)

    @property
    def corpora(self) -> frozenset[str]:
        """Whose rows were measured."""
        return frozenset(measure.corpus for measure in self.measures)

    def of(self, corpus: str) -> tuple[Measure, ...]:
        """The measures of one corpus."""
        return self._by_corpus.get(corpus, ())

    @cached_property
    def _by_corpus(self) -> dict[str, tuple[Measure, ...]]:
        # Decisions ask for each corpus in each profile of a run.
        found = groupby(self.measures, key=lambda measure: measure.corpus)
        return {corpus: tuple(measures) for corpus, measures in found}


@dataclass(frozen=True)
class MonitoredCorpus:
    """What policy and routes say of a corpus that is measured.

    Attributes:
        fallback: The profile that a gate sends it to; None if a gate leaves it out.
        profiles: How many profiles a run makes of it; 0 if none could flag it.
    """

    domain: str
    action: Action
    fallback: str | None = None
    profiles: int = 0

    def action_after(self, rollbacks: int, section: Monitoring) -> Action:
        """What follows when its domain has had so many rollbacks: a gate once they are spent."""
        spent = self.action == "rollback" and rollbacks >= section.rollbacks
        return "gate" if spent else self.action


class MonitorDecision(Document):
    """What followed from a profile for one corpus.

    Attributes:
        branch, step: Of the profile that completed the evidence.
        corpus: Which.
        action: What followed; ``gate`` also where the budget of rollbacks was spent, and
            ``noticed`` where no step came after a gate, so that nothing followed.
        fallback: The profile that its rows follow after a gate; absent if it is left out.
        layers: Whose evidence alone is enough, sorted.
        evidence: Digests of the profiles since then, oldest first.
        since: The step after the corpus's last calm profile, 0 without one. A rollback leaves
            the corpus out from there on.
        e: The corpus's evidence by then.
    """

    branch: Natural = 0
    step: Natural
    corpus: Name
    action: Action | Literal["noticed"]
    fallback: ShortText | None = None
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    evidence: Annotated[tuple[Digest, ...], Field(min_length=1)]
    since: Natural
    e: Magnitude

    @property
    def followed(self) -> str:
        """What followed, in words."""
        return {
            "flag": "flagged",
            "gate": f"rerouted to {self.fallback}" if self.fallback else "left out",
            "rollback": "rolled back",
            "noticed": "noticed at the end, nothing followed",
        }[self.action]

    def at_the_end(self) -> MonitorDecision:
        """What the decision is if no step comes after it."""
        if self.action != "gate":
            return self
        return self.model_copy(update={"action": "noticed", "fallback": None})
