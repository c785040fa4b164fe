"""Small models of known architectures, and batches for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import Route
from govray.governance.policy.selector import parse_selector

CONTEXT, VOCABULARY, CLASSES, RANK = 6, 23, 5, 2


Tensors = dict[str, Tensor]


class Residual(nn.Module):
    """Two convolutions beside a shortcut, each with GroupNorm."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, width)
        self.shortcut = nn.Conv2d(inside, width, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm1(self.conv1(images)).relu()
        return (self.norm2(self.conv2(hidden)) + self.shortcut(images)).relu()


class ResNet(nn.Module):
    """The usual layout: a stem, numbered stages in nn.Sequential, a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, 16)
        self.layer1 = nn.Sequential(Residual(16, 16, 1), Residual(16, 16, 1))
        self.layer2 = nn.Sequential(Residual(16, 32, 2), Residual(32, 32, 1))
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden = self.norm1(self.conv1(pixel_values)).relu()
        return self.fc(self.layer2(self.layer1(hidden)).mean((2, 3)))


def language_model(**config: Any) -> nn.Module:
    return CausalLM(CONTEXT, VOCABULARY, config=config)


def decoder(model_type: str, **config: Any) -> nn.Module:
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": None,
    }
    return language_model(model_type=model_type, **sizes | config)


def gpt2(**config: Any) -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    return language_model(model_type="gpt2", **sizes | off | config)


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=8,
            patch_size=4,
            num_labels=CLASSES,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def image_batch(rows: int, *key: int) -> Tensors:
    generator = torch.Generator().manual_seed(hash(key) % 2**31)
    return {
        "pixel_values": torch.randn(rows, 3, 8, 8, generator=generator),
        "targets": torch.randint(CLASSES, (rows,), generator=generator),
    }


def image_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    output = model(batch["pixel_values"].to(next(model.parameters()).dtype))
    return F.cross_entropy(getattr(output, "logits", output), batch["targets"], reduction="none")


def upper_half(model: nn.Module) -> Route:
    groups = list(layer_groups(model))
    chosen = {"blocks[0.5:]", "final_norm", "head"} - ({"final_norm", "head"} - set(groups))
    return Route({group: 1.0 for each in chosen for group in parse_selector(each).select(groups)})
