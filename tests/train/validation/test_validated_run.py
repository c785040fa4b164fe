"""Runs that are judged by validation data. One rank, no Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

from govray.engine import gpt as entrypoint
from govray.engine.model import gpt
from govray.errors import Refused
from govray.governance.verify.verifier import verify
from govray.train import Histogram, govern
from govray.train.attest.write_model import write_model
from govray.train.checkpoint import commit_folder
from govray.train.driver import preparation
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.run_listing import inspect
from govray.train.inputs.run_record import RunRecord, read_record
from govray.train.replay.replayed_run import replay
from govray.train.run_folder import events
from govray.train.run_folder.figures import newest
from govray.train.state.garbage_collection import inventory
from govray.train.state.snapshot import latest
from govray.train.validation import evaluation
from tests.support.deployment import Deployment
from tests.support.held_out import RECORDS, hold_out, judged_trainer

NEVER_BETTER = {"early_stopping": {"patience": 2, "min_delta": 1000.0}}


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = latest(run)
    assert found is not None
    held: Any = commit_folder.load(found[0]).files
    return {
        f"{name}/{tensor}": value
        for name in held
        if name.endswith(".safetensors")
        for tensor, value in load(held[name]).items()
    }


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def validations(run: Path) -> list[events.Reported]:
    log = events.read(run)
    return [e for e in log if isinstance(e, events.Reported) and e.group == "validation"]


def test_validation_changes_no_bit(here: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_out(here)
    plain = judged_trainer(here, None).train()
    judged = judged_trainer(here, {}).train()
    assert [each.step for each in validations(judged)] == [1, 3, 5, 7, 9, 11]
    assert {*validations(judged)[0].values} == {"loss", "perplexity", "accuracy"}
    assert equal(weights(plain), weights(judged))

    # The control: a model that is left in the mode in which it was measured learns otherwise.
    @contextmanager
    def touched(model: nn.Module) -> Iterator[None]:
        model.eval()
        yield

    monkeypatch.setattr(evaluation, "untouched", touched)
    assert not equal(weights(plain), weights(judged_trainer(here, {}).train()))


def test_a_run_is_measured_in_the_numbers_that_it_trains_in(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_out(here)
    seen: dict[bool, set[bool]] = {False: set(), True: set()}
    loss = gpt.loss

    def noted(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        seen[torch.is_grad_enabled()].add(torch.is_autocast_enabled("cpu"))
        return loss(model, batch)

    monkeypatch.setattr(entrypoint, "loss", noted)
    judged_trainer(here, {}, precision="bf16-mixed").train()
    assert seen[False] == {True}
    assert True in seen[True]  # the trial of rows, before that, is in float32


def test_a_run_that_gets_no_better_ends_and_stays_ended(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_out(here)
    trainer = judged_trainer(here, NEVER_BETTER)
    with monkeypatch.context() as dying:
        # The driver dies between the last commit and its own record of the end.
        dying.setattr(RunRecord, "end", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.train()
    [run] = (here.folder / "runs").glob("tiny-*")
    assert inspect(run).state == "interrupted"
    stepped: list[int] = []
    again = replace(trainer, resume=run, on_step=lambda step, metrics: stepped.append(step))
    assert again.train() == run
    assert stepped == []
    record = read_record(run)
    # The first is the best; neither the second nor the third is better by so much.
    assert (record.ended, record.steps, record.plan.max_steps) == (6, 6, 12)
    assert inspect(run).state == "finished"
    [ended] = [e for e in events.read(run) if isinstance(e, events.EndedEarly)]
    assert "after 6 steps: validation/loss was no better than" in ended.text

    write_model(run, trainer.signer())
    model = verify(run / "model", trust_root=here.root)
    assert len(model.ledger.steps) == model.attestation.steps == 6
    [stated] = model.attestation.selection_taint or ()
    assert (stated.search, stated.metric, stated.ended) == (None, "validation/loss", 6)
    assert {*(stated.validation or {})} == {"held-out"}
    assert stated.corpora == ("acme", "open-one", "open-two", "weak-one")
    found = replay(run)
    assert found.identical
    assert found.whole


def test_the_best_commit_is_the_best_by_the_metric(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_out(here)
    scripted = iter([0.1, 0.6, 0.3, 0.6, 0.2, 0.1])
    monkeypatch.setattr(
        evaluation, "metrics_of", lambda *_: {"loss": 1.0, "accuracy": next(scripted)}
    )
    run = judged_trainer(here, {"metric": "accuracy"}).train()
    found = inventory(run)
    assert (found.rules.metric, found.rules.goal) == ("validation/accuracy", "max")
    assert {each.step: each.value for each in found.commits} == {12: 0.1, 8: 0.6}


def test_records_that_are_trained_on_are_refused(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 24 records of open-one, six stand in the validation corpus too.
    hold_out(here, text="open-one says: the quick brown fox number {} jumps over the lazy dog. ")
    with pytest.raises(Refused, match=f"{RECORDS} records of open-one stand in held-out"):
        judged_trainer(here, {}).train()
    assert not list((here.folder / "runs").glob("tiny-*"))
    # A corpus that the plan leaves out is not trained on.
    data = {**here.experiment()["data"], "exclude": ["open-one"]}  # type: ignore[dict-item]
    judged_trainer(here, {}, data=data).train()
    monkeypatch.setattr(preparation, "refuse_overlap", lambda *_: None)
    judged_trainer(here, {}).train()  # the control


def own_loop(config: dict[str, Any]) -> None:
    """A loop that measures something itself, and forgets it in the end."""
    model = gpt.GPT(blocks=2, width=32, context=32, vocabulary=257)
    run = govern(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    values = iter(config["f1"])
    for batch in run.batches():
        metrics = run.step(batch, gpt.loss)
        if (batch.step + 1) % 2 == 0 and (value := next(values)) is not None:
            metrics["f1"] = value
        seen = Histogram(edges=[0.0, 1.0], counts=[batch.step])
        run.report({**metrics, "seen": seen}, reduce={"loss": "max"})


def test_what_a_loop_reports_itself_decides(here: Deployment) -> None:
    def trainer_of(*values: float | None) -> GovernedTrainer:
        section = {"corpora": None, "metric": "f1", "goal": "max"}
        return replace(
            judged_trainer(here, section | {"early_stopping": {"patience": 2}}),
            train_loop_per_worker=own_loop,
            train_loop_config={"f1": list(values)},
        )

    trainer = trainer_of(0.1, 0.7, 0.2, 0.3, 0.9)
    run = trainer.train()
    assert read_record(run).ended == 8
    [drawn] = newest(str(run))
    assert (drawn.name, drawn.step) == ("seen", 7)
    assert drawn.figure == Histogram(edges=[0.0, 1.0], counts=[7])
    assert {each.step: each.value for each in inventory(run).commits} == {8: 0.3, 4: 0.7}
    write_model(run, trainer.signer())
    [stated] = verify(run / "model", trust_root=here.root).attestation.selection_taint or ()
    assert (stated.metric, stated.validation) == ("f1", None)
    result = verify(run / "model", trust_root=here.root).attestation.validation
    assert result is not None
    assert (result.value, result.corpora) == (0.3, None)

    with pytest.raises(Refused, match=r"rank 0: it reports no number 'f1'.*but loss, rows"):
        trainer_of(0.1, None).train()


def test_a_credential_of_validation_data_that_ended_is_refused(here: Deployment) -> None:
    hold_out(here)
    trainer = judged_trainer(here, {})
    [credential] = here.folder.glob("validation/*/credential.dsse.json")
    credential.write_bytes(credential.read_bytes().replace(b'"sig":"', b'"sig":"AAAA'))
    with pytest.raises(Refused, match="signature"):
        trainer.train()
