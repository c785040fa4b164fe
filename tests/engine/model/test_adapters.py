"""Adapters: absent from the plain forward, keyed from the start, and loadable by peft."""

import json
import warnings
from collections.abc import Callable

import peft
import pytest
import safetensors.torch
import torch
import transformers
from torch import nn

from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.errors import Malformed, UsageError
from tests.support.table import each_row


def small_gpt():
    torch.manual_seed(3)
    return GPT(blocks=2, width=32, context=8, vocabulary=11)


def batch():
    tokens = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(5))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def move(adapters, name):
    """Give both factors values, so that the adapter says something."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter_name, parameter in adapters.named_parameters():
            if parameter_name.startswith(f"adapter:{name}/"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def test_an_inactive_adapter_leaves_model_and_forward_bit_identical():
    plain, hosting = small_gpt(), small_gpt()
    adapters = Adapters(hosting, {"notes": 4}, seed=1)
    move(adapters, "notes")
    assert list(hosting.state_dict()) == list(plain.state_dict())
    losses, expected = loss(hosting, batch()), loss(plain, batch())
    assert torch.equal(losses, expected)
    losses.sum().backward()
    expected.sum().backward()
    for (name, parameter), twin in zip(hosting.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter.grad, twin.grad), name
    # The control: active, it changes the output.
    with adapters.active("notes"):
        assert not torch.equal(loss(hosting, batch()), expected)


def test_a_fresh_adapter_changes_no_output_but_learns():
    model = small_gpt()
    adapters = Adapters(model, {"notes": 4}, seed=1)
    with adapters.active("notes"):
        losses = loss(model, batch())
    assert torch.equal(losses, loss(model, batch()))
    losses.sum().backward()
    gradients = {name: parameter.grad for name, parameter in adapters.named_parameters()}
    assert all(
        (gradient.abs().sum() > 0) == name.endswith("lora_B.weight")
        for name, gradient in gradients.items()
    )


def test_only_the_active_adapter_is_read():
    model = small_gpt()
    adapters = Adapters(model, {"notes": 4, "other": 2}, seed=1)
    move(adapters, "notes")
    with adapters.active("notes"):
        loss(model, batch()).sum().backward()
    for name, parameter in adapters.named_parameters():
        assert (parameter.grad is not None) == name.startswith("adapter:notes/"), name


def test_first_weights_depend_on_seed_name_and_layer_alone():
    def first(ranks, seed=1):
        torch.manual_seed(torch.seed())  # whatever the shared generator holds
        return dict(Adapters(small_gpt(), ranks, seed=seed).named_parameters())

    alone, beside = first({"notes": 4}), first({"other": 2, "notes": 4})
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    key = "adapter:notes/blocks.{}.mlp.up.lora_A.weight"
    assert not torch.equal(alone[key.format(0)], alone[key.format(1)])
    assert not torch.equal(alone[key.format(0)], first({"notes": 4}, seed=2)[key.format(0)])
    renamed = first({"memos": 4})[key.format(0).replace("notes", "memos")]
    assert not torch.equal(alone[key.format(0)], renamed)


def test_first_weights_are_pinned():
    """A golden value: a replay must draw what the recorded run drew."""
    parameters = dict(Adapters(small_gpt(), {"notes": 2}, seed=17).named_parameters())
    start = parameters["adapter:notes/blocks.0.mlp.up.lora_A.weight"][0, :3]
    golden = [float.fromhex(text) for text in ("-0x1.c75d44p-6", "0x1.5f4dbap-3", "0x1.36642ap-3")]
    assert start.tolist() == golden


def test_export_and_load_round_trip():
    model = small_gpt()
    source, target = (Adapters(model, {"notes": 4}, seed=seed) for seed in (1, 2))
    move(source, "notes")
    config, tensors = source.export("notes")
    target.load("notes", json.loads(json.dumps(config)), tensors)
    for (name, parameter), twin in zip(
        source.named_parameters(), dict(target.named_parameters()).values(), strict=True
    ):
        assert torch.equal(parameter, twin), name


@each_row(
    ("mutate", "message"),
    [
        (lambda config, tensors: config.update(r=8), "r is 8, expected 4"),
        (lambda config, tensors: config.update(lora_alpha=4), "lora_alpha is 4, expected 8"),
        (lambda config, tensors: config.pop("peft_type"), "peft_type is None"),
        (lambda config, tensors: tensors.pop(min(tensors)), "is missing"),
        (lambda config, tensors: tensors.update(extra=torch.zeros(1)), "extra is unknown"),
        (
            lambda config, tensors: tensors.update({min(tensors): torch.zeros(4, 5)}),
            r"has shape \(4, 5\)",
        ),
    ],
)
def test_loading_something_else_is_refused_and_changes_nothing(mutate, message):
    adapters = Adapters(small_gpt(), {"notes": 4}, seed=1)
    before = {name: parameter.clone() for name, parameter in adapters.named_parameters()}
    config, tensors = adapters.export("notes")
    tensors = {name: tensor + 1 for name, tensor in tensors.items()}
    mutate(config, tensors)
    with pytest.raises(Malformed, match=message):
        adapters.load("notes", config, tensors)
    assert all(torch.equal(before[name], p) for name, p in adapters.named_parameters())


def gpt2():
    """Linear layers are transformers' Conv1D, whose weight is (in, out)."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=8, vocab_size=11)
    return transformers.GPT2LMHeadModel(config).eval()


def llama():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=11,
        pad_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).eval()


def logits(model):
    out = model(batch()["tokens"])
    return out if isinstance(out, torch.Tensor) else out.logits


MODELS = [
    pytest.param(small_gpt, 8, id="gpt"),
    pytest.param(gpt2, 8, id="gpt2"),
    pytest.param(llama, 14, id="llama"),
]


@pytest.mark.parametrize(("build", "layers"), MODELS)
def test_peft_loads_an_export_onto_the_plain_model(build, layers, tmp_path):
    model = build()
    adapters = Adapters(model, {"notes": 4}, seed=1)
    move(adapters, "notes")
    config, tensors = adapters.export("notes")
    assert len(tensors) == 2 * layers
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, tmp_path / "adapter_model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # all that peft says of a missing tensor
        loaded = peft.PeftModel.from_pretrained(build(), str(tmp_path))
    with adapters.active("notes"):
        expected = logits(model)
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-5, atol=1e-6)
    with loaded.disable_adapter():
        torch.testing.assert_close(logits(loaded), logits(build()), rtol=1e-5, atol=1e-6)
    # The control: the adapter says something.
    assert not torch.allclose(expected, logits(build()), atol=1e-3)


class Blocks(nn.Module):
    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = blocks, nn.Linear(4, 3)


class Packed(nn.Module):
    """As libraries keep weights of four bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(4, 1, dtype=torch.int32))


class OwnLinear(nn.Linear): ...


@each_row(
    ("block", "said"),
    [
        (torch.ao.nn.quantized.dynamic.Linear, r"blocks\.0 \(torch\.ao.*Linear\) is quantised"),
        (lambda *_: Packed(), r"blocks\.0 \(.*Packed\) is quantised, .*full weights"),
        (nn.LSTM, r"hold no linear layer, but LSTM, and adapters are built for nn\.Linear alone"),
        (lambda *_: nn.Sequential(nn.Conv2d(4, 4, 1)), "hold no linear layer, but Conv2d"),
        (OwnLinear, r"blocks\.0 is a OwnLinear, and a subclass of nn\.Linear may compute"),
    ],
)
def test_a_model_without_a_layer_to_adapt_hears_why(
    block: Callable[[int, int], nn.Module], said: str
) -> None:
    with pytest.raises(UsageError, match=rf"Blocks: .*{said}.* or use a profile without adapter"):
        Adapters(Blocks(nn.ModuleList(block(4, 4) for _ in range(2))), {"a": 2}, seed=0)
    nested = nn.ModuleList(nn.ModuleList([nn.Linear(4, 4)]) for _ in range(2))
    assert len(Adapters(Blocks(nested), {"a": 2}, seed=0).groups["adapter:a"]) == 4
    with pytest.raises(UsageError, match=r"no nn\.ModuleList has parameters"):
        Adapters(Blocks(nn.Sequential(nn.Linear(4, 4))), {"a": 2}, seed=0)
