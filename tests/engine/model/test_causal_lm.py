"""`CausalLM`: a local folder or a config, under the library's own names; nothing else is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.layer_groups import layer_groups
from govray.errors import UsageError

CONTEXT, VOCABULARY = 8, 20

LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "eos_token_id": None,
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def original() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=CONTEXT,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


@pytest.fixture
def folder(original: GPT2LMHeadModel, tmp_path: Path) -> Path:
    original.save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def tokens(rows: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (rows, CONTEXT), generator=generator)


def test_a_folder_s_weights_and_logits_are_the_library_s(
    original: GPT2LMHeadModel, folder: Path
) -> None:
    model = CausalLM(CONTEXT, VOCABULARY, path=str(folder))
    assert model.training
    ours, theirs = model.state_dict(), original.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(model.eval()(tokens()), original.eval()(tokens()).logits)


def test_a_run_is_told_which_files_the_weights_come_from(folder: Path) -> None:
    given = {"context": CONTEXT, "path": str(folder)}
    assert CausalLM.starts_from(given) == [folder / "model.safetensors"]
    assert CausalLM.starts_from({"context": CONTEXT, "config": LLAMA}) == []
    in_shards(folder, {"a": torch.zeros(1)}, {"b": torch.zeros(1)})
    assert [file.name for file in CausalLM.starts_from(given)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    empty = folder.parent / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=r"no model\.safetensors"):
        CausalLM.starts_from({"path": str(empty)})


@pytest.mark.parametrize("vocabulary", [VOCABULARY, VOCABULARY + 1, VOCABULARY + 6])
def test_the_meta_device_finds_the_same_groups_and_reads_no_weights(
    folder: Path, vocabulary: int
) -> None:
    read = CausalLM(CONTEXT, vocabulary, path=str(folder))
    (folder / "model.safetensors").write_bytes(b"not read")
    with torch.device("meta"):
        model = CausalLM(CONTEXT, vocabulary, path=str(folder))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert layer_groups(model) == layer_groups(read)
    assert model.lm_head.weight.shape == read.lm_head.weight.shape


def test_dropout_in_attention_is_off_and_other_dropout_is_kept(folder: Path) -> None:
    model = CausalLM(CONTEXT, VOCABULARY, path=str(folder))
    assert model.transformer.h[0].attn.attn_dropout.p == 0.0
    assert model.transformer.h[0].attn.resid_dropout.p == GPT2Config().resid_pdrop > 0


def test_an_encoder_is_refused() -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = {"model_type": "bert", "intermediate_size": 16, **small}
    with pytest.raises(UsageError, match="no causal attention"):
        CausalLM(CONTEXT, VOCABULARY, config=bert)
    assert CausalLM(CONTEXT, VOCABULARY, config={**bert, "is_decoder": True})


# What can be wrong with a folder. Each changes one thing in a sound one.


def pickled(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def configured(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def with_tensors(folder: Path, **changes: Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | {f"transformer.wpe.{name}": t for name, t in changes.items()}
    save_file({name: t for name, t in tensors.items() if t is not None}, file)


def in_shards(folder: Path, *tensors: Mapping[str, Tensor]) -> None:
    (folder / "model.safetensors").unlink()
    for number, each in enumerate(tensors, start=1):
        save_file(dict(each), folder / f"model-{number:05}-of-{len(tensors):05}.safetensors")


def a_shard_twice(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    in_shards(folder, tensors, {"transformer.wpe.weight": tensors["transformer.wpe.weight"]})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (pickled, r"no model\.safetensors, only pytorch_model\.bin, a pickle"),
        (truncated, "not a safetensors file"),
        (lambda f: with_tensors(f, weight=None), r"wpe\.weight is not in the folder's weights"),
        (lambda f: with_tensors(f, weight=torch.zeros(3, 16)), r"wpe\.weight has another shape"),
        (lambda f: with_tensors(f, more=torch.zeros(3)), r"wpe\.more is a weight .* model lacks"),
        (a_shard_twice, r"00002-of-00002.*wpe\.weight is in another file too"),
        (lambda f: (f / "config.json").unlink(), r"config\.json: no such file"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json: not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json: not a JSON object"),
        (lambda f: configured(f, n_positions=7), "n_positions is 7, the context 8"),
        (lambda f: configured(f, n_embd="x"), "'n_embd' expected int"),
        (lambda f: configured(f, model_type="mine"), "model_type 'mine' is no causal"),
        (lambda f: configured(f, quantization_config={"bits": 4}), "weights are quantised"),
    ],
)
def test_a_bad_folder_is_refused_by_name(folder: Path, spoil: Any, message: str) -> None:
    spoil(folder)
    with pytest.raises(UsageError, match=message):
        CausalLM(CONTEXT, VOCABULARY, path=str(folder))


def test_a_folder_whose_tensors_the_library_renames_or_joins_is_not_refused(
    folder: Path, tmp_path: Path
) -> None:
    """GPT-2 as it was published, masks included, and the experts of Mixtral, which are joined."""
    file = folder / "model.safetensors"
    tensors = {n.removeprefix("transformer."): t for n, t in load_file(file).items()}
    save_file(tensors | {"h.0.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT)}, file)
    CausalLM(CONTEXT, VOCABULARY, path=str(folder))
    fields = LLAMA | {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}
    fields["num_key_value_heads"] = 2
    joined = CausalLM(CONTEXT, VOCABULARY, config=fields)
    joined.language_model.save_pretrained(tmp_path / "mixtral")
    assert any("experts.1.w2" in name for name in load_file(tmp_path / "mixtral/model.safetensors"))
    model = CausalLM(CONTEXT, VOCABULARY, path=str(tmp_path / "mixtral"))
    assert all(map(torch.equal, model.parameters(), joined.parameters()))


def test_a_missing_folder_is_not_looked_for_elsewhere() -> None:
    with pytest.raises(UsageError, match="nothing is downloaded"):
        CausalLM(CONTEXT, VOCABULARY, path="gpt2")


def test_code_of_a_folder_does_not_run(original: GPT2LMHeadModel, folder: Path) -> None:
    ran = folder / "ran"
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w')")
    configured(
        folder,
        auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
        _attn_implementation="someone/kernel",
        transformers_weights="elsewhere.bin",
    )
    model = CausalLM(CONTEXT, VOCABULARY, path=str(folder))
    assert torch.equal(model.lm_head.weight, original.lm_head.weight)
    assert not ran.exists()
