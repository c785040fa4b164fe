"""What other libraries load a model by: a closed list, bounded, no code, nothing untrained."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from govray.engine.gradients.precision import cast_parameters
from govray.engine.model.causal_lm import CausalLM
from govray.errors import Malformed, Refused, UsageError
from govray.train.attest.write_model import loader_files as attested
from govray.train.driver import loader_files as collected
from govray.train.driver.loader_files import loader_files

TINY = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16}


def model() -> CausalLM:
    with torch.device("meta"):
        return CausalLM(8, 257, config=TINY)


def files(tokenizer: Path, rows: Any = "text", of: nn.Module | None = None) -> dict[str, bytes]:
    coded = json.loads(loader_files(of or model(), None, str(tokenizer), rows))
    return {name: base64.b64decode(data) for name, data in coded.items()}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "own", "auto_map": {}}')
    (tmp_path / "chat_template.jinja").write_text("own")
    (tmp_path / "special_tokens_map.json").write_text("{}")
    (tmp_path / "tokenization_own.py").write_text("raise SystemExit")
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return path


def test_the_run_s_tokenizer_comes_with_what_lies_beside_it(tokenizer: Path) -> None:
    found = files(tokenizer)
    assert {*found} == {"config.json", "generation_config.json", "tokenizer.json"} | {
        *("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
    }
    assert json.loads(found["tokenizer_config.json"]) == {"chat_template": "own"}
    # Beside a file of another name may lie another tokenizer's.
    alone = files(tokenizer.rename(tokenizer.parent / "own.json"))
    assert (
        json.loads(alone["tokenizer_config.json"])["tokenizer_class"] == "PreTrainedTokenizerFast"
    )
    assert "chat_template.jinja" not in alone


def test_a_template_that_was_not_trained_is_left_out(tokenizer: Path) -> None:
    found = files(tokenizer, "chat")
    assert "chat_template.jinja" not in found
    assert json.loads(found["tokenizer_config.json"]) == {}


def test_the_configuration_is_that_of_what_was_trained(tmp_path: Path) -> None:
    def stated(model: CausalLM) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(files(Path("bytes"), of=model)["config.json"])
        return found

    made = model()
    assert (stated(made)["dtype"], stated(made)["vocab_size"]) == ("float32", 257)
    assert stated(made)["architectures"] == ["GPT2LMHeadModel"]
    cast_parameters(made)
    assert stated(made)["dtype"] == "bfloat16"
    assert files(Path("bytes"), of=made.language_model).keys() == {
        *("config.json", "generation_config.json")
    }


def test_own_modules_have_none(tokenizer: Path) -> None:
    class Own(type(model().language_model)):  # type: ignore[misc]  # code that no folder has
        pass

    with torch.device("meta"):
        own = Own(model().language_model.config)
    for each in (nn.Linear(2, 2), own):
        assert files(tokenizer, of=each) == {}


def test_what_is_no_file_of_such_a_kind_is_refused(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tokenizer.parent / "tokenizer_config.json"
    config.write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json.*not JSON"):
        files(tokenizer)
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(UsageError, match="no regular file"):
        files(tokenizer)
    config.unlink()
    assert files(tokenizer)
    monkeypatch.setattr(collected, "MOST_BYTES", 500)
    with pytest.raises(UsageError, match="bytes, more than 500"):
        files(tokenizer)


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        (b'{"modeling.py":"eA=="}', r"'modeling\.py'"),
        (b'{"../config.json":"eA=="}', "no model folder"),
        (b'{"model.safetensors":"eA=="}', "no model folder"),
        (b'{"config.json":"e"}', "no mapping of names"),
        (b'{"config.json":1}', "no mapping of names"),
        (b"[]", "no mapping of names"),
    ],
)
def test_a_submitter_s_folder_adds_no_other_file(recorded: bytes, told: str) -> None:
    with pytest.raises((Refused, Malformed), match=told):
        attested(recorded)
    assert attested(b'{"config.json":"e30="}') == {"config.json": b"{}"}
