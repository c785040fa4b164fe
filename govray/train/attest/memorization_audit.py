"""Auditing a run: what its final model holds of the data that it was trained on.

For each corpus that the run read, an audit compares rows trained on with reserve rows, layer by
layer. It continues sampled rows by greedy decoding, says how many samples would give them, and
measures the exposure of planted canaries. Where a coin decided which were planted, it guesses the
coins and bounds ε. If another run left the corpus out, it also measures the counterfactual gap.
The result is a memorization manifest.

Invariants:

* **Bounded**: samples have the sizes that the settings say, however large the data is.
* **Repeatable**: the same run, settings and machine give the same evidence.
* **What cannot be checked is listed** with its reason: no reserve, no canaries, a missing
  tokenizer. The rest is checked all the same.
* A corpus with an adapter is read through it; the others through the base model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from govray.data.arrow_rows import ArrowRows
from govray.data.probe_rows import designated, places
from govray.data.records_file import open_records
from govray.engine.batch import IGNORED
from govray.engine.memorization.comparison import measures
from govray.engine.memorization.exposure import Exposure
from govray.engine.memorization.exposure import measure as measure_exposure
from govray.engine.memorization.logit_lens import Lens, find_lens
from govray.engine.memorization.monitor import logits_in
from govray.engine.memorization.probe_sharing import pick
from govray.engine.memorization.scores import score_rows, untouched
from govray.engine.memorization.sequence_loss import (
    Continuation,
    continuations,
    gap,
    least_samples,
    target_losses,
)
from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.attestation.memorization_manifest import (
    AuditSettings,
    CanaryEvidence,
    CorpusEvidence,
    Counterfactual,
    Discoverable,
    Extraction,
    MemorizationManifest,
    RecordEvidence,
    SamplingScheme,
    Unchecked,
)
from govray.governance.attestation.privacy_audit import PrivacyAudit, PrivacyLevel, privacy_audit
from govray.governance.formats.record_columns import Split
from govray.governance.policy.route import Route
from govray.governance.record.canary import Canary
from govray.governance.record.entropy_profile import Measure
from govray.governance.record.prepare_manifest import Manifest, Planted
from govray.governance.record.prepared_records import PreparedRecords
from govray.train.attest.audited_model import AuditedModel, load_model, tokenizer_of
from govray.train.checkpoint.tensor_shards import fail_together
from govray.train.inputs.recorded_inputs import RecordedInputs, recorded_inputs

DEFAULTS = AuditSettings(
    rows=64,
    prefix_tokens=32,
    suffix_tokens=32,
    candidates=1000,
    controls=4,
    seed=0,
    privacy=PrivacyLevel(confidence=0.95, delta=1e-5),
    sampling=SamplingScheme(temperature=1.0, top_k=40, probability=0.9),
)
SCORE_ALL = 10_000
"""Spaces of at most this many candidates are scored whole."""

_LOOKED_AT = 4096
"""At most this many rows of a corpus are checked for whether a step read them."""
_BATCH = 16
_SAMPLES = tuple(10**power for power in range(7))
"""Numbers of samples for which rows that are discoverable are counted."""

Progress = Callable[[str, int, int], None]
"""Called with (corpus, corpora done, corpora in all)."""


@dataclass(frozen=True)
class Row:
    """A packed row: its token ids, and the record of each token, if any.
    ``designated`` says whether it stands for the record that it has most tokens of."""

    tokens: list[int]
    records: list[str | None]
    designated: bool = False

    def record(self, start: int, stop: int) -> str | None:
        """Entry of the record that most of the tokens belong to."""
        held = [record for record in self.records[start:stop] if record]
        return max(held, key=held.count) if held else None


def audit(
    run: Path,
    *,
    at: str,
    settings: AuditSettings = DEFAULTS,
    against: Path | None = None,
    progress: Progress = lambda corpus, done, total: None,
) -> MemorizationManifest:
    """Audit a run's final model.

    Args:
        against: Another run over the same data that left corpora out; a replay, say.
        progress: Called before each corpus.

    Raises:
        UsageError: No run's folder, or one that a script started. Or its rows are no text.
        CouldNotCheck: The run has not ended, or its data is not here.
    """
    audited = load_model(run)
    recorded = fail_together(lambda: recorded_inputs(run, audited.record))
    schema = recorded.manifest.document.rows
    if schema is not None:
        raise UsageError(
            f"an audit reads packed text, and the run read {schema.run_kind}",
            where=str(run),
            do="Audit a run over text; `govray verify` and `govray replay` take this one too",
        )
    other = load_model(against) if against else None
    auditor = _Auditor(audited, recorded, settings)
    corpora = sorted(corpus for corpus, steps in audited.steps.items() if steps)
    evidence = []
    for done, corpus in enumerate(corpora):
        progress(corpus, done, len(corpora))
        evidence.append(auditor.corpus(corpus, other))
    if other:
        auditor.note_against(other, corpora)
    return MemorizationManifest(
        run=audited.record.run_id,
        step=audited.record.steps,
        made=at,
        manifest=recorded.manifest.digest,
        files=audited.files,
        settings=settings,
        corpora=tuple(evidence),
        unchecked=tuple(auditor.unchecked),
    )


@dataclass
class _Auditor:
    audited: AuditedModel
    recorded: RecordedInputs
    settings: AuditSettings
    unchecked: list[Unchecked] = field(default_factory=list)

    @property
    def manifest(self) -> Manifest:
        return self.recorded.manifest.document

    @cached_property
    def records(self) -> PreparedRecords:
        return open_records(self.recorded.prepared, self.manifest)

    @cached_property
    def _lens(self) -> Lens:
        tokens = torch.zeros(1, min(8, self.manifest.context), dtype=torch.long)
        rows = {"tokens": tokens, "targets": tokens}
        logits = logits_in(self.audited.loss)
        with untouched(self.audited.model), self.audited.adapters.active(None):
            return find_lens(self.audited.model, lambda: logits(self.audited.model, rows))

    def note(self, check: str, why: str, corpus: str | None = None) -> None:
        """Record something that could not be checked."""
        self.unchecked.append(Unchecked(check=check, corpus=corpus, why=why))

    def corpus(self, corpus: str, other: AuditedModel | None) -> CorpusEvidence:
        """All evidence of one corpus."""
        route = self._route(corpus)
        trained, reserve = self._trained(corpus), self._reserve(corpus)
        if not trained:
            self.note("rows trained on", "no step read a row of its own records", corpus)
        if not reserve:
            self.note("comparison with the reserve", "the corpus has no reserve rows", corpus)
        extraction, discoverable, records = self._extraction(corpus, route, trained, reserve)
        canaries, controls = self._canaries(corpus, route)
        return CorpusEvidence(
            corpus=corpus,
            groups=tuple(sorted(route.reached)),
            measures=self._measures(corpus, route, trained, reserve),
            extraction=extraction,
            discoverable=discoverable,
            records=records,
            canaries=canaries,
            control_bits=controls,
            privacy=self._privacy(corpus, route),
            counterfactual=self._counterfactual(corpus, route, trained, reserve, other),
        )

    # Rows

    def _route(self, corpus: str) -> Route:
        [stream] = [
            stream
            for stream in self.audited.record.plan.streams
            if any(each.corpus == corpus for each in stream.corpora)
        ]
        return self.recorded.routes[stream.id]

    def _trained(self, corpus: str) -> list[Row]:
        own = self.manifest.own_rows(corpus)
        return self._read(
            corpus, pick(own, _LOOKED_AT, self.settings.seed, corpus, "trained"), "train"
        )

    def _reserve(self, corpus: str) -> list[Row]:
        held = self.manifest.reserve_rows(corpus)
        return self._read(
            corpus, pick(held, _LOOKED_AT, self.settings.seed, corpus, "reserve"), "reserve"
        )

    def _read(self, corpus: str, rows: list[int], split: Split) -> list[Row]:
        """Rows of a side that the run read, or would have read where a reserve row would lie.

        So a run that ended within its first round compares the same parts of a sorted corpus.
        """
        plan, steps = self.audited.record.plan, self.audited.steps[corpus]
        random.Random(f"{split} {self.settings.seed} {corpus}").shuffle(rows)  # noqa: S311 - a sample
        first = self._designated_first(corpus, rows, split)
        stands = places(self.records, corpus, first, split).tolist()
        read = (
            row
            for row, place in zip(first, stands, strict=True)
            if not steps.isdisjoint(plan.reads(corpus, place))
        )
        return self._rows(corpus, sorted(islice(read, self.settings.rows)), split)

    def _designated_first(self, corpus: str, rows: Sequence[int], split: Split) -> list[int]:
        """Designated rows before others: the comparison needs them, and extraction takes any."""
        held = designated(self.records, corpus, rows, split, self.settings.seed)
        return sorted(rows, key=lambda row: row not in held)

    def _rows(self, corpus: str, rows: Sequence[int], split: Split) -> list[Row]:
        reader = ArrowRows(self.recorded.prepared, self.manifest, reserve=split == "reserve")
        found = []
        held = designated(self.records, corpus, rows, split, self.settings.seed)
        for number in rows:
            tokens = reader.row(corpus, number).tolist()
            holders: list[str | None] = [None] if tokens[0] == self._separator else []
            for span in self.records.row_records(corpus, number, split):
                entry = self.records.record(corpus, span.record).entry
                holders += [entry] * (span.stop - span.start) + [None]
            found.append(Row(tokens, holders, number in held))
        return found

    @property
    def _separator(self) -> int:
        return self.manifest.tokenizer.separator

    # Evidence

    def _measures(
        self, corpus: str, route: Route, trained: Sequence[Row], reserve: Sequence[Row]
    ) -> tuple[Measure, ...]:
        if not trained or not reserve:
            return ()
        # One row of each record, so that long records count as much as short ones.
        trained, reserve = ([row for row in side if row.designated] for side in (trained, reserve))
        if not trained or not reserve:
            self.note("comparison with the reserve", "no record's designated row was read", corpus)
            return ()
        both = [*trained, *reserve]
        scores = score_rows(
            self.audited.model,
            _tensors(both),
            logits=logits_in(self.audited.loss),
            lens=self._lens,
            adapters=self.audited.adapters,
            adapter=route.adapter if route.adapter in self.audited.adapted else None,
        )
        if not scores.table().isfinite().all():
            self.note("comparison with the reserve", "a score is not finite", corpus)
            return ()
        units = [row.record(0, len(row.tokens)) for row in both]
        return measures(
            corpus,
            scores[: len(trained)],
            scores[len(trained) :],
            probe_units=units[: len(trained)],
            reserve_units=units[len(trained) :],
            statistic="composite",
            key=(self.settings.seed, "audit"),
            tested=len(set(units)) == len(units),
        )

    def _extraction(
        self, corpus: str, route: Route, trained: Sequence[Row], reserve: Sequence[Row]
    ) -> tuple[Extraction | None, tuple[Discoverable, ...] | None, tuple[RecordEvidence, ...]]:
        start = self.settings.prefix_tokens
        stop = start + self.settings.suffix_tokens
        tried, compared = (
            [r for r in rows if len(r.tokens) >= stop] for rows in (trained, reserve)
        )
        if not tried:
            if trained:
                self.note(
                    "extraction", f"no row has the {stop} tokens of prefix and suffix", corpus
                )
            return None, None, ()
        with self.audited.reading(route.adapter):
            ours, theirs = (
                self._continued([row.tokens[:stop] for row in rows], [start] * len(rows))
                for rows in (tried, compared)
            )
        given: dict[str, list[int | None]] = {}
        for row, (extracted, needed) in zip(tried, ours, strict=True):
            if extracted and (record := row.record(start, stop)):
                given.setdefault(record, []).append(needed)
        counts = Extraction(
            rows=len(tried),
            extracted=sum(extracted for extracted, _ in ours),
            reserve_rows=len(compared),
            reserve_extracted=sum(extracted for extracted, _ in theirs),
        )
        records = tuple(
            RecordEvidence(
                record=f"sha256:{record}",
                extracted_rows=len(rows),
                samples=min((needed for needed in rows if needed), default=None),
            )
            for record, rows in sorted(given.items())
        )
        discoverable = tuple(
            Discoverable(
                samples=samples,
                rows=sum(needed is not None and needed <= samples for _, needed in ours),
                reserve_rows=sum(needed is not None and needed <= samples for _, needed in theirs),
            )
            for samples in _SAMPLES
        )
        return counts, discoverable, records

    def _continued(
        self, sequences: Sequence[list[int]], starts: Sequence[int]
    ) -> list[tuple[bool, int | None]]:
        """Of each: whether greedy decoding gives its end, and how many samples are needed."""
        scheme = self.settings.sampling
        found: list[Continuation] = continuations(
            self.audited.model,
            sequences,
            starts,
            temperature=scheme.temperature,
            top_k=scheme.top_k,
            batch=_BATCH,
        )
        return [
            (
                each.greedy,
                least_samples(each.log_probability, scheme.probability) if scheme else None,
            )
            for each in found
        ]

    def _canaries(
        self, corpus: str, route: Route
    ) -> tuple[tuple[CanaryEvidence, ...], tuple[float, ...]]:
        planted = self.manifest.corpus(corpus).planted
        if planted is None:
            self.note("exposure", "no canaries were planted in the corpus", corpus)
            return (), ()
        try:
            encode = self._encoder()
            with self.audited.reading(route.adapter):
                found = tuple(self._canary_evidence(corpus, planted, encode))
                controls = tuple(
                    self._exposure(each, planted.canaries.candidates, encode).bits
                    for each in planted.canaries.controls(corpus, self.settings.controls)
                )
        except (CouldNotCheck, Refused, UsageError) as error:
            self.note("exposure", str(error), corpus)
            return (), ()
        return found, controls

    def _canary_evidence(
        self, corpus: str, planted: Planted, encode: Callable[[str], list[int]]
    ) -> Iterator[CanaryEvidence]:
        plan, steps = self.audited.record.plan, self.audited.steps[corpus]
        first = self.records.count(corpus)
        for index, canary in enumerate(planted.canaries.planted(corpus)):
            shown = self._exposure(canary, planted.canaries.candidates, encode)
            tokens = encode(canary.prefix + canary.secret)
            start = min(len(encode(canary.prefix)), len(tokens) - 1)
            rows = self.records.record_rows(corpus, first + index)
            [(extracted, samples)] = self._continued([tokens], [start])
            yield CanaryEvidence(
                record=f"sha256:{canary.sha256}",
                reads=sum(len(steps.intersection(plan.reads(corpus, row))) for row in rows),
                exposure_bits=shown.bits,
                candidates=shown.candidates,
                scored=shown.scored,
                rank=shown.rank,
                sampled_bits=shown.sampled_bits,
                fit_distance=shown.fit.distance if shown.fit else None,
                fit_p=shown.fit.p_value if shown.fit else None,
                extracted=extracted,
                samples=samples,
            )

    def _privacy(self, corpus: str, route: Route) -> PrivacyAudit | None:
        planted, level = self.manifest.corpus(corpus).planted, self.settings.privacy
        if planted is None:
            return None
        canaries = planted.canaries
        if canaries.coin is None:
            self.note("bound on epsilon", "no coin decided which canaries were planted", corpus)
            return None
        try:
            encode = self._encoder()
        except CouldNotCheck as error:
            self.note("bound on epsilon", str(error), corpus)
            return None
        # Whole rows, as training reads them: the name is learnt as well as the secret.
        rows = [
            [*encode(canary.content.decode()), self._separator]
            for canary in canaries.tossed(corpus)
        ]
        with self.audited.reading(route.adapter):
            losses = target_losses(self.audited.model, rows, [1] * len(rows), batch=_BATCH)
        sums = torch.stack([each.sum() for each in losses])
        if not sums.isfinite().all():
            self.note("bound on epsilon", "the loss of a canary is not finite", corpus)
            return None
        return privacy_audit(sums.tolist(), canaries.coins(corpus), level)

    def _exposure(
        self, canary: Canary, candidates: int, encode: Callable[[str], list[int]]
    ) -> Exposure:
        secret = int(canary.secret)
        if candidates <= SCORE_ALL:
            numbers: Sequence[int] = range(candidates)
        else:
            key = f"{self.settings.seed} {canary.prefix}"
            draw = random.Random(key)  # noqa: S311 - a sample of candidates, no secret
            numbers = draw.sample(range(candidates), self.settings.candidates)
        others = [encode(canary.with_secret(n)) for n in numbers if n != secret]
        own = encode(canary.prefix + canary.secret)
        return measure_exposure(self.audited.model, own, others, candidates)

    def _encoder(self) -> Callable[[str], list[int]]:
        tokenizer = tokenizer_of(self.recorded, self.manifest)

        def encode(text: str) -> list[int]:
            return [int(token) for token in tokenizer.encode(text.encode())]

        return encode

    # Against another run

    def _counterfactual(
        self,
        corpus: str,
        route: Route,
        trained: Sequence[Row],
        reserve: Sequence[Row],
        other: AuditedModel | None,
    ) -> Counterfactual | None:
        if other is None or corpus not in left_out(self.audited, other) or not trained:
            return None
        ours, theirs = (_mean_losses(each, route, trained) for each in (self.audited, other))
        found = gap(ours, theirs, seed=self.settings.seed)
        of_reserve = None
        if reserve:
            pair = (_mean_losses(each, route, reserve) for each in (self.audited, other))
            of_reserve = gap(*pair, seed=self.settings.seed).mean
        return Counterfactual(
            against=other.record.run_id,
            rows=found.rows,
            gap=found.mean,
            low=found.low,
            high=found.high,
            reserve_rows=len(reserve),
            reserve_gap=of_reserve,
        )

    def note_against(self, other: AuditedModel, corpora: Sequence[str]) -> None:
        """Record why the other run is no comparison."""
        if other.record.plan.manifest != self.audited.record.plan.manifest:
            why = f"run {other.record.run_id} is over other prepared data"
        elif left_out(self.audited, other).isdisjoint(corpora):
            why = f"run {other.record.run_id} left none of these corpora out"
        else:
            return
        self.note("counterfactual gap", why)


def left_out(audited: AuditedModel, other: AuditedModel) -> frozenset[str]:
    """The corpora that one run read and another, over the same data, did not."""
    if other.record.plan.manifest != audited.record.plan.manifest:
        return frozenset()
    return frozenset(audited.steps) - frozenset(other.steps)


def _mean_losses(audited: AuditedModel, route: Route, rows: Sequence[Row]) -> Tensor:
    """Mean loss of each row, nats a token, (rows,)."""
    with audited.reading(route.adapter):
        losses = target_losses(
            audited.model, [row.tokens for row in rows], [1] * len(rows), batch=_BATCH
        )
    return torch.stack([each.mean() for each in losses])


def _tensors(rows: Sequence[Row]) -> Mapping[str, Tensor]:
    """``tokens`` and ``targets`` (rows, tokens), filled up on the right."""
    longest = max(len(row.tokens) for row in rows) - 1
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    targets = torch.full((len(rows), longest), IGNORED, dtype=torch.long)
    for index, row in enumerate(rows):
        end = len(row.tokens) - 1
        tokens[index, :end] = torch.tensor(row.tokens[:-1])
        targets[index, :end] = torch.tensor(row.tokens[1:])
    return {"tokens": tokens, "targets": targets}
