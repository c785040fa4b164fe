"""Layer groups: every parameter in exactly one, whatever the module; doubt is refused by name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from govray.engine.model.gpt import GPT
from govray.engine.model.layer_groups import layer_groups
from govray.errors import Refused
from tests.support.table import each_row


class Decoder(nn.Module):
    """The shape of Hugging Face decoders: blocks one level down, the head outside."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed = nn.Embedding(7, 4)
        self.model.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(4), "experts": nn.ModuleList([nn.Linear(4, 4)])})
            for _ in range(blocks)
        )
        self.model.norm = nn.RMSNorm(4)
        self.lm_head = nn.Linear(4, 7, bias=False)


def meta_gpt(blocks: int, tied: bool) -> GPT:
    with torch.device("meta"):
        return GPT(blocks, 8, 4, 5, tied=tied)


@given(blocks=st.integers(1, 12), tied=st.booleans())
def test_every_parameter_is_in_exactly_one_group_in_canonical_order(
    blocks: int, tied: bool
) -> None:
    model = meta_gpt(blocks, tied)
    groups = layer_groups(model)
    listed = [fqn for fqns in groups.values() for fqn in fqns]
    assert sorted(listed) == sorted(name for name, _ in model.named_parameters())
    numbered = [f"block.{i}" for i in range(blocks)]
    ends = ["final_norm"] if tied else ["final_norm", "head"]
    starts = ["embedding", "embedding+head"] if tied else ["embedding"]
    assert list(groups) == [*starts, *numbered, *ends]


def test_meta_device_and_cpu_agree() -> None:
    assert layer_groups(GPT(3, 8, 4, 5)) == layer_groups(meta_gpt(3, tied=False))


def test_blocks_are_the_outermost_list_not_the_experts_inside() -> None:
    groups = layer_groups(Decoder())
    assert list(groups) == ["embedding", "block.0", "block.1", "final_norm", "head"]
    assert groups["block.1"] == (
        "model.layers.1.norm.weight",
        "model.layers.1.norm.bias",
        "model.layers.1.experts.0.weight",
        "model.layers.1.experts.0.bias",
    )
    assert groups["head"] == ("lm_head.weight",)


def test_tied_tensor_is_one_group_under_its_first_name() -> None:
    model = Decoder()
    model.lm_head.weight = model.model.embed.weight
    groups = layer_groups(model)
    assert next(iter(groups)) == "embedding+head"
    assert groups["embedding+head"] == ("model.embed.weight",)
    assert "embedding" not in groups
    assert "head" not in groups


def test_one_block_used_twice_is_one_group_of_both_places() -> None:
    model = Decoder()
    model.model.layers[1] = model.model.layers[0]
    groups = layer_groups(model)
    assert "block.0+block.1" in groups
    assert "block.0" not in groups


def test_models_of_continuous_inputs_have_an_embedding_too() -> None:
    model = nn.Sequential()
    model.add_module("project", nn.Linear(3, 4))
    model.add_module("layers", nn.ModuleList(nn.Linear(4, 4) for _ in range(2)))
    model.add_module("out", nn.Linear(4, 2))
    groups = layer_groups(model)
    assert list(groups) == ["embedding", "block.0", "block.1", "head"]
    assert groups["embedding"] == ("project.weight", "project.bias")


def test_a_policys_own_groups_take_precedence_and_come_last() -> None:
    groups = layer_groups(
        meta_gpt(2, tied=False),
        {"attention": ["blocks.*.attention.*"], "positions": ["*.positions.weight"]},
    )
    assert list(groups) == [
        "embedding",
        "block.0",
        "block.1",
        "final_norm",
        "head",
        "attention",
        "positions",
    ]
    assert groups["positions"] == ("embedding.positions.weight",)
    assert all(".attention." not in fqn for fqn in groups["block.0"])


def test_a_group_that_the_policy_names_holds_only_what_its_globs_match() -> None:
    with pytest.raises(Refused, match=r"embedding\.tokens\.weight is in no layer group"):
        layer_groups(meta_gpt(2, tied=False), {"embedding": ["*.positions.weight"]})


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)


def model_of(**modules: nn.Module) -> nn.Module:
    model = nn.Module()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


def blocks(count: int, width: int = 4) -> list[Block]:
    return [Block(width) for _ in range(count)]


def two_towers() -> nn.Module:
    return model_of(
        embed=nn.Embedding(7, 4),
        encoder=nn.ModuleList(blocks(2, width=8)),
        decoder=nn.ModuleList(blocks(3)),
        head=nn.Linear(4, 7),
    )


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        ({"other": ["decoder.*"]}, ["embedding", "block.0", "block.1", "head", "other"]),
        # The larger list is named, so the smaller one has the blocks.
        ({"other": ["encoder.*"]}, ["embedding", "block.0", "block.1", "block.2", "head", "other"]),
        ({"a": ["encoder.*"], "b": ["decoder.*"]}, ["embedding", "head", "a", "b"]),
    ],
)
def test_naming_one_list_leaves_the_blocks_to_the_other(
    custom: dict[str, list[str]], expected: list[str]
) -> None:
    assert list(layer_groups(two_towers(), custom)) == expected


def test_an_early_norm_belongs_to_the_embedding_where_it_cannot_be_the_final_one() -> None:
    layers = nn.ModuleList(blocks(1))
    before_another = model_of(
        embed=nn.Embedding(7, 4), norm=nn.LayerNorm(4), layers=layers, last=nn.RMSNorm(4)
    )
    within_a_module = model_of(
        inputs=model_of(embed=nn.Embedding(7, 4), norm=nn.LayerNorm(4)), layers=layers
    )
    after_a_convolution = model_of(conv=nn.Conv1d(2, 4, 1), norm=nn.GroupNorm(2, 4), layers=layers)
    for model, prefix in (
        (before_another, ""),
        (within_a_module, "inputs."),
        (after_a_convolution, ""),
    ):
        assert f"{prefix}norm.weight" in layer_groups(model)["embedding"]


@each_row("name", ["unembed", "decoder_pos_embed", "mask_token", "scale"])
def test_other_parameters_of_the_model_itself_are_in_doubt(name: str) -> None:
    model = model_of(conv=nn.Conv2d(3, 4, 1), layers=nn.ModuleList(blocks(1)))
    model.register_parameter(name, nn.Parameter(torch.zeros(1, 1, 4)))
    with pytest.raises(Refused, match=f"{name} is in no layer group"):
        layer_groups(model)


def headed_early() -> nn.Module:
    model = nn.Module()
    model.head = nn.Linear(4, 7)
    model.embed = nn.Embedding(7, 4)
    model.layers = nn.ModuleList([nn.Linear(4, 4)])
    return model


def pooled() -> nn.Module:
    model = Decoder()
    model.pool = nn.Linear(4, 4)
    model.classify = nn.Linear(4, 2)
    return model


def aliased() -> nn.Module:
    model = Decoder()
    model.lm_head.weight = nn.Parameter(model.model.embed.weight.data)
    return model


@each_row(
    ("model", "custom", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2)), {}, r"0\.weight is in no layer group"),
        (headed_early(), {}, r"head\.weight is in no layer group"),
        (pooled(), {}, r"lm_head\.weight is in no layer group"),
        (aliased(), {}, r"lm_head\.weight and .*share memory"),
        (Decoder(), {"adapterish": ["lora.*"]}, "adapterish matches no parameter"),
        (Decoder(), {"a": ["lm_head.*"], "b": ["*head*"]}, "two layer groups, a and b"),
    ],
)
def test_doubt_is_refused_by_name(
    model: nn.Module, custom: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        layer_groups(model, custom)
