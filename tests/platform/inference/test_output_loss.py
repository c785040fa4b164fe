"""An output's loss is the model's own, with and without its adapter, and the verb shows both."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional

from govray.cli import main
from govray.errors import UsageError
from govray.platform.inference.generation import output_losses
from govray.platform.inference.served_model import ServedModel, load
from tests.platform.inference.conftest import Trained

PROMPT, OUTPUT = "acme says: ", "the quick"


@pytest.fixture(scope="module")
def served(trained: Trained) -> ServedModel:
    return load(trained.folder, trust_root=trained.root)


def test_the_loss_is_that_of_the_outputs_tokens_alone(served: ServedModel) -> None:
    losses = output_losses(served, PROMPT, OUTPUT)
    assert losses.keys() == {None, "acme"}
    tokens = torch.tensor([served.tokenizer.separator, *(PROMPT + OUTPUT).encode()])
    for adapter, loss in losses.items():
        with torch.no_grad(), served.adapters.active(adapter):
            logits = served.model(tokens[None])[0].double()
        place = len(tokens) - len(OUTPUT)
        each = [
            functional.cross_entropy(logits[p - 1], tokens[p]) for p in range(place, len(tokens))
        ]
        assert loss == pytest.approx(float(sum(each)) / len(OUTPUT), rel=1e-6)
    assert losses[None] != losses["acme"]


def test_what_it_cannot_read_is_refused(served: ServedModel) -> None:
    with pytest.raises(UsageError, match="no output"):
        output_losses(served, PROMPT, "")
    with pytest.raises(UsageError, match="at most"):
        output_losses(served, "x" * served.context, OUTPUT)
    assert output_losses(served, "", "ab")[None] > 0


def test_the_verb_shows_both_and_who_trained_the_adapter(
    trained: Trained, served: ServedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["model", "influence", str(trained.folder), "--prompt", PROMPT, "--output", OUTPUT]
    asked += ["--trust-root", str(trained.root)]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    losses = output_losses(served, PROMPT, OUTPUT)
    [adapter] = told["adapters"]
    assert (told["loss"], adapter["loss"]) == (losses[None], losses["acme"])
    assert adapter["corpora"]
    assert adapter["change"] == losses["acme"] - losses[None]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "acme" in shown
    assert "govray replay RUN --without CORPUS" in shown
    assert main([*asked[:-2], "--trust-root", str(trained.folder / "attestation.dsse.json")]) != 0
