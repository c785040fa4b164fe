"""Which corpora and records moved a run's model towards one output, to first order.

1. The output's loss and its gradient, at the weights of each kept commit.
2. For each corpus, the direction that its route leaves of it
   (``engine/influence/routed_direction.py``). It has the steps' learning rates and counts, and the
   optimizer's second moments as that commit holds them.
3. Along it, the slope of each loss target's loss, in rows of sampled records.
4. Of a record: the sum over its targets, as often as the steps since the commit before read them.
   Of a corpus: what its sampled records say of all (``engine/influence/sampled_total.py``).

That is TracInCP, with the reads, rates and counts that the run recorded. A corpus that the policy
sends to an adapter has a direction in that adapter alone. So an output that is read without the
adapter gets exactly 0 from it.

Invariants:

* **Bounded**: parameters, commits and rows have limits, and a larger question is refused.
* **Repeatable**: the same run, output, seed and machine give the same report.
* Nothing is written: neither run nor model changes.

Weights are read in float64, on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from govray.data.records_file import open_records
from govray.data.step_reader import ArrowRows
from govray.engine.influence.loss_slopes import loss_slopes
from govray.engine.influence.optimizer_scale import optimizer_scale
from govray.engine.influence.output_gradient import output_gradient
from govray.engine.influence.routed_direction import routed_direction
from govray.engine.influence.sampled_total import SampledTotal, sampled_total
from govray.errors import GovrayError, InfrastructureFailed, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.governance.policy.credential import Credential
from govray.governance.policy.route import Route
from govray.governance.record.ledger import read_leaves
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import PreparedRecords
from govray.train.attest.audited_model import (
    AuditedModel,
    load_model,
    standing_leaves,
    take_commit,
    tokenizer_of,
)
from govray.train.checkpoint import commit_folder
from govray.train.influence.corpus_reading import CorpusReading, corpus_readings
from govray.train.influence.influence_report import (
    AVERAGED,
    FINAL_ONLY,
    OWN_LOOP,
    CorpusInfluence,
    InfluenceReport,
    RecordInfluence,
    SumCheck,
)
from govray.train.influence.record_sample import (
    RecordSample,
    canary_targets,
    own_rows,
    row_owners,
    sample_records,
)
from govray.train.influence.step_rates import step_rates
from govray.train.inputs.recorded_inputs import RecordedInputs, recorded_inputs
from govray.train.loop.entrypoint import own_loop
from govray.train.state.carried_governance import read_ledger
from govray.train.state.snapshot import committed_folders
from govray.train.state.trained_model import OPTIMIZER, OPTIMIZER_VALUES

MOST_PARAMETERS = 200_000_000
"""Weights, gradient and one direction are held in float64: 24 bytes a parameter."""
MOST_COMMITS = 8
"""Commits whose weights are used; of more, so many are taken evenly."""
MOST_ROWS = 20_000
"""Rows that are read, a row counting once for each commit."""

Progress = Callable[[int, int], None]
"""Called with (commits done, commits in all)."""


@dataclass(frozen=True, kw_only=True)
class OutputQuestion:
    """One output, and how to look at it.

    Attributes:
        output: The text.
        prompt: What stands before it. A separator stands before both, as when a model answers.
        adapter: The adapter that it is read with; the base model alone by default.
        records: Sampled of each corpus, at most.
        seed: Of the sample and the bootstrap.
    """

    output: str
    prompt: str = ""
    adapter: str | None = None
    records: int = 32
    seed: int = 0


def output_influence(
    run: Path, question: OutputQuestion, progress: Progress = lambda done, total: None
) -> InfluenceReport:
    """Estimate the influence of what a run read on one output.

    Args:
        run: The folder of a finished run.
        question: The output.
        progress: Called before each commit.

    Raises:
        UsageError: No run's folder, one that a script started, or rows that are no text. Or there
            is no output, it is too long, or the run has no such adapter. Or the model or the sample
            is larger than the limits.
        CouldNotCheck: The run has not ended, or its data or tokenizer is not here.
        Refused: What the run recorded does not verify, or stored bytes were changed.
    """
    audited = load_model(run)
    _require_small(audited)
    recorded = recorded_inputs(run, audited.record)
    manifest = recorded.manifest.document
    if manifest.rows is not None:
        raise UsageError(
            f"influence is estimated over packed text, and the run read {manifest.rows.run_kind}",
            where=str(run),
            do="Ask about a run over text",
        )
    if question.adapter is not None and question.adapter not in audited.adapted:
        names = ", ".join(sorted(audited.adapted)) or "none"
        raise UsageError(
            "the run left no such adapter", where=question.adapter, do=f"It left {names}"
        )
    tokens, start = _tokens(question, recorded, manifest)
    commits = _spread(_whole_commits(run, audited.record.steps), MOST_COMMITS)
    estimator = _Estimator(run, audited, recorded, question, tokens, start)
    return estimator.report(commits, progress)


def _require_small(audited: AuditedModel) -> None:
    named = [*audited.model.parameters(), *(p for _, p in audited.adapters.named_parameters())]
    count = sum(each.numel() for each in named)
    if count > MOST_PARAMETERS:
        raise UsageError(
            f"the model has {count:,} parameters, and at most {MOST_PARAMETERS:,} are taken",
            where="influence",
            do="Ask about a smaller model, or measure by `govray replay --without`",
        )


def _tokens(
    question: OutputQuestion, recorded: RecordedInputs, manifest: Manifest
) -> tuple[list[int], int]:
    """Token ids of separator, prompt and output, and where the output begins."""
    tokenizer = tokenizer_of(recorded, manifest)

    def encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text.encode())]

    tokens = [manifest.tokenizer.separator, *encode(question.prompt + question.output)]
    start = min(1 + len(encode(question.prompt)), len(tokens) - 1)
    if not question.output or len(tokens) < 2:
        raise UsageError("there is no output", where="--output", do="Give the text")
    if len(tokens) - 1 > manifest.context:
        raise UsageError(
            f"prompt and output have {len(tokens) - 1:,} tokens, and the model reads at most "
            f"{manifest.context:,}",
            where="--prompt, --output",
            do="Give the end of the prompt, or a part of the output",
        )
    return tokens, start


def _whole_commits(run: Path, steps: int) -> list[tuple[int, commit_folder.Committed]]:
    """The run's whole commits by next step, ascending; the last is the final one."""
    found = []
    for step, folder in committed_folders(run):
        try:
            committed = commit_folder.open_commit(folder)
        except InfrastructureFailed:
            raise
        except GovrayError:  # an interrupted one counts as absent, as when a run resumes
            continue
        if 0 < step <= steps:
            found.append((step, committed))
    return sorted(found, key=lambda each: each[0])


def _spread(
    commits: list[tuple[int, commit_folder.Committed]], most: int
) -> list[tuple[int, commit_folder.Committed]]:
    """At most so many of them, evenly, the last among them."""
    if len(commits) <= most:
        return commits
    return [commits[(place + 1) * len(commits) // most - 1] for place in range(most)]


@dataclass
class _Estimator:
    run: Path
    audited: AuditedModel
    recorded: RecordedInputs
    question: OutputQuestion
    tokens: list[int]
    start: int
    found: dict[str, dict[int, list[_Part]]] = field(default_factory=dict)
    layers: dict[str, dict[str, None]] = field(default_factory=dict)

    def report(
        self, commits: list[tuple[int, commit_folder.Committed]], progress: Progress
    ) -> InfluenceReport:
        readings = self._readings(commits)
        samples = self._samples(readings)
        shown = self._shown(samples)
        _to_float64(self.audited)
        scaled = False
        losses: list[float] = []
        for done, ((_, committed), some) in enumerate(zip(commits, readings, strict=True)):
            progress(done, len(commits))
            take_commit(self.audited, committed, self.run)
            scales = _scales(committed)
            scaled = scaled or scales is not None
            loss, gradient = output_gradient(
                self.audited.model,
                self.audited.adapters,
                self.tokens,
                self.start,
                adapter=self.question.adapter,
            )
            losses.append(loss)
            for reading in some:
                sample, rows = samples[reading.corpus], shown[reading.corpus]
                self._add(done, reading, gradient, scales, sample, rows)
        return InfluenceReport(
            run=self.audited.record.run_id,
            adapter=self.question.adapter,
            tokens=len(self.tokens) - self.start,
            loss=losses[-1],
            checkpoints=tuple(step for step, _ in commits),
            check=self._check(losses, samples, readings),
            scaled=scaled,
            seed=self.question.seed,
            notes=self._notes(commits),
            corpora=self._corpora(samples, readings),
            records=self._records(samples),
        )

    # What was read

    @property
    def _manifest(self) -> Manifest:
        return self.recorded.manifest.document

    @cached_property
    def _prepared(self) -> PreparedRecords:
        return open_records(self.recorded.prepared, self._manifest)

    def _taken(self, corpus: str, route: str | None) -> Route:
        stream = self.audited.record.plan.stream_of(corpus)
        assert stream is not None  # a leaf's corpora are the plan's
        return self.recorded.routes[route or stream.id]

    def _readings(
        self, commits: list[tuple[int, commit_folder.Committed]]
    ) -> list[list[CorpusReading]]:
        leaves = standing_leaves(read_leaves(read_ledger(commits[-1][1])))
        rates = step_rates(self.recorded.experiment, self.audited.record.plan.max_steps)
        return corpus_readings(leaves, self._taken, rates, [step for step, _ in commits])

    def _samples(self, readings: list[list[CorpusReading]]) -> dict[str, RecordSample]:
        records = self._prepared
        samples = {
            corpus: sample_records(
                records,
                self.audited.record.plan,
                corpus,
                self.audited.steps[corpus],
                self.question.records,
                self.question.seed,
            )
            for corpus in sorted({each.corpus for some in readings for each in some})
        }
        rows = sum(
            any(step in reading.steps for step in steps)
            for some in readings
            for reading in some
            for steps in samples[reading.corpus].rows.values()
        )
        if rows > MOST_ROWS:
            raise UsageError(
                f"the sampled records have {rows:,} rows over {len(readings)} checkpoints, and at "
                f"most {MOST_ROWS:,} are read",
                where="--records",
                do="Give a smaller number",
            )
        return samples

    def _shown(self, samples: Mapping[str, RecordSample]) -> dict[str, dict[int, _Row]]:
        """Corpus → row → its tokens and the sampled record of each of its targets."""
        records = self._prepared
        reader = ArrowRows(self.recorded.prepared, self._manifest)
        return {
            corpus: {
                row: _Row(
                    tokens,
                    [
                        owner if owner in sample.records else None
                        for owner in row_owners(records, self._manifest, corpus, row, tokens)
                    ],
                )
                for row, tokens in own_rows(reader, sample)
            }
            for corpus, sample in samples.items()
        }

    # What it did

    def _add(
        self,
        place: int,
        reading: CorpusReading,
        gradient: Mapping[str, Tensor],
        scales: Mapping[str, Tensor] | None,
        sample: RecordSample,
        shown: Mapping[int, _Row],
    ) -> None:
        """Keep what a reading before one commit did, by its sampled records."""
        times = {row: sum(s in reading.steps for s in steps) for row, steps in sample.rows.items()}
        rows = [row for row, count in times.items() if count]
        groups = {**self.audited.record.groups, **self.audited.adapters.groups}
        direction = routed_direction(gradient, groups, reading.factors, scales)
        reached = [g for g in reading.factors if any(n in direction for n in groups.get(g, ()))]
        self.layers.setdefault(reading.corpus, {}).update(dict.fromkeys(reached))
        slopes = loss_slopes(
            self.audited.model,
            self.audited.adapters,
            direction,
            [shown[row].tokens for row in rows],
            adapter=reading.adapter if reading.adapter in self.audited.adapted else None,
        )
        parts: dict[int, _Part] = {}
        for row, each in zip(rows, slopes, strict=True):
            for owner, slope in zip(shown[row].owners, each.tolist(), strict=True):
                if owner is not None:
                    part = parts.setdefault(owner, _Part(place))
                    part.value += times[row] * slope
                    part.targets += times[row]
        for owner, part in parts.items():
            self.found.setdefault(reading.corpus, {}).setdefault(owner, []).append(part)

    # What comes of it

    def _notes(self, commits: list[tuple[int, commit_folder.Committed]]) -> tuple[str, ...]:
        said = {
            FINAL_ONLY: len(commits) == 1,
            OWN_LOOP: own_loop(self.recorded.experiment) is not None,
            AVERAGED: self.audited.record.ema is not None,
        }
        return tuple(note for note, due in said.items() if due)

    def _corpora(
        self, samples: Mapping[str, RecordSample], readings: list[list[CorpusReading]]
    ) -> tuple[CorpusInfluence, ...]:
        places = range(len(readings))
        found = [
            CorpusInfluence(
                corpus=corpus,
                category=self._category(corpus),
                total=self._total(sample, readings, places),
                sampled=len(sample.records),
                read=sample.read,
                targets=self._targets(corpus, readings, places),
                layers=tuple(self.layers.get(corpus, ())),
            )
            for corpus, sample in samples.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.total.value, each.corpus)))

    def _check(
        self,
        losses: list[float],
        samples: Mapping[str, RecordSample],
        readings: list[list[CorpusReading]],
    ) -> SumCheck | None:
        places = range(1, len(losses))  # what the weights were before the first is not kept
        if not places:
            return None
        sums = (self._total(sample, readings, places).value for sample in samples.values())
        return SumCheck(fell=losses[0] - losses[-1], estimated=math.fsum(sums))

    def _total(
        self, sample: RecordSample, readings: list[list[CorpusReading]], places: range
    ) -> SampledTotal:
        """A corpus's total over the readings before some commits."""
        if not self.layers.get(sample.corpus):
            return SampledTotal.exactly(0.0)
        parts = [
            [part for part in some if part.place in places]
            for some in self.found.get(sample.corpus, {}).values()
        ]
        looked_at = [some for some in parts if some]
        if not looked_at:
            return SampledTotal.exactly(0.0)
        return sampled_total(
            [math.fsum(part.value for part in some) for some in looked_at],
            [sum(part.targets for part in some) for some in looked_at],
            size=self._targets(sample.corpus, readings, places),
            share=sample.share,
            seed=self.question.seed,
        )

    def _targets(self, corpus: str, readings: list[list[CorpusReading]], places: range) -> int:
        """Loss targets that were read of a corpus's own records before some commits."""
        some = [each for p in places for each in readings[p] if each.corpus == corpus]
        steps = frozenset[int]().union(*(each.steps for each in some))
        plan = self.audited.record.plan
        planted = canary_targets(self._prepared, self._manifest, plan, corpus, steps)
        return sum(each.targets for each in some) - planted

    def _category(self, corpus: str) -> str:
        envelope = Envelope.parse(self.audited.record.credentials[corpus])
        return read(Credential, envelope).document.credential_class.license_category

    def _records(self, samples: Mapping[str, RecordSample]) -> tuple[RecordInfluence, ...]:
        found = [
            RecordInfluence(
                corpus=corpus,
                record=number,
                entry=samples[corpus].records[number],
                value=math.fsum(part.value for part in parts),
                targets=sum(part.targets for part in parts),
            )
            for corpus, by_number in self.found.items()
            for number, parts in by_number.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.value, each.corpus, each.record)))


@dataclass
class _Part:
    """What the reads of a record before one commit did, and how many targets they had."""

    place: int
    value: float = 0.0
    targets: int = 0


@dataclass(frozen=True)
class _Row:
    tokens: list[int]
    owners: list[int | None]


def _to_float64(audited: AuditedModel) -> None:
    audited.model.double()
    for _, parameter in audited.adapters.named_parameters():
        parameter.data = parameter.data.to(torch.float64)


def _scales(committed: commit_folder.Committed) -> dict[str, Tensor] | None:
    values: Any = canonical_json.parse_canonical(committed.files[OPTIMIZER_VALUES])
    return optimizer_scale(committed.tensors(OPTIMIZER), values)
