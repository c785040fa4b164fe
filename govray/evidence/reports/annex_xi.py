"""Technical documentation of a model, by Annex XI, section 1, of the EU's AI Act.

Source: Regulation (EU) 2024/1689, Annex XI. Its section 2, for models with systemic risk, asks for
evaluations and tests that a training run has no record of, and is not drafted.

FLOPs are shown if they were counted: see `govray.train.attest.counted_flops`. No formula is applied
to the number of parameters here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from govray.errors import Damaged
from govray.evidence.reports.answers import Answers
from govray.evidence.reports.described_corpus import DescribedCorpus, described_corpora
from govray.evidence.reports.draft import Draft, Field, Grid, ReportSection, joined
from govray.evidence.reports.eu_summary import basis, dependencies, quarantine
from govray.evidence.reports.provider_statement import ProviderStatement
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import flat
from govray.governance.attestation.model_folder import Bundle
from govray.governance.formats import canonical_json, tensor_header
from govray.governance.formats.document import parse_time
from govray.governance.trust.trust_state import Verified
from govray.governance.verify.verifier import VerifiedModel

TITLE = "Technical documentation of a general-purpose AI model"
BASIS = "Regulation (EU) 2024/1689, Annex XI, section 1, for Article 53(1)(a)"

_MOST_LINES = 60
_LONGEST = 200


@dataclass(frozen=True)
class CountedFlops:
    """Floating point operations, counted over the model. ``row``: of one row, forward and backward,
    in every layer. ``how``: by what they were counted, and what is not among them."""

    row: int
    how: str


@dataclass(frozen=True)
class ModelFiles:
    """What a report takes from the model's own files, which the attestation covers.

    Attributes:
        parameters: Numbers in the weights that gradients may change, buffers excepted.
        adapters: Adapter → numbers in its weights.
    """

    config: Mapping[str, Any]
    parameters: int
    adapters: Mapping[str, int]


def read_files(model: VerifiedModel) -> ModelFiles:
    """Read a verified model's configuration and the headers of its weights."""
    files = Bundle(model.path)
    digests = {subject.name: subject.sha256 for subject in model.subjects}
    config = canonical_json.parse(
        files.read(
            model_folder.CONFIG,
            limit=model_folder.MAX_ENVELOPE,
            digest=digests.get(model_folder.CONFIG),
        ),
        where=model_folder.CONFIG,
    )
    adapters = {}
    for adapter in model.attestation.adapters:
        _, name = model_folder.adapter_files(adapter.name)
        if name in digests:
            adapters[adapter.name] = _numbers(files, name, digests[name], ())
    weights = model_folder.WEIGHTS
    return ModelFiles(
        config if isinstance(config, dict) else {},
        _numbers(files, weights, digests[weights], model.attestation.buffers),
        adapters,
    )


def _numbers(files: Bundle, name: str, digest: str, without: tuple[str, ...]) -> int:
    """How many numbers a file of weights holds, without those of some tensors."""
    found = files.tensor_file(name)
    if f"sha256:{found.sha256}" != digest:
        raise Damaged("the file changed since it was verified", where=name, do="Verify it again")
    length = len(found.head) - tensor_header.LENGTH
    tensors = tensor_header.parse_header(
        found.head[tensor_header.LENGTH :],
        where=name,
        rest=found.size - tensor_header.LENGTH - length,
    )
    return sum(prod(each.shape) for each in tensors if each.name not in without)


def annex_xi(
    model: VerifiedModel,
    files: ModelFiles,
    statement: Verified[ProviderStatement] | None = None,
    flops: CountedFlops | None = None,
) -> Draft:
    return _Documentation(model, files, Answers(statement), described_corpora(model), flops).draft()


@dataclass(frozen=True)
class _Documentation:
    model: VerifiedModel
    files: ModelFiles
    answers: Answers
    corpora: tuple[DescribedCorpus, ...]
    flops: CountedFlops | None

    def draft(self) -> Draft:
        sections = (
            ReportSection("1", "General description of the model", self._general()),
            ReportSection("2", "Elements of the model and its development", ()),
            ReportSection("2.a", "Technical means for integration", self._means()),
            ReportSection("2.b", "Design and training process", self._design()),
            ReportSection("2.c", "Data for training, testing and validation", self._data()),
            ReportSection("2.d", "Computational resources", self._compute()),
            ReportSection("2.e", "Energy consumption", self._energy()),
            ReportSection("3", "Evaluation as reported", self._evaluation()),
        )
        fields = [field for section in sections for field in section.fields]
        return Draft(TITLE, (BASIS, *basis(self.model)), sections, self.answers.unused(fields))

    def _general(self) -> tuple[Field, ...]:
        asked, recorded = self.answers.asked, self.answers.recorded
        media = dict.fromkeys(medium for each in self.corpora for medium in each.media)
        rows = self.model.manifest.document.rows
        kind = rows.run_kind if rows else "text"
        return (
            asked("1a tasks", "Intended tasks", "intended_tasks"),
            asked("1a systems", "AI systems that it can be integrated in", "integration"),
            asked("1b use", "Acceptable use policies", "acceptable_use"),
            asked("1c release", "Date of release", "market_date"),
            asked("1c distribution", "Methods of distribution", "distribution"),
            recorded("1d architecture", "Architecture", self._architecture(), model_folder.CONFIG),
            recorded(
                "1d parameters", "Number of parameters", self._parameters(), "headers of weights"
            ),
            asked(
                "1e modalities",
                "Modality and format of inputs and outputs",
                "input_output",
                known=(f"trained on rows of {kind}; modalities of the data: {', '.join(media)}",),
                lacks="Records state what it trained on, not what it takes and gives",
            ),
            asked("1f licence", "Licence of the model", "licence"),
        )

    def _architecture(self) -> list[str]:
        config = self.files.config
        told = [f"{name}: {value}"[:_LONGEST] for name, value in flat(config).items()]
        more = [f"and {len(told) - _MOST_LINES} more settings"] if len(told) > _MOST_LINES else []
        groups = joined(list(self.model.attestation.base_groups))
        return [*told[:_MOST_LINES], *more, f"layer groups: {groups}"]

    def _parameters(self) -> list[str]:
        buffers = len(self.model.attestation.buffers)
        lines = [f"{self.files.parameters:,} in the base model, {buffers} buffers not counted"]
        lines += [f"{count:,} in adapter {name}" for name, count in self.files.adapters.items()]
        lines += [f"adapter {each.adapter} was removed" for each in self.model.attestation.removals]
        return lines

    def _means(self) -> tuple[Field, ...]:
        return (
            self.answers.asked(
                "2a means", "Instructions, infrastructure and tools", "technical_means"
            ),
        )

    def _design(self) -> tuple[Field, ...]:
        attestation = self.model.attestation
        plan = attestation.plan
        policy = self.model.policy.document
        done = f", ended after {attestation.steps:,}" if attestation.steps < plan.max_steps else ""
        lines = [
            f"{plan.max_steps:,} steps planned{done}, rows of {plan.context} loss targets at most, "
            f"seed {plan.seed}",
            f"policy {policy}, whose rules say which corpora may update which layers",
        ]
        rows = tuple(
            (
                entry.corpus,
                entry.profile,
                joined(self.model.routes.groups(entry.corpus)),
            )
            for entry in attestation.corpora
        )
        return (
            self.answers.recorded(
                "2b process",
                "Training process",
                lines,
                "attestation, plan and policy",
                grid=Grid(("Corpus", "Profile", "Layer groups it may update"), rows),
            ),
            self.answers.asked("2b choices", "Key design choices, and why", "design_choices"),
            self.answers.asked("2b optimised", "What it is optimised for", "optimised_for"),
            dependencies(self.model, self.answers),
        )

    def _data(self) -> tuple[Field, ...]:
        rows = tuple(
            (
                each.name,
                each.described.source or "not stated",
                each.described.url or "not stated",
                each.credential.license,
                f"{each.records:,}",
                each.size,
                each.credential.issuer,
            )
            for each in self.corpora
        )
        grid = Grid(
            ("Corpus", "Source", "Link", "Licence", "Records", "Trained on", "Issuer"), rows
        )
        lines = []
        for each in self.corpora:
            steps = each.credential.normalisation
            scan = each.credential.pii_scan
            said = [
                f"text normalised ({', '.join(steps)})" if steps else "",
                f"scanned for personal data by {scan.analyzer}" if scan else "",
            ]
            if told := "; ".join(part for part in said if part):
                lines.append(f"{each.name}: {told}")
        held = self.model.attestation.validation
        reserve = self.model.manifest.document.reserve
        tested = joined(sorted(held.corpora or ())) if held and held.corpora else "none is recorded"
        return (
            self.answers.recorded(
                "2c data", "Training data", (), "credentials and manifest", grid=grid
            ),
            self.answers.recorded(
                "2c validation", "Data for validation", [tested], "attestation, validation"
            ),
            self.answers.recorded(
                "2c reserve",
                "Records held back from training",
                [f"a share of {reserve.share:g}, chosen by a salt {reserve.drawn}"],
                "prepare manifest",
            ),
            quarantine(self.model, self.answers),
            self.answers.asked(
                "2c curation",
                "Curation: cleaning, filtering, selection",
                "curation",
                known=lines,
                lacks="Records state only what govray did",
            ),
            self.answers.asked(
                "2c bias", "Measures against unsuitable sources and bias", "bias_measures"
            ),
        )

    def _compute(self) -> tuple[Field, ...]:
        attestation, environment = self.model.attestation, self.model.attestation.environment
        spent = parse_time(attestation.run.finished) - parse_time(attestation.run.started)
        hours = spent.total_seconds() / 3600
        workers = Counter(leaf.world_size for leaf in self.model.ledger.steps)
        by = joined([f"{size} in {steps:,} steps" for size, steps in sorted(workers.items())])
        return (
            self._flops(),
            self.answers.recorded(
                "2d time",
                "Training time",
                [
                    f"{hours:.2f} hours from {attestation.run.started} to "
                    f"{attestation.run.finished}, interruptions included",
                    f"workers: {by}",
                ],
                "attestation, run (the signer's clock), and ledger",
            ),
            self.answers.recorded(
                "2d hardware",
                "Hardware, as the run recorded it of one process",
                [
                    f"device {environment.device}, processor {environment.processor}, "
                    f"{environment.threads} threads",
                    f"platform {environment.platform}, Python {environment.python}",
                    joined([f"{n} {v}" for n, v in environment.packages.items()]),
                ],
                "attestation, environment",
            ),
        )

    def _flops(self) -> Field:
        key, label, ask = "2d flops", "Floating point operations", "training_flops"
        rows = sum(use.rows for leaf in self.model.ledger.steps for use in leaf.corpora.values())
        if self.flops is None:
            return self.answers.asked(
                key,
                label,
                ask,
                lacks=f"The ledger has {rows:,} rows and no operations; --count-flops counts them",
            )
        total = self.flops.row * rows
        lines = [
            f"{total:.3e} of what is counted: {self.flops.row:,} of a full row, {rows:,} rows",
            self.flops.how,
        ]
        return self.answers.recorded(key, label, lines, "ledger, and a count", ask=ask)

    def _energy(self) -> tuple[Field, ...]:
        return (
            self.answers.asked(
                "2e energy",
                "Known or estimated energy consumption",
                "energy",
                lacks="No record measures energy",
            ),
        )

    def _evaluation(self) -> tuple[Field, ...]:
        attestation = self.model.attestation
        lines = []
        if (found := attestation.validation) is not None:
            on = f" on {joined(sorted(found.corpora))}" if found.corpora else ""
            lines.append(
                f"{found.metric} {found.value:g}{on}, the better the {_better(found.goal)}"
            )
        if attestation.memorization is not None:
            measured = joined(sorted(attestation.memorization.measured))
            lines.append(f"memorization was measured of {measured or 'no corpus'}")
            lines += [
                f"{each.corpus}: {each.followed} at step {each.step}"
                for each in attestation.memorization.decisions
            ]
        for replay in attestation.replays:
            lines.append(f"a replay without {replay.corpus} by {replay.party} gave the same files")
        key, label = "3 evaluation", "Evaluation as reported"
        if not lines:
            return (self.answers.asked(key, label, "evaluation"),)
        further = self.answers.asked("3 further", "Further evaluation", "evaluation")
        return self.answers.recorded(key, label, lines, "attestation"), further


def _better(goal: str) -> str:
    return "lower" if goal == "min" else "higher"
