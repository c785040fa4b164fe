"""The start-up trial refuses none of the architectures that people train, mixed routes included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.gradients.precision import cast_parameters
from govray.engine.model.causal_lm import loss as token_loss
from govray.engine.model.gpt import GPT
from govray.engine.startup.row_trial import StartupTrial, _Comparison
from govray.errors import Refused
from tests.support.architectures import (
    CONTEXT,
    VOCABULARY,
    ResNet,
    decoder,
    gpt2,
    image_batch,
    image_loss,
    language_model,
    upper_half,
    vit,
)
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows

MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}


class Recurrent(nn.Module):
    """Layers of a GRU or an LSTM between an embedding and a head."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.layers = nn.ModuleList(kind(12, 12, batch_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden)[0]
        return self.head(self.norm(hidden))


def mamba() -> nn.Module:
    return language_model(
        model_type="mamba", hidden_size=16, num_hidden_layers=2, state_size=4, time_step_rank=2
    )


ZOO: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: GPT(2, 16, CONTEXT, VOCABULARY, heads=2),
    "llama": lambda: decoder("llama"),
    "gpt2": gpt2,
    "qwen2": lambda: decoder("qwen2"),
    "qwen3": lambda: decoder("qwen3", head_dim=8),
    "mistral": lambda: decoder("mistral", sliding_window=3),
    "gemma": lambda: decoder("gemma", head_dim=8, pad_token_id=0),
    "mixtral": lambda: decoder("mixtral", **MIXTRAL),
    "phi": lambda: decoder("phi", resid_pdrop=0.0, embd_pdrop=0.0),
    "gpt-neox": lambda: language_model(
        model_type="gpt_neox",
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
    ),
    "stablelm": lambda: decoder("stablelm"),
    "olmo2": lambda: decoder("olmo2", pad_token_id=1),
    "mamba": mamba,
    "vit": vit,
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "resnet": ResNet,
}


def losses_of(name: str) -> Any:
    return image_loss if name in ("vit", "resnet") else token_loss


def rows(name: str, count: int, key: int) -> dict[str, Tensor]:
    if name in ("vit", "resnet"):
        return image_batch(count, key)
    return token_rows(count, CONTEXT, VOCABULARY, key)


def train(name: str, loss_fn: Any) -> StartupTrial:
    torch.manual_seed(2)
    model = ZOO[name]()
    everything, upper = allow_all(model), upper_half(model)
    run = governed(model, torch.optim.AdamW(model.parameters(), lr=1e-3), [everything, upper])
    for step in range(2):
        run(
            step_batch(
                step,
                [
                    micro_batch(everything, rows(name, 3, 2 * step)),
                    micro_batch(upper, rows(name, 2, 2 * step + 1)),
                ],
            ),
            loss_fn,
        )
    return run._try_rows


def in_bf16(loss_fn: Any) -> Any:
    def autocast(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_fn(model, tensors)

    return autocast


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_it_is_not_refused(name: str, half: bool) -> None:
    loss_fn = losses_of(name)
    if half:
        loss_fn = in_bf16(loss_fn)
        try:
            loss_fn(ZOO[name](), rows(name, 1, 0))
        except RuntimeError as error:  # oneDNN has an LSTM in bfloat16 for some processors only
            pytest.skip(f"torch can't on this processor: {error}")
    trial = train(name, loss_fn)
    assert len(trial._rows_tried) == 2  # it did take place
    assert trial._compared


def train_balanced(coefficient: float, seed: int, **settings: Any) -> None:
    """A Mixtral with its load balanced over the rows of a forward."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    def balanced(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        output: Any = model.language_model(
            input_ids=tensors["tokens"], use_cache=False, output_router_logits=True
        )
        losses = F.cross_entropy(
            output.logits.transpose(1, 2), tensors["targets"], reduction="none"
        )
        return losses + coefficient * load_balancing_loss_func(output.router_logits, 4, 2)

    loss_fn = in_bf16(balanced) if settings.pop("half", False) else balanced
    torch.manual_seed(seed)
    model = ZOO["mixtral"]()
    if settings.get("precision") == "bf16":
        cast_parameters(model)
    everything = allow_all(model)
    run = governed(model, torch.optim.AdamW(model.parameters()), [everything], **settings)
    run(step_batch(0, [micro_batch(everything, rows("mixtral", 3, seed))]), loss_fn)


@pytest.mark.parametrize(
    "settings",
    [{}, {"half": True}, {"precision": "bf16-mixed"}, {"precision": "bf16"}],
    ids=["fp32", "cast by the loss", "bf16-mixed", "bf16"],
)
def test_an_auxiliary_loss_of_experts_is_refused(settings: dict[str, Any]) -> None:
    """At any weights, though the router's gradient is small beside the others'."""
    for coefficient, seed in ((0.001, 4), (0.02, 3)):
        with pytest.raises(Refused, match=r"a row's (loss|gradient of \S+) differs by"):
            train_balanced(coefficient, seed, **dict(settings))


def test_the_control_bfloat16_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_trains(self: StartupTrial, stream: str, rows: Any, step: int, loss_fn: Any) -> None:
        _Comparison(self, self._forward, stream, rows, step, loss_fn, None).run()

    monkeypatch.setattr(StartupTrial, "_compare_exactly", as_it_trains)
    train_balanced(0.001, 4, precision="bf16-mixed")
