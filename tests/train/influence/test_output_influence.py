"""An estimate over a small run: one rank, no Ray, trained here once for all tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
import torch
from torch.nn import functional as F

import govray.governance
from govray.cli import main
from govray.data.records_file import open_records
from govray.data.step_reader import ArrowRows
from govray.errors import CouldNotCheck, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats.document import Document
from govray.platform.store import tables
from govray.train.attest.audited_model import load_model
from govray.train.attest.write_model import write_model
from govray.train.driver.trainer import from_experiment
from govray.train.influence import output_influence as module
from govray.train.influence.influence_report import FINAL_ONLY, LABEL, LIMITS, InfluenceReport
from govray.train.influence.output_influence import OutputQuestion, output_influence
from govray.train.influence.record_sample import row_owners, sample_records
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.recorded_inputs import recorded_inputs
from govray.train.inputs.run_record import read_record
from govray.train.state.snapshot import folder_name
from tests.support.deployment import Deployment
from tests.support.solo import run_here
from tests.support.tree import ROOT

STEPS = 24
QUESTION = OutputQuestion(prompt="open-one says: the ", output="quick", records=6)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        yield Deployment(tmp_path_factory.mktemp("influence"))


@pytest.fixture(scope="module")
def run(here: Deployment) -> Path:
    """A run that keeps three commits, of which each has its part of the steps."""
    value = here.experiment(
        max_steps=STEPS,
        checkpoint={"every_steps": 8, "save_trial_latest": 3},
        resources={"num_workers": 1},
    )
    planted = {
        "corpora": ["open-two"], "format": "{name} {secret}\n", "digits": 3, "count": 2,
        "repeats": 9, "seed": 4,
    }  # fmt: skip
    data = {**value["data"], "canaries": planted}  # type: ignore[dict-item]
    trainer = from_experiment(parse_experiment({**value, "data": data}, where="test"))
    made = trainer.train()
    write_model(made, trainer.signer())
    return made


@pytest.fixture(scope="module")
def found(run: Path) -> InfluenceReport:
    return output_influence(run, QUESTION)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_corpus_of_another_adapter_has_exactly_nothing_and_with_it_something(
    run: Path, found: InfluenceReport
) -> None:
    by_name = {each.corpus: each for each in found.corpora}
    assert set(by_name) == {"acme", "open-one", "open-two", "weak-one"}
    acme = by_name["acme"]
    assert (acme.total.value, acme.total.interval, acme.layers) == (0.0, (0.0, 0.0), ())
    assert acme.targets > 0
    assert all(each.value == 0 for each in found.records if each.corpus == "acme")
    assert set(by_name["weak-one"].layers) == {"block.1", "final_norm", "head"}
    assert {"embedding", "block.0"} <= set(by_name["open-one"].layers)
    assert all(by_name[c].total.value != 0 for c in ("open-one", "open-two", "weak-one"))
    # The control: the same output, read with the adapter that the corpus trained.
    question = OutputQuestion(output="acme says: the", adapter="acme", records=6)
    adapted = {each.corpus: each for each in output_influence(run, question).corpora}
    assert adapted["acme"].layers == ("adapter:acme",)
    assert adapted["acme"].total.value != 0


def test_the_same_question_gives_the_same_report_and_another_seed_other_records(
    run: Path, found: InfluenceReport
) -> None:
    assert output_influence(run, QUESTION).to_json(99) == found.to_json(99)
    other = output_influence(run, OutputQuestion(**{**vars(QUESTION), "seed": 1}))
    assert {(r.corpus, r.record) for r in other.records} != {
        (r.corpus, r.record) for r in found.records
    }


def test_totals_are_those_of_the_records_and_classes_those_of_the_corpora(
    found: InfluenceReport,
) -> None:
    assert found.checkpoints == (8, 16, 24)
    assert found.scaled
    for each in found.corpora:
        own = [r for r in found.records if r.corpus == each.corpus]
        assert len(own) == each.sampled == min(6, each.read)
        share = sum(r.value for r in own) / sum(r.targets for r in own)
        assert each.total.value == pytest.approx(each.targets * share)
        low, high = each.total.interval
        assert low <= each.total.value <= high
    assert found.categories["permissive"].value == pytest.approx(
        sum(each.total.value for each in found.corpora if each.corpus.startswith("open"))
    )
    assert found.categories["commercial"].value == 0
    values = [each.value for each in found.records]
    assert values == sorted(values, reverse=True)
    assert tuple(found.likelier(2)) == found.records[:2]
    assert all(each.value < 0 for each in found.unlikelier(99))


def test_a_record_s_estimate_is_the_product_of_gradients_that_autograd_has(
    run: Path, tmp_path: Path
) -> None:
    """An oracle of its own: one kept commit, one corpus of the whole model, no sampling."""
    copy = only_final(run, tmp_path)
    found = output_influence(copy, OutputQuestion(**{**vars(QUESTION), "records": 99}))
    audited = load_model(copy)
    recorded = recorded_inputs(copy, audited.record)
    manifest = recorded.manifest.document
    records, reader = open_records(recorded.prepared, manifest), ArrowRows(
        recorded.prepared, manifest
    )  # fmt: skip
    model = audited.model.double()
    named = dict(model.named_parameters())
    text = [manifest.tokenizer.separator, *(QUESTION.prompt + QUESTION.output).encode()]
    start = 1 + len(QUESTION.prompt)
    output = _gradient(model, text, range(start - 1, len(text) - 1))
    state = module.commit_folder.open_commit(copy / folder_name(STEPS))
    moments = state.tensors("optimizer.safetensors")
    [group, *_] = json.loads(state.files["optimizer.json"])["groups"]
    beta, eps = group["hyperparameters"]["betas"][1], group["hyperparameters"]["eps"]
    plan, steps = audited.record.plan, audited.steps["open-one"]
    sums = {"targets": 0, "block": 0.0, "other": 0.0}
    leaves = module.standing_leaves(module.read_leaves(state.files["ledger.jsonl"]))
    rates = module.step_rates(recorded.experiment, STEPS)
    for step in sorted(steps):
        uses = leaves[step].corpora
        lower = sum(use.targets for name, use in uses.items() if name.startswith("open"))
        upper = lower + (uses["weak-one"].targets if "weak-one" in uses else 0)
        own = uses["open-one"].targets
        sums["targets"] += own
        sums["block"] += own * rates[step] / lower
        sums["other"] += own * rates[step] / upper
    checked = [each for each in found.records if each.corpus == "open-one"][:2]
    for each in checked:
        expected = 0.0
        for row in records.record_rows("open-one", each.record):
            tokens = reader.row("open-one", row).tolist()
            owners = row_owners(records, manifest, "open-one", row, tokens)
            own_places = [p for p, owner in enumerate(owners) if owner == each.record]
            times = sum(step in steps for step in plan.reads("open-one", row))
            if not times or not own_places:
                continue
            gradient = _gradient(model, tokens, own_places)
            for name in named:
                root = (moments[f"exp_avg_sq/{name}"].double() / (1 - beta**STEPS)).sqrt() + eps
                part = "block" if name.startswith(("embedding", "blocks.0")) else "other"
                factor = sums[part] / sums["targets"]
                product = (gradient[name] * output[name] / root).sum()
                expected += times * len(own_places) * float(product) * factor
        assert each.value == pytest.approx(expected, rel=1e-5)


def _gradient(model: torch.nn.Module, tokens: list[int], places: object) -> dict[str, torch.Tensor]:
    row, chosen = torch.tensor([tokens]), list(places)  # type: ignore[call-overload]
    loss = F.cross_entropy(model(row[:, :-1])[0, chosen], row[0, 1:][chosen])
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def test_rows_are_the_sampled_records_own_and_no_canary_is_among_them(run: Path) -> None:
    recorded = recorded_inputs(run, read_record(run))
    manifest, plan = recorded.manifest.document, recorded.record.plan
    records = open_records(recorded.prepared, manifest)
    steps = frozenset(range(STEPS))
    sample = sample_records(records, plan, "open-two", steps, 99, 0)
    assert sample.share == 1
    assert max(sample.records) < records.count("open-two")
    assert max(sample.rows) < manifest.own_rows("open-two")
    reader = ArrowRows(recorded.prepared, manifest)
    owned: dict[int, int] = {}
    for row in range(manifest.own_rows("open-two")):
        tokens = reader.row("open-two", row).tolist()
        owners = row_owners(records, manifest, "open-two", row, tokens)
        assert len(owners) == len(tokens) - 1
        for place, owner in enumerate(owners, start=1):
            if owner is not None:
                owned[owner] = owned.get(owner, 0) + 1
            assert owner is not None or tokens[place] == manifest.tokenizer.separator
    for number, count in owned.items():
        rows = len(records.record_rows("open-two", number))
        # A row's first token is no target, and the last token of all is in no row.
        assert 0 <= records.record("open-two", number).tokens + 1 - count <= rows + 1


def only_final(run: Path, to: Path) -> Path:
    """The run as it is where only the last commit is kept."""
    shutil.copytree(run.parent, to / "runs")
    copy = to / "runs" / run.name
    for step in (8, 16):
        shutil.rmtree(copy / folder_name(step))
    return copy


def test_with_the_final_weights_alone_the_report_says_so(
    run: Path, found: InfluenceReport, tmp_path: Path
) -> None:
    alone = output_influence(only_final(run, tmp_path), QUESTION)
    assert (alone.checkpoints, alone.check) == ((STEPS,), None)
    assert alone.limits == (*LIMITS, FINAL_ONLY)
    assert found.check is not None
    assert found.limits == LIMITS


# Where it must not appear ------------------------------------------------------------------


def test_nothing_is_written_and_the_attestation_keeps_its_bytes(
    run: Path, command: Command
) -> None:
    before = contents(run.parent)
    attested = (run / "model" / model_folder.ATTESTATION).read_bytes()
    code, out, err = command(
        "influence", run / "model", "--output", "quick", "--records", 2, "--json"
    )
    assert code == 0, err
    assert json.loads(out)["label"] == LABEL
    assert contents(run.parent) == before
    assert (run / "model" / model_folder.ATTESTATION).read_bytes() == attested
    # The control: attesting writes it again, and a file more would be seen.
    (run / "influence.json").write_text("{}")
    assert contents(run.parent) != before
    (run / "influence.json").unlink()


def test_no_signed_document_and_no_table_has_the_word() -> None:
    for each in walk_packages(govray.governance.__path__, "govray.governance."):
        import_module(each.name)

    def below(kind: type[Document]) -> Iterator[type[Document]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    kinds = {each.__name__: {*each.model_fields} for each in below(Document)}
    assert {"Attestation", "Leaf", "MemorizationManifest"} <= kinds.keys()
    kinds |= {
        table.name: {*table.columns.keys()} for table in tables.SQLModel.metadata.sorted_tables
    }

    def named(found: dict[str, set[str]]) -> list[str]:
        return [
            name
            for name, fields in found.items()
            if any("influence" in word.lower() for word in (name, *fields))
        ]

    assert named(kinds) == []
    assert named(kinds | {"Control": {"influence_total"}}) == ["Control"]


# The command -------------------------------------------------------------------------------


def test_the_command_labels_what_it_prints(run: Path, command: Command) -> None:
    words = ["influence", run, "--prompt", "open-one says: the ", "--output", "quick"]
    code, out, err = command(*words, "--records", 6, "--top", 1)
    assert code == 0, err
    assert LABEL in out
    assert "acme" in out
    assert "exact: no shared layer" in out
    assert "the estimates for these steps add up to" in out
    for limit in LIMITS:
        assert limit in out
    assert "3/3  checkpoint" in err


def test_the_page_names_every_limit_and_bound() -> None:
    page = (ROOT / "docs" / "influence.md").read_text()
    for limit in LIMITS:
        assert limit in page
    for bound in (module.MOST_PARAMETERS, module.MOST_COMMITS, module.MOST_ROWS):
        assert f"{bound:,}" in page


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nowhere", "--output", "x"], 2, "not the folder of a run"),
        (["{run}", "--output", ""], 2, "there is no output"),
        (["{run}", "--output", "x", "--adapter", "mystery"], 2, "no such adapter"),
        (["{run}", "--output", "x" * 40], 2, "reads at most 32"),
        (["{run}", "--output", "x", "--records", "1"], 2, "--records"),
        (["{run}"], 2, "--output"),
    ],
)
def test_what_is_wrong_is_one_paragraph(
    words: list[str], code: int, says: str, run: Path, command: Command
) -> None:
    found, _, err = command("influence", *(word.format(run=run) for word in words))
    assert found == code, err
    assert says in err
    assert "Traceback" not in err


def test_what_is_too_large_is_refused_with_the_bound(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "MOST_ROWS", 5)
        with pytest.raises(UsageError, match="at most 5 are read"):
            output_influence(run, QUESTION)
    monkeypatch.setattr(module, "MOST_PARAMETERS", 100)
    with pytest.raises(UsageError, match="at most 100 are taken"):
        output_influence(run, QUESTION)


def test_of_many_commits_few_are_taken_and_the_last_among_them() -> None:
    steps = [(step, None) for step in range(1, 30)]
    taken = module._spread(steps, 8)  # type: ignore[arg-type]
    assert len(taken) == 8
    assert taken[-1] == steps[-1]
    assert module._spread(steps[:3], 8) == steps[:3]  # type: ignore[arg-type]


def test_a_run_whose_data_or_commits_are_gone_cannot_be_asked(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "alone" / run.name
    shutil.copytree(run, copy)
    with pytest.raises(CouldNotCheck, match="prepared"):
        output_influence(copy, QUESTION)
    for commit in copy.glob("checkpoint_*"):
        shutil.rmtree(commit)
    with pytest.raises(CouldNotCheck, match="checkpoint"):
        output_influence(copy, QUESTION)
