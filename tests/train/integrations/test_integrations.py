"""The scripts of docs/own-loop.md, run; and what the adapters for host frameworks refuse."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import ray.train
import torch
import torch.nn.functional as F
import yaml
from ray.train.lightning import RayDDPStrategy
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Trainer,
    TrainingArguments,
    get_scheduler,
)

import govray
from govray.engine.model.gpt import GPT
from govray.errors import Refused, UsageError
from govray.train import GovernedTrainer, govern
from govray.train.inputs.order import Assignment, current
from govray.train.integrations import huggingface_trainer, lightning_trainer
from govray.train.integrations.host_loop import replay_schedule
from tests.support.deployment import Deployment, targets_of
from tests.support.tree import ROOT, SCRIPTS

PAGE = (ROOT / "docs" / "own-loop.md").read_text()
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
        run.report(run.step(batch, huggingface_trainer.causal_lm_loss))
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
        ("/tmp/trainer", str(folder / "output")),
        ("/data", str(folder)),
        ("/shared", str(folder)),
    ):
        assert old in text or side == "-", old
        text = text.replace(old, new)
    text = text.replace(
        "    govern_trainer(trainer).train()\n",
        "    govern_trainer(trainer).train()\n"
        "    trainer.state.save_to_json(config['output'] + '/state.json')\n",
    )
    # Not importable by this name, so that Ray sends its functions to workers by value.
    names: dict[str, Any] = {"__name__": "a_users_script"}
    exec(compile(text, "docs/own-loop.md", "exec"), names)
    return names


@pytest.fixture
def place(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory where the paths of the scripts lead to the test's deployment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SCRIPTS)
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
    *_, written = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    short = {"max_steps": STEPS, "checkpoint": {"every_steps": 3}}
    (tmp_path / "governed.yaml").write_text(yaml.safe_dump(yaml.safe_load(written) | short))
    return tmp_path


@pytest.mark.story
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("host", "plain", "reads"), [("Hugging Face", plain_llama, 0), ("Lightning", plain_gpt, 8)]
)
def test_a_hosts_script_ends_with_the_bytes_of_the_plain_loop(
    host: str, plain: Any, reads: int, place: Path
) -> None:
    """A user's bug ends the first attempt when it evaluates after step 4; it resumes at 3."""
    (place / "validation" / "fail").write_text(str(reads))
    names = script(DIFFS[host], side="+", folder=place)
    assert not (place / "validation" / "fail").exists()
    check_log(host, place / "output")
    model = Path(names["result"].path) / "model"
    verified = govray.verify(model, trust_root=place / "policies/root.json")
    assert verified.coverage["copyleft_limited", "block.0"].tokens == 0
    assert verified.coverage["acme", "adapter:acme"].tokens in targets_of(STEPS, 64)

    hosted: GovernedTrainer = names["trainer"]
    reference = GovernedTrainer(
        hosted.experiment,
        train_loop_per_worker=plain,
        train_loop_config=hosted.train_loop_config,
        scaling_config=hosted.scaling_config,
        run_config=ray.train.RunConfig(storage_path=str(place / "runs")),
    ).fit()
    for file in ("model.safetensors", "adapters/acme/adapter_model.safetensors"):
        ours = load_file(model / file)
        theirs = load_file(Path(reference.path) / "model" / file)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), (file, name)


def check_log(host: str, folder: Path) -> None:
    """The framework's own log, of the attempt that went from step 3 to the end."""
    if host == "Lightning":
        *_, metrics = sorted(folder.glob("lightning_logs/*/metrics.csv"))
        rows = list(csv.DictReader(metrics.open()))
        losses = {int(row["step"]): float(row["loss"]) for row in rows if row["loss"]}
        assert list(losses) == [3, 4, 5, 6, 7]
        evaluated = [float(row["val_loss"]) for row in rows if row["val_loss"]]
        assert len(evaluated) == 1
        assert all(0 < loss < 6 for loss in [*losses.values(), *evaluated])
        return
    history = json.loads((folder / "state.json").read_text())["log_history"]
    steps = {entry["step"]: entry for entry in history if "loss" in entry}
    assert list(steps) == [4, 5, 6, 7, 8]
    assert all(0 < entry["loss"] < 6 and "grad_norm" not in entry for entry in steps.values())
    # One step of warm-up, then down to 0 at step 8: a function of the plan's step.
    rates = [entry["learning_rate"] for entry in steps.values()]
    assert rates == pytest.approx([1e-2 * (8 - step) / 7 for step in range(3, 8)])
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [4, 8]


@pytest.mark.parametrize("host", DIFFS)
def test_fewer_than_ten_lines_change(host: str) -> None:
    """A removed line and an added one in its place are one changed line."""
    changed = 0
    for is_change, block in groupby(DIFFS[host], lambda line: line[:1] in ("+", "-")):
        marks = [line[0] for line in block if is_change]
        changed += max(marks.count("+"), marks.count("-"))
    assert 4 < changed < 10


LLAMA = LlamaConfig(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
)


@pytest.fixture
def assigned() -> Iterator[None]:
    """A worker's context, before anything of its order is looked at."""
    token = current.set(Assignment(order=None, shard=None, on_step=lambda step, metrics: None))
    yield
    current.reset(token)


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    given = {"save_strategy": "no", "report_to": [], "use_cpu": True} | changes
    return TrainingArguments(output_dir=str(folder), **given)


@pytest.mark.parametrize(
    ("name", "value", "do"),
    [
        ("gradient_accumulation_steps", 2, "max_rows"),
        ("fp16", True, "bf16=True"),
        ("save_strategy", "steps", "save_strategy='no'"),
        ("deepspeed", {}, "Leave it out"),
        ("fsdp", "full_shard", "Leave it out"),
        ("torch_compile", True, "Leave it out"),
        ("auto_find_batch_size", True, "max_rows"),
        ("neftune_noise_alpha", 5.0, "Leave it out"),
        ("label_smoothing_factor", 0.1, "loss_fn"),
        ("include_num_input_tokens_seen", "all", "ledger"),
        ("lr_scheduler_type", "reduce_lr_on_plateau", "plan step"),
    ],
)
def test_a_setting_that_acts_beside_the_step_is_refused(
    name: str, value: Any, do: str, tmp_path: Path
) -> None:
    args = arguments(tmp_path)
    huggingface_trainer.refuse_settings(args)
    # Some can't be made on this machine, but on another.
    setattr(args, name, value)
    with pytest.raises(Refused, match=name) as caught:
        huggingface_trainer.refuse_settings(args)
    assert do in str(caught.value)


class OwnLoss(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class OwnStep(Trainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().training_step(*args, **kwargs)


@pytest.mark.usefixtures("assigned")
@pytest.mark.parametrize(
    ("kind", "given", "what"),
    [
        (Trainer, {"train_dataset": [{}]}, "train_dataset"),
        (Trainer, {"compute_loss_func": F.cross_entropy}, "loss of its own"),
        (OwnLoss, {}, "loss of its own"),
        (OwnStep, {}, "training_step of its own"),
    ],
)
def test_a_trainer_with_a_part_that_would_not_run_is_refused(
    kind: type[Trainer], given: dict[str, Any], what: str, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_config(LLAMA)
    callback = huggingface_trainer.GovernCallback(model)
    trainer = kind(model, arguments(tmp_path), callbacks=[callback], **given)
    with pytest.raises(Refused, match=what):
        huggingface_trainer.govern_trainer(trainer)


@pytest.mark.usefixtures("assigned")
def test_a_trainer_needs_its_callback_and_the_callback_its_call(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(LLAMA)
    with pytest.raises(UsageError, match="0 callbacks of kind GovernCallback"):
        huggingface_trainer.govern_trainer(Trainer(model, arguments(tmp_path)))
    callback = huggingface_trainer.GovernCallback(model)
    other = AutoModelForCausalLM.from_config(LLAMA)
    with pytest.raises(UsageError, match="another model"):
        huggingface_trainer.govern_trainer(
            Trainer(other, arguments(tmp_path), callbacks=[callback])
        )
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}]
    trainer = Trainer(model, arguments(tmp_path), callbacks=[callback], train_dataset=rows)
    with pytest.raises(UsageError, match="not governed"):
        trainer.train()


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.zeros(1)


def made(**changes: Any) -> L.Trainer:
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "strategy": lightning_trainer.GovernStrategy(),
        "enable_checkpointing": False,
        "logger": False,
    }
    return L.Trainer(**given | changes)


@pytest.mark.parametrize(
    ("changes", "do"),
    [
        ({"accumulate_grad_batches": 2}, "max_rows"),
        ({"precision": "16-true"}, "bf16"),
        ({"enable_checkpointing": True}, "enable_checkpointing=False"),
        ({"strategy": "auto"}, "GovernStrategy"),
        ({"strategy": RayDDPStrategy()}, "GovernStrategy"),
    ],
)
def test_a_lightning_setting_that_acts_beside_the_step_is_refused(
    changes: dict[str, Any], do: str
) -> None:
    lightning_trainer.refuse_settings(made())
    with pytest.raises(Refused) as caught:
        lightning_trainer.refuse_settings(made(**changes))
    assert do in str(caught.value)


def test_a_schedule_is_where_the_run_resumes() -> None:
    def schedule() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    undisturbed, stepped = schedule()
    for _ in range(5):
        undisturbed.step()
        stepped.step()
    resumed, replayed = schedule()
    run: Any = SimpleNamespace(start_step=5)
    replay_schedule(replayed.step, run)
    assert resumed.param_groups[0]["lr"] == undisturbed.param_groups[0]["lr"]
