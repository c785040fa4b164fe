"""What an estimate of influence says of one output, and what it can't say.

The report is for who asked. It is signed by nobody and stored nowhere. No attestation, ledger or
registry has a field for it.

Signs: a positive estimate is how far training on something *lowered* the output's loss, in nats a
token. So it made the output likelier. A negative one made it less likely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from govray.engine.influence.sampled_total import SampledTotal

LABEL = "an estimate: no evidence, and in no attestation"

LIMITS = (
    "It adds up first-order terms. `govray replay RUN --without CORPUS` measures what leaving a "
    "corpus out changes.",
    "On small models the order of corpora agreed only in part with leaving them out, and sizes "
    "did not.",
    "It counts direct updates alone. What a corpus changed through layers that others then "
    "trained is not in it.",
    "Weights count as fixed between kept checkpoints. Clipping, momentum and weight decay are left "
    "out, so compare estimates with each other.",
    "Intervals cover the choice of records, and no error of the method.",
    "Records were sampled: one that is not named may matter more.",
)
"""What a report can't say, in words that it carries."""

FINAL_ONLY = "Only the final weights are kept, so all steps are judged by them."
OWN_LOOP = "The run has a loop of its own: rates are those of the experiment file's schedule."
AVERAGED = "The weights are those of training, and not their average, which the run keeps too."


@dataclass(frozen=True, kw_only=True)
class CorpusInfluence:
    """The estimate for one corpus.

    Attributes:
        corpus: Which.
        category: Its licence class.
        total: Nats a token of the output.
        sampled, read: Records that were looked at, and that the run read.
        targets: Loss targets that the run read of it, canaries left out.
        layers: Layer groups that it trained and the output is read with. None: the total is 0 by
            construction.
    """

    corpus: str
    category: str
    total: SampledTotal
    sampled: int
    read: int
    targets: int
    layers: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As the report states it."""
        return {
            "corpus": self.corpus,
            "licenseCategory": self.category,
            **_stated(self.total),
            "recordsSampled": self.sampled,
            "recordsRead": self.read,
            "targets": str(self.targets),
            "layers": list(self.layers),
        }


@dataclass(frozen=True, kw_only=True)
class RecordInfluence:
    """The estimate for one sampled record.

    Attributes:
        corpus, record: Whose, and its number.
        entry: What stands for it in the manifest, in hex.
        value: Nats a token of the output, over all times that it was read.
        targets: Its loss targets that were read.
    """

    corpus: str
    record: int
    entry: str
    value: float
    targets: int

    def to_json(self) -> dict[str, Any]:
        """As the report states it."""
        return {
            "corpus": self.corpus,
            "record": self.record,
            "entry": f"sha256:{self.entry}",
            "estimate": self.value,
            "targets": self.targets,
        }


@dataclass(frozen=True, kw_only=True)
class SumCheck:
    """What all estimates for the steps between the first and the last checkpoint add up to.

    Attributes:
        fell: How far the output's loss did fall between them, nats a token.
        estimated: The sum. Its distance from ``fell`` says how far sizes are off.
    """

    fell: float
    estimated: float

    def to_json(self) -> dict[str, float]:
        """As the report states it."""
        return {"lossFell": self.fell, "estimatesAddUpTo": self.estimated}


@dataclass(frozen=True, kw_only=True)
class InfluenceReport:
    """The estimates for one output.

    Attributes:
        run: Whose model.
        adapter: The adapter that the output was read with, if any.
        tokens: Of the output.
        loss: Of the output under the final weights, nats a token.
        checkpoints: The next step of each commit whose weights were used.
        check: The sum beside what the output's loss did; None with one checkpoint.
        scaled: Whether the optimizer's second moments scaled the gradients.
        seed: Of the sample and the bootstrap.
        notes: What else this report can't say.
        corpora: The largest estimate first.
        records: Every sampled record, the largest estimate first.
    """

    run: str
    adapter: str | None
    tokens: int
    loss: float
    checkpoints: tuple[int, ...]
    check: SumCheck | None
    scaled: bool
    seed: int
    notes: tuple[str, ...]
    corpora: tuple[CorpusInfluence, ...]
    records: tuple[RecordInfluence, ...]

    @property
    def categories(self) -> dict[str, SampledTotal]:
        """Licence class → the sum over its corpora, the largest first."""
        parts: dict[str, list[SampledTotal]] = {}
        for each in self.corpora:
            parts.setdefault(each.category, []).append(each.total)
        sums = {category: SampledTotal.sum(totals) for category, totals in parts.items()}
        return dict(sorted(sums.items(), key=lambda item: -item[1].value))

    def likelier(self, most: int) -> Sequence[RecordInfluence]:
        """At most so many records that made the output likelier, the strongest first."""
        return [each for each in self.records if each.value > 0][:most]

    def unlikelier(self, most: int) -> Sequence[RecordInfluence]:
        """At most so many records that made the output less likely, the strongest first."""
        return [each for each in reversed(self.records) if each.value < 0][:most]

    @property
    def limits(self) -> tuple[str, ...]:
        """What this report can't say."""
        return LIMITS + self.notes

    def to_json(self, top: int) -> dict[str, Any]:
        """The report, with at most ``top`` records of either sign."""
        return {
            "label": LABEL,
            "run": self.run,
            "output": {"tokens": self.tokens, "lossNats": self.loss, "adapter": self.adapter},
            "method": {
                "name": "TracInCP",
                "checkpoints": list(self.checkpoints),
                "scaledByOptimizer": self.scaled,
                "seed": self.seed,
                "unit": "nats a token by which training lowered the output's loss",
            },
            "sumCheck": self.check and self.check.to_json(),
            "corpora": [each.to_json() for each in self.corpora],
            "licenseCategories": [
                {"licenseCategory": category, **_stated(total)}
                for category, total in self.categories.items()
            ],
            "records": {
                "likelier": _listed(self.likelier(top)),
                "unlikelier": _listed(self.unlikelier(top)),
            },
            "cannotSay": list(self.limits),
        }


def _stated(total: SampledTotal) -> dict[str, float]:
    low, high = total.interval
    return {"estimate": total.value, "low": low, "high": high}


def _listed(records: Iterable[RecordInfluence]) -> list[dict[str, Any]]:
    return [each.to_json() for each in records]
