"""Discovery: a loop written for its worker, wherever it puts its model, is read on the driver."""

import pytest
import ray.train
import ray.train.torch
import torch
from ray.train.torch import get_device as imported_before
from torch import nn

from govray.engine.model.gpt import GPT
from govray.errors import UsageError
from govray.train import govern
from govray.train.loop.until_govern import discover

SIZES = {"blocks": 2, "context": 16, "width": 8, "vocabulary": 11}


def governed(model):
    govern(model, torch.optim.AdamW(model.parameters()))


def moved(config):
    governed(GPT(**SIZES).to("cuda"))


def moved_by_index_and_dtype(config):
    governed(GPT(**SIZES).to(0, torch.bfloat16))


def moved_to_the_worker(config):
    governed(GPT(**SIZES).to(ray.train.torch.get_device()))


def asked_by_an_earlier_import(config):
    device = imported_before()
    torch.cuda.set_device(device)
    governed(GPT(**SIZES).to(device))


def on_cuda(config):
    model = GPT(**SIZES).cuda()
    torch.cuda.set_device(0)
    governed(model.cuda(torch.cuda.current_device()))


def by_what_is_there(config):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    governed(GPT(**SIZES).to(device).cpu().to(device))


def of_another_size_by_rank(config):
    assert ray.train.get_context().get_world_rank() == 0
    governed(GPT(**SIZES).cuda())


def under_a_default(config):
    torch.set_default_device("cuda:0")
    with torch.device("cuda"):
        model = GPT(**SIZES)
    governed(model)


class OnDevice(nn.Module):
    """Modules and factories that get a device; and a table that is computed on the CPU."""

    def __init__(self, device):
        super().__init__()
        rates = torch.linspace(0, 0.5, 2, device="cpu").tolist()
        self.blocks = nn.ModuleList(nn.Linear(4, 4, device=device) for _ in rates)
        self.scale = nn.Parameter(torch.ones(4, device=device))
        self.register_buffer("table", torch.arange(4.0).to(device, torch.float64))
        self.register_buffer("like", torch.zeros_like(self.scale, device=device))
        self.register_buffer("made", torch.tensor([1.0], device=device).pin_memory())


def by_argument(config):
    model = OnDevice("cuda:0")
    assert model.table.dtype == torch.float64
    governed(model)


LOOPS = [
    moved,
    moved_by_index_and_dtype,
    moved_to_the_worker,
    asked_by_an_earlier_import,
    on_cuda,
    by_what_is_there,
    of_another_size_by_rank,
    under_a_default,
    by_argument,
]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_moves_its_model_is_read_on_the_meta_device(loop):
    policy_groups = {"all": ("*",)} if loop is by_argument else {}
    found = discover(loop, {}, policy_groups)
    tensors = [*found.model.parameters(), *found.model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert found.groups == (
        {"all": tuple(name for name, _ in found.model.named_parameters())}
        if policy_groups
        else discover(plain, {}, {}).groups
    )


def plain(config):
    governed(GPT(**SIZES))


def test_nothing_is_left_of_it():
    """Ray and torch answer the driver afterwards as before."""
    discover(under_a_default, {}, {})
    assert torch.get_default_device() == torch.device("cpu")
    with pytest.raises(RuntimeError, match="outside of a Ray Train training function"):
        imported_before()
    assert torch.ones(2).to(torch.float64).device.type == "cpu"


def test_a_loop_that_reads_values_is_told_why():
    def reads(config):
        model = GPT(**SIZES).to("cuda")
        next(model.parameters()).sum().item()

    with pytest.raises(UsageError, match="before it called govern"):
        discover(reads, {}, {})
