"""Host frameworks on a worker with a device: theirs is the worker's, or they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import ray.train.torch
import torch
import torch.nn.functional as F
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

from govray.engine.model.gpt import GPT
from govray.errors import GovrayError, Refused
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.order import Assignment, current
from govray.train.integrations import huggingface_trainer
from govray.train.integrations.host_loop import require_device
from govray.train.integrations.huggingface_trainer import GovernCallback, govern_trainer
from govray.train.integrations.lightning_trainer import GovernCallback as LightningCallback
from govray.train.integrations.lightning_trainer import GovernStrategy
from govray.train.state import snapshot
from tests.support import fake_device
from tests.support.deployment import Deployment
from tests.support.ranks import RankPool
from tests.support.solo import run_here

pytestmark = pytest.mark.ranks

CPU = torch.device("cpu")
CONTEXT = 32


@pytest.fixture(scope="module")
def process() -> Iterator[RankPool]:
    """A process that may get a device of a kind that it keeps."""
    pool = RankPool(1, timeout=240)
    yield pool
    pool.close()


class OnFakeDevice(Accelerator):
    """Lightning's accelerator for the device."""

    setup_device = teardown = get_device_stats = lambda self, *device: {}  # type: ignore[assignment]
    parse_devices = auto_device_count = staticmethod(lambda *devices: 1)
    get_parallel_devices = staticmethod(lambda devices: [fake_device.register()])
    is_available = staticmethod(lambda: True)
    name = staticmethod(lambda: fake_device.NAME)


def hugging_face(config: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=257,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=False,
        )
    )
    callback = GovernCallback(model)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}]
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=config["output"],
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=2,
            report_to=[],
            use_cpu=config["on_cpu"],
            optim="adamw_torch",
            dataloader_pin_memory=False,  # which the fake device knows nothing of
        ),
        callbacks=[callback],
        eval_dataset=rows,
    )
    govern_trainer(trainer).train()
    assert "eval_loss" in trainer.state.log_history[-2]


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = GPT(blocks=2, width=16, context=CONTEXT, vocabulary=257)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = self.model(batch["tokens"])
        return F.cross_entropy(logits.transpose(1, 2), batch["targets"], reduction="none")

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val", self.model(batch).mean())

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader([torch.arange(8)])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def lightning(config: dict[str, Any]) -> None:
    module = Module()
    trainer = L.Trainer(
        accelerator="cpu" if config["on_cpu"] else OnFakeDevice(),
        devices=1,
        strategy=GovernStrategy(),
        callbacks=[LightningCallback(module)],
        plugins=[LightningEnvironment()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        val_check_interval=2,
    )
    trainer.fit(module)


def trained(here: Deployment, loop: Any, device: torch.device, *, on_cpu: bool) -> Any:
    """The last commit's tensors of a run of four steps on a worker with this device."""

    def on_worker(config: dict[str, Any]) -> None:
        assignment = current.get()
        if not isinstance(assignment, Assignment):
            loop(config)
            return
        token = current.set(replace(assignment, device=device))
        try:
            loop(config)
        finally:
            current.reset(token)

    value = here.experiment(max_steps=4, resources={"num_workers": 1}, ema={"decay": 0.9})
    trainer = replace(
        GovernedTrainer(parse_experiment(value, where="test")),
        train_loop_per_worker=on_worker,
        train_loop_config={"output": str(here.folder), "on_cpu": on_cpu},
    )
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        run_here(patch)
        patch.setattr(ray.train.torch, "get_device", lambda: device)
        if not on_cpu:
            patch.setenv("ACCELERATE_TORCH_DEVICE", str(device))
        run = trainer.train()
    found = snapshot.latest(run)
    assert found is not None
    committed = commit_folder.open_commit(found[0])
    names = ("model.safetensors", "ema/model.safetensors", "optimizer.safetensors")
    return {f"{file}:{n}": t for file in names for n, t in tensors_of(committed, file).items()}


def here_and_there(folder: Path, loop: Any) -> Any:
    device, here = fake_device.register(), Deployment(folder)
    return trained(here, loop, CPU, on_cpu=True), trained(here, loop, device, on_cpu=False)


@pytest.mark.story
def test_a_host_s_run_on_a_device_mixes_nothing_and_ends_as_on_the_cpu(
    process: RankPool, tmp_path: Path
) -> None:
    """It trains, and evaluates in the middle."""
    [(plain, moved)] = process.run(here_and_there, tmp_path, lightning)
    assert plain.keys() == moved.keys()
    assert any("exp_avg" in name for name in plain)
    for name, tensor in plain.items():
        torch.testing.assert_close(moved[name], tensor, rtol=1e-4, atol=1e-6)


def elsewhere(folder: Path, loop: Any, *, refuses: bool = True) -> str:
    """What a run says of a host that was told to stay on the CPU."""
    device = fake_device.register()
    with pytest.MonkeyPatch.context() as patch:
        if not refuses:
            patch.setattr(huggingface_trainer, "require_device", lambda *args: None)
        try:
            trained(Deployment(folder), loop, device, on_cpu=True)
        except GovrayError as error:
            return f"{type(error).__name__}: {error}"
    return "nothing failed"


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (hugging_face, ["the host computes on cpu", "TrainingArguments", "use_cpu"]),
        (lightning, ["accelerator 'cpu'", "lightning.Trainer", "accelerator='auto'"]),
    ],
)
def test_a_host_that_stays_on_the_cpu_is_refused_by_name(
    process: RankPool, tmp_path: Path, loop: Any, said: list[str]
) -> None:
    [found] = process.run(elsewhere, tmp_path, loop)
    assert found.startswith("Refused: ")
    assert all(each in found for each in [*said, "fakegpu:0"])


def test_without_the_refusal_a_trainer_mixes_devices(process: RankPool, tmp_path: Path) -> None:
    """The control: the error is one of the first operator that meets both."""
    [found] = process.run(unrefused, tmp_path)
    assert "mixes a tensor of fakegpu with one of cpu" in found


def unrefused(folder: Path) -> str:
    return elsewhere(folder, hugging_face, refuses=False)


def test_another_gpu_than_the_worker_s_is_refused() -> None:
    require_device("accelerator", torch.device("cuda"), torch.device("cuda", 1), "-")
    require_device("accelerator", CPU, CPU, "-")
    with pytest.raises(Refused, match=r"computes on cuda:0, and this worker, .*, on cuda:1"):
        require_device("accelerator", torch.device("cuda", 0), torch.device("cuda", 1), "-")
