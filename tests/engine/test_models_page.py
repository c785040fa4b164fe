"""docs/models.md: its snippets run, its outputs are the real ones, its refusals happen."""

from __future__ import annotations

import contextlib
import io
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from govray.engine.gradients.routing import refuse_inexact
from govray.engine.model.adapters import Adapters
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.keyed_dropout import key_dropout
from govray.engine.model.layer_groups import layer_groups
from govray.errors import GovrayError, Refused
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.policy.route import profile_weights
from tests.support.table import each_row
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "models.md").read_text()


FENCES = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def blocks_of(language: str) -> list[str]:
    return [text for name, text in FENCES if name == language]


[COMMAND], OUTPUTS = blocks_of(""), blocks_of("text")


def test_the_extra_exists() -> None:
    extra = re.fullmatch(r"pip install 'govray\[(\w+)\]'\n", COMMAND)
    assert f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text()


def test_the_hyperparameters_make_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=256, n_positions=256)
    GPT2LMHeadModel(small).save_pretrained("models/gpt2")
    experiments = [yaml.safe_load(text) for text in blocks_of("yaml")[:2]]
    assert [set(each["hyperparameters"]) for each in experiments] == [
        {"context", "config"},
        {"context", "path"},
    ]
    for experiment in experiments:
        module, name = experiment["entrypoint"].split(":")
        assert getattr(import_module(module), name) is CausalLM
        model = CausalLM(vocabulary=257, **experiment["hyperparameters"])
        assert model(torch.zeros(1, 256, dtype=torch.long)).shape == (1, 256, 257)


def test_the_groups_of_a_vit_are_those_shown() -> None:
    program = blocks_of("python")[-1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert printed.getvalue() == OUTPUTS[0]


class TwoTowers(nn.Module):
    """Documents and queries, each through layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.documents = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.queries = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 4)


def test_two_towers_are_refused_as_shown_and_named_as_shown() -> None:
    with pytest.raises(Refused) as refused:
        layer_groups(TwoTowers())
    assert f"{refused.value}\n" == OUTPUTS[1]

    _, _, attention, _, towers = blocks_of("yaml")
    assert yaml.safe_load(attention) == {"data": {"attention": "record"}}
    shown = yaml.safe_load(towers)
    whole = yaml.safe_load((ROOT / "policies" / "licences.yaml").read_text())
    rules = [{"name": "all", "match": {}, "profile": "everything"}]
    policy = read_policy(yaml.safe_dump({**whole, "rules": rules, **shown}))
    groups = layer_groups(TwoTowers(), policy.groups)
    assert list(groups) == ["embedding", "block.0", "block.1", "block.2", "head", "query_tower"]
    weights = profile_weights(policy.profiles["documents_only"], list(groups), where="page")
    permitted = {group for group, weight in weights.items() if weight}
    assert permitted == set(groups) - {"query_tower"}


def layers(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


REFUSED: dict[str, Any] = {
    "BatchNorm": lambda: refuse_inexact(layers(nn.BatchNorm1d(4))),
    "running statistics": lambda: refuse_inexact(
        layers(nn.InstanceNorm1d(4, track_running_stats=True))
    ),
    "sparse embeddings": lambda: refuse_inexact(layers(nn.Embedding(3, 4, sparse=True))),
    "nn.Dropout2d": lambda: key_dropout(layers(nn.Dropout2d()), 0),
    "nn.AlphaDropout": lambda: key_dropout(layers(nn.AlphaDropout()), 0),
    "blocks in `nn.Sequential`": lambda: Adapters(layers(nn.Linear(4, 4)), {"a": 1}, seed=0),
    "encoders": lambda: CausalLM(8, 9, config={"model_type": "bert", "num_hidden_layers": 1}),
}


@each_row("named", REFUSED)
def test_what_the_page_calls_refused_is_refused(named: str) -> None:
    table = PAGE.partition("## What is refused")[2]
    assert named in table
    with pytest.raises(GovrayError):
        REFUSED[named]()


@pytest.mark.story
def test_most_causal_architectures_leave_no_doubt() -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    def build(kind: Any) -> nn.Module | None:
        # Groups follow from the names of layers, and three have the names of eighty.
        for options in ({"num_hidden_layers": 3}, {}):  # some do not take the first
            with contextlib.suppress(Exception), torch.device("meta"):
                return AutoModelForCausalLM.from_config(kind(**options))
        return None  # some have no default configuration

    built, found = 0, 0
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        if (model := build(kind)) is None:
            continue
        built += 1
        with contextlib.suppress(Refused):
            layer_groups(model)
            found += 1
    assert built > 100
    assert found / built > 0.75, f"{found} of {built}"
