"""The folder of an attested model of transformers is what its own library reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from govray.engine.model.causal_lm import CausalLM
from govray.errors import VerificationFailed
from govray.governance.attestation import model_folder
from govray.governance.verify.verifier import verify
from govray.platform.inference.served_model import load
from tests.support.deployment import Deployment

SHAPES: dict[str, dict[str, Any]] = {
    "tied llama": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
    },
    "untied gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "tie_word_embeddings": False,
    },
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
TEXT = "the quick brown fox number 7 jumps over the lazy dog"


def base_folder(folder: Path, config: dict[str, Any], *, tokenizer: bool) -> Path:
    """What somebody downloaded, with files beside that no model folder gets."""
    vocabulary = 256
    folder.mkdir()
    if tokenizer:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        kind = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
        made.train_from_iterator([TEXT] * 9, kind)
        made.save(str(folder / "tokenizer.json"))
        vocabulary = made.get_vocab_size()
        stated = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "auto_map": {"AutoTokenizer": "x.Y"},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(stated))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    torch.manual_seed(3)
    CausalLM(32, vocabulary, config=config).language_model.save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(stated | {"auto_map": {"AutoModel": "x.Y"}}))
    (folder / "generation_config.json").write_text('{"max_new_tokens": 9}')
    (folder / "modeling_x.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    return folder


def trained(here: Deployment, base: Path, *, tokenizer: bool, **changes: Any) -> Path:
    data: Any = here.experiment()["data"]
    if tokenizer:
        data = data | {"tokenizer": str(base / "tokenizer.json")}
    run = here.trainer(
        entrypoint="govray.engine.huggingface:CausalLM",
        hyperparameters={"context": 32, "path": str(base)},
        data=data,
        max_steps=4,
        **changes,
    ).train(attest=True)
    return Path(str(run)) / model_folder.MODEL


@pytest.mark.parametrize("tokenizer", [True, False], ids=["tokenizer", "bytes"])
@pytest.mark.parametrize("shape", SHAPES)
def test_from_pretrained_gives_the_logits_of_the_verified_model(
    here: Deployment, tmp_path: Path, shape: str, tokenizer: bool
) -> None:
    base = base_folder(tmp_path / "base", SHAPES[shape], tokenizer=tokenizer)
    model = trained(here, base, tokenizer=tokenizer)
    own = load(model, trust_root=here.root)  # verifies every file, and needs no tokenizer told
    found, told = AutoModelForCausalLM.from_pretrained(model, output_loading_info=True)
    assert not any(told.values())
    row = torch.randint(own.tokenizer.vocabulary, (2, 32), generator=torch.manual_seed(1))
    with torch.no_grad():
        logits = own.model(row)
        assert torch.equal(found(row).logits, logits)
        before = AutoModelForCausalLM.from_pretrained(base)
        assert not torch.equal(before(row % 256).logits[..., :256], own.model(row % 256)[..., :256])
        with own.adapters.active("acme"):
            adapted = own.model(row)
        assert not torch.equal(adapted, logits)
        peft = PeftModel.from_pretrained(found, str(model / "adapters" / "acme")).eval()
        assert torch.equal(peft(row).logits, adapted)
    files = {path.name for path in model.iterdir()}
    assert files == {"adapters", "governance", "govray.json", "model.safetensors"} | (
        {"config.json", "generation_config.json"}
        | (
            {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
            if tokenizer
            else set()
        )
    )
    assert b"auto_map" not in b"".join(each.read_bytes() for each in model.glob("*.json"))
    assert found.generation_config.max_new_tokens == 9
    if tokenizer:
        read = AutoTokenizer.from_pretrained(model)
        assert read(TEXT)["input_ids"] == own.tokenizer.encode(TEXT.encode()).tolist()
        talk = [{"role": "user", "content": "so"}]
        assert read.apply_chat_template(talk, tokenize=False) == "so"
    for name in files & {*model_folder.LOADER_FILES}:
        held = (model / name).read_bytes()
        (model / name).write_bytes(held + b" ")
        with pytest.raises(VerificationFailed, match=r"step 4 .*not the one that was attested"):
            verify(model, trust_root=here.root)
        (model / name).write_bytes(held)
