"""Every rank's rows of a model that was never whole are those of the whole model, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import nn

from benchmarks.memory import peak_bytes
from govray.engine.gpt import GPT
from govray.engine.huggingface import CausalLM
from govray.engine.vit import VisionTransformer
from govray.train.checkpoint.sharded_file import cut
from govray.train.checkpoint.sharded_init import NeedsWhole, rows_of

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 3,
}


class Styles(nn.Module):
    """The ways in which constructors write weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5, padding_idx=2)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.scale = nn.Parameter(torch.full((5,), 2.0))
        self.drawn = nn.Parameter(torch.randn(9, 4), requires_grad=False)
        self.spare = nn.Parameter(torch.linspace(0, 1, 6))
        self.register_buffer("noise", torch.rand(3))
        self.apply(self._begin)
        for layer in self.layers:
            layer.weight.data.mul_(0.5)
            layer.bias.data += 0.25
        nn.init.trunc_normal_(self.drawn, std=0.3)
        nn.init.orthogonal_(self.layers[1].weight)
        with torch.no_grad():
            self.layers[2].weight.copy_(torch.eye(5))
            self.layers[2].weight[1:3, 0].fill_(7.0)
            self.scale /= 3.0

    def _begin(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(std=0.1)
            module.weight.data[module.padding_idx].zero_()


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: GPT(3, 16, 8, 11, dropout=0.1),
    "tied": lambda: GPT(2, 16, 8, 11, tied=True),
    "vit": lambda: VisionTransformer([1, 4, 4], 3, 2, 1, 16),
    "llama": lambda: CausalLM(32, 64, config=LLAMA),
    "llama, tied": lambda: CausalLM(32, 64, config=LLAMA | {"tie_word_embeddings": True}),
    "styles": Styles,
}


@pytest.mark.parametrize("kind", BUILDS)
def test_the_rows_are_those_of_the_whole_model(kind: str) -> None:
    torch.manual_seed(3)
    whole = BUILDS[kind]()
    drawn = torch.get_rng_state()
    expected = dict(whole.named_parameters())
    for rank, world in ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4)):
        torch.manual_seed(3)
        built = rows_of(BUILDS[kind], rank, world)
        assert torch.equal(torch.get_rng_state(), drawn)
        found = dict(built.model.named_parameters())
        assert list(found) == list(expected) == list(built.rows) == list(built.sums)
        for name, parameter in expected.items():
            own = cut(len(parameter), rank, world)
            assert torch.equal(built.rows[name], parameter[own.start : own.stop]), name
            assert found[name].is_meta
            assert found[name].shape == parameter.shape
            assert found[name].requires_grad == parameter.requires_grad
        for (name, buffer), (_, other) in zip(
            built.model.named_buffers(), whole.named_buffers(), strict=True
        ):
            assert torch.equal(buffer, other), name


def test_no_more_than_two_parameters_are_whole_at_once() -> None:
    def large() -> nn.Module:
        return GPT(8, 128, 16, 2048)

    sizes = [parameter.nbytes for parameter in large().parameters()]
    cpu = torch.device("cpu")
    whole = peak_bytes(lambda: large, cpu)
    parts = peak_bytes(lambda: lambda: rows_of(large, 0, 4), cpu)
    assert whole >= sum(sizes)  # the control: so the counter sees it
    assert parts <= sum(sizes) / 4 + 2 * max(sizes) + 100_000


class Copied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.other = copy.deepcopy(self.one)


class Later(nn.Module):
    """Reads a parameter when the next one was made."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.other = nn.Parameter(self.one.weight.detach() * 2)


class Kept(nn.Module):
    """Writes into a tensor that it gave a parameter, when the next one was made."""

    def __init__(self) -> None:
        super().__init__()
        mine = torch.empty(4, 3)
        self.one = nn.Parameter(mine)
        self.other = nn.Linear(3, 3)
        mine.fill_(1.0)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.tensor(1.0))


class Swallows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        with suppress(Exception):
            self.scale = float(self.one.weight.norm())


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Copied, "is copied"),
        (Later, "read after another one was made"),
        (Kept, "memory is used after another one"),
        (Scalar, "a single number"),
        (Swallows, "read after another one was made"),
    ],
)
def test_what_can_not_be_built_so_is_not_guessed(kind: type[nn.Module], why: str) -> None:
    with pytest.raises(NeedsWhole, match=why):
        rows_of(kind, 0, 2)
    assert isinstance(kind().one, nn.Linear | nn.Parameter)  # nothing of it stays behind
