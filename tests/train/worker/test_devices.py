"""A worker with a device: model, optimizer, batches and commits are there, and stay there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from govray.engine.model.gpt import GPT, loss
from govray.errors import GovrayError, Refused
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.optimizer_state import restore_optimizer
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.order import Assignment, current
from govray.train.loop import experiment_loop
from govray.train.state import snapshot, trained_model
from govray.train.worker import run as run_module
from govray.train.worker import run_start, shard_model
from govray.train.worker.placement import place_on
from govray.train.worker.planned_batch import batches_on
from govray.train.worker.run import Run
from tests.support import fake_device
from tests.support.cases import allow_all, batch_on, governed, micro_batch, step_batch, token_rows
from tests.support.deployment import Deployment
from tests.support.ranks import RankPool
from tests.support.solo import run_here

pytestmark = pytest.mark.ranks

CPU = torch.device("cpu")


def on_device(config: dict[str, Any]) -> None:
    """The experiment's loop, as a worker with the device runs it."""
    assignment = current.get()
    if not isinstance(assignment, Assignment):
        experiment_loop.train_loop(config)
        return
    token = current.set(replace(assignment, device=fake_device.register()))
    try:
        experiment_loop.train_loop(config)
    finally:
        current.reset(token)


def trained(
    here: Deployment, loop: Any, *, resume: Path | None = None, **more: Any
) -> dict[str, torch.Tensor]:
    """Every tensor of the last commit of a run of four steps, by file and name."""
    value = here.experiment(
        max_steps=4,
        checkpoint={"every_steps": 2},
        ema={"decay": 0.9},
        resources={"num_workers": 1},
        hyperparameters={"context": 32, "blocks": 2, "width": 16, "dropout": 0.2},
        **more,
    )
    trainer = replace(
        GovernedTrainer(parse_experiment(value, where="test")),
        train_loop_per_worker=loop,
        resume=resume,
    )
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        run_here(patch)
        run = trainer.train()
    found = snapshot.latest(run)
    assert found is not None
    committed = commit_folder.open_commit(found[0])
    names = ("model.safetensors", "ema/model.safetensors", "optimizer.safetensors")
    return {f"{file}:{n}": t for file in names for n, t in tensors_of(committed, file).items()}


def test_a_run_on_a_device_leaves_nothing_on_the_cpu_and_has_its_bits(
    process: RankPool, tmp_path: Path
) -> None:
    """It ends in the middle and resumes, so what is restored is there too."""
    [(plain, moved)] = process.run(plain_and_resumed, tmp_path)
    assert plain.keys() == moved.keys()
    assert any("exp_avg" in name for name in plain)
    assert [name for name in plain if not torch.equal(plain[name], moved[name])] == []


def plain_and_resumed(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    fake_device.register()  # the autograd engine counts devices at its first backward
    here = Deployment(folder)
    plain = trained(here, experiment_loop.train_loop)
    return plain, ended_and_resumed(here)


def ended_and_resumed(here: Deployment) -> dict[str, torch.Tensor]:
    with pytest.raises(RuntimeError, match="the machine is gone"):
        trained(here, dies_on_device, name="again")
    [begun] = (here.folder / "runs").glob("again-*")
    return trained(here, on_device, name="again", resume=begun)


def dies_on_device(config: dict[str, Any]) -> None:
    if not isinstance(current.get(), Assignment):
        on_device(config)
        return
    report = Run.report

    def dying(self: Run, metrics: Mapping[str, float]) -> None:
        report(self, metrics)
        if metrics["step"] == 2:
            self._commits.settle(None)
            raise RuntimeError("the machine is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "report", dying)
        on_device(config)


@pytest.mark.parametrize("stays", ["model", "batches", "optimizer"])
def test_the_device_shows_what_stays_behind(process: RankPool, tmp_path: Path, stays: str) -> None:
    """The control: each part in its turn is left on the CPU."""
    [said] = process.run(left_behind, tmp_path, stays)
    assert "of fakegpu with one of cpu" in said


def left_behind(folder: Path, stays: str) -> str:
    fake_device.register()
    with pytest.MonkeyPatch.context() as patch:
        if stays == "model":
            for each in (run_start, shard_model):
                patch.setattr(each, "place_on", lambda *args: None)
        elif stays == "batches":
            patch.setattr(run_module, "batches_on", on_the_host)
        else:
            patch.setattr(trained_model, "restore_optimizer", restored_on_the_host)
        try:
            ended_and_resumed(Deployment(folder))
        except (GovrayError, AssertionError) as error:
            return str(error)
    return "nothing failed"


def on_the_host(device: torch.device, rows: Any, schema: Any) -> Any:
    return batches_on(CPU, rows, schema)


def restored_on_the_host(optimizer: torch.optim.Optimizer, *given: Any) -> None:
    restore_optimizer(optimizer, *given)
    for state in optimizer.state.values():
        state.update({key: value.cpu() for key, value in state.items() if value.dim()})


def small() -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    return model, torch.optim.AdamW(model.parameters())


def moved_under_an_optimizer() -> list[str]:
    device = fake_device.register()
    model, optimizer = small()
    model[0].weight.grad = torch.ones(4, 4)
    optimizer.step()
    before = list(model.parameters())
    place_on(device, model, optimizer)
    place_on(device, model, optimizer)  # already there
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(
        one is two is three
        for one, two, three in zip(before, model.parameters(), held, strict=True)
    )
    assert model[2].weight is model[0].weight
    state = optimizer.state[model[0].weight]
    assert state["exp_avg"].device == state["exp_avg_sq"].device == device
    assert state["step"].device == CPU  # as torch keeps it
    return [str(each.device) for each in (*model.parameters(), *model.buffers())]


def test_an_optimizer_that_was_made_before_holds_the_moved_model(process: RankPool) -> None:
    [places] = process.run(moved_under_an_optimizer)
    assert set(places) == {"fakegpu:0"}


def refusals() -> list[str]:
    device = fake_device.register()
    found = []

    def refused(here: torch.device, model: nn.Module) -> None:
        with pytest.raises(Refused) as error:
            place_on(here, model)
        found.append(str(error.value))

    spread, _ = small()
    spread[1].to(device)
    refused(device, spread)
    elsewhere, _ = small()
    elsewhere.to(device)
    refused(CPU, elsewhere)
    sharded = nn.Linear(4, 4)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    refused(device, sharded)
    # Where moving makes new parameters, an optimizer made before would train the old ones.
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        model, optimizer = nn.Linear(4, 4), None
        optimizer = torch.optim.AdamW(model.parameters())
        model.to = lambda place: setattr(  # type: ignore[method-assign]
            model, "weight", nn.Parameter(torch.zeros(4, 4))
        )
        with pytest.raises(Refused) as error:
            place_on(device, model, optimizer)
        found.append(str(error.value))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(True)
    return found


def test_what_is_elsewhere_is_refused_by_name(process: RankPool) -> None:
    [(spread, elsewhere, sharded, renewed)] = process.run(refusals)
    assert "spread over devices: 0.weight on cpu, 1.weight on fakegpu:0" in spread
    assert "0.weight is on fakegpu:0, and this worker computes on cpu" in elsewhere
    assert "resources.gpus_per_worker: 1" in elsewhere
    assert "weight is sharded over devices of type cpu" in sharded
    assert "made a new parameter" in renewed


def summed_over_ranks(kind: str) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Four governed steps, on the CPU or on the device; and the collectives of device tensors."""
    device = fake_device.register() if kind == "device" else CPU
    fake_device.collectives.clear()
    on_gloo: list[dist.ProcessGroup] = []
    new_group = dist.new_group

    def noted(*args: Any, **kwargs: Any) -> Any:
        group = new_group(*args, **kwargs)
        if kwargs.get("backend") == "gloo":
            on_gloo.append(group)
        return group

    torch.manual_seed(7)
    model = GPT(2, 32, 16, 61, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters())
    place_on(device, model, optimizer)
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(dist, "new_group", noted)
        route = allow_all(model)
        run = governed(model, optimizer, [route], clip_norm=0.5)
        for step in range(4):
            rows = token_rows(4, 16, 61, 1, step, dist.get_rank())
            run(batch_on(step_batch(step, [micro_batch(route, rows)]), device), loss)
    assert on_gloo  # the agreement's: host tensors alone
    names = {group.group_name for group in on_gloo}
    crossed = [each for each in fake_device.collectives if each[2] in names]
    assert crossed == []
    return {n: p.detach().cpu() for n, p in model.named_parameters()}, list(fake_device.collectives)


@pytest.mark.story
def test_gradients_of_a_device_never_enter_a_group_of_the_host() -> None:
    pool = RankPool(2)
    try:
        of_device = pool.run(summed_over_ranks, "device")
        of_cpu = pool.run(summed_over_ranks, "cpu")
    finally:
        pool.close()
    assert {name for _, found in of_device for name, *_ in found} == {"c10d::allreduce_"}
    assert not any(found for _, found in of_cpu)
    for (moved, _), (plain, _) in zip(of_device, of_cpu, strict=True):
        assert [name for name in plain if not torch.equal(plain[name], moved[name])] == []
