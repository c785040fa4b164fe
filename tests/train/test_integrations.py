"""The scripts of docs/integrations.md, run; and what the adapters for host frameworks refuse."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import ray.train
import torch
import torch.nn.functional as F
from deployment import Deployment
from ray.train.lightning import RayDDPStrategy
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, TrainingArguments, get_scheduler

import govray
from govray.engine.gpt import GPT
from govray.errors import Refused, UsageError
from govray.train import GovernedTrainer, govern, huggingface, lightning
from govray.train.discovery import layer_groups_of
from govray.train.host import require_same

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
STEPS = 8
DIFFS = {
    name: re.search(rf"## {name}.*?```diff\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
    for name in ("Hugging Face", "Lightning")
}


def plain_llama(config: dict[str, Any]) -> None:
    """What the Hugging Face script does, as the plain loop: the reference."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**config["model"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    run = govern(model, optimizer)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=STEPS)
    for batch in run.batches():
        run.report(run.step(batch, huggingface.causal_lm_loss))
        schedule.step()


class Wrapped(nn.Module):
    """The model under the name that the Lightning script gives it."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.model = GPT(**model)


def plain_gpt(config: dict[str, Any]) -> None:
    """What the Lightning script does, as the plain loop: the reference."""
    model = Wrapped(config["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = govern(model, optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for batch in run.batches():
        run.report(run.step(batch, _wrapped_loss))
        schedule.step()


def _wrapped_loss(module: Any, batch: Any) -> torch.Tensor:
    logits = module.model(batch["tokens"])
    return F.cross_entropy(logits.transpose(1, 2), batch["targets"], reduction="none")


def script(diff: list[str], *, side: str, folder: Path) -> dict[str, Any]:
    """Run one side of a diff in ``folder``, shortened to a few steps; returns its names."""
    text = "\n".join(line[1:] for line in diff if line[:1] in ("", " ", side))
    for old, new in (
        ("STEPS = 300", f"STEPS = {STEPS}"),
        ("max_steps=STEPS, context", "max_steps=STEPS, checkpoint_every=3, context"),
        ("/tmp/trainer", str(folder / "output")),
        ("/data", str(folder)),
        ("/shared", str(folder)),
    ):
        assert old in text or side == "-", old
        text = text.replace(old, new)
    # Not importable by this name, so that Ray sends its functions to workers by value.
    names: dict[str, Any] = {"__name__": "a_users_script"}
    exec(compile(text, "docs/integrations.md", "exec"), names)
    return names


@pytest.fixture
def place(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory where the paths of the scripts lead to the test's deployment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOVRAY_KEY", str(deployment.key))
    for name, target in (
        ("data/corpora", deployment.corpora),
        ("policies/licences.dsse.json", deployment.policy),
        ("policies/root.json", deployment.root),
    ):
        link = tmp_path / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target)
    (tmp_path / "validation").mkdir()
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("host", "plain", "reads"), [("Hugging Face", plain_llama, 0), ("Lightning", plain_gpt, 4)]
)
def test_a_hosts_script_ends_with_the_bytes_of_the_plain_loop(
    host: str, plain: Any, reads: int, place: Path
) -> None:
    """A user's bug ends the first attempt in an evaluation after step 4; the run resumes at 3."""
    (place / "validation" / "fail").write_text(str(reads))
    names = script(DIFFS[host], side="+", folder=place)
    assert not (place / "validation" / "fail").exists()
    verified = govray.verify(f"{names['result'].path}/model", trust_root=place / "policies/root.json")
    assert verified.coverage["copyleft_limited", "block.0"].tokens == 0
    assert verified.coverage["acme", "adapter:acme"].tokens == STEPS * 64

    hosted: GovernedTrainer = names["trainer"]
    reference = GovernedTrainer(
        corpora=hosted.corpora,
        policy=hosted.policy,
        trust_root=hosted.trust_root,
        max_steps=STEPS,
        context=hosted.context,
        rows_per_step=hosted.rows_per_step,
        train_loop_per_worker=plain,
        train_loop_config=hosted.train_loop_config,
        scaling_config=hosted.scaling_config,
        run_config=ray.train.RunConfig(storage_path=str(place / "runs")),
    ).fit()
    for file in ("model.safetensors", "adapters/acme/adapter_model.safetensors"):
        ours = load_file(Path(names["result"].path) / "model" / file)
        theirs = load_file(Path(reference.path) / "model" / file)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), (file, name)
