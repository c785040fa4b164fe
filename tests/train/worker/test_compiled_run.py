"""``compile: true`` with torch's own compiler, from the experiment file to the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from govray.governance.attestation import model_folder
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.ranks import RankPool
from tests.support.solo import run_here

pytestmark = [pytest.mark.ranks, pytest.mark.story, pytest.mark.timeout(600)]


@pytest.fixture
def process() -> Iterator[RankPool]:
    """A process whose compiler and graphs go with it."""
    pool = RankPool(1, timeout=540)
    yield pool
    pool.close()


def kernels_of(folder: Path) -> dict[str, Any]:
    """Weights of three runs, and how many kernels the compiled ones made; or why none."""
    from torch._inductor import config, cpp_builder, exc, metrics

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return {"skipped": "no C++ compiler here"}
    here = Deployment(folder / "here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "kernels"))
        patch.setattr(config, "compile_threads", 1)  # else processes of its own stay behind
        patch.setattr(config.cpp, "simdlen", 1)  # vectors' headers take half of the time to build
        run_here(patch)
        plain = weights(here, compile=False)
        assert not metrics.generated_kernel_count
        compiled = weights(here, compile=True)
        return {
            "plain": plain,
            "compiled": compiled,
            "without acme": weights(here, compile=True, leave_out=("acme",)),
            "kernels": metrics.generated_kernel_count,
        }


def weights(
    here: Deployment, *, compile: bool, leave_out: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """The base model's, after two steps."""
    value = here.experiment(
        max_steps=2,
        checkpoint={"every_steps": 2},
        resources={"num_workers": 1},
        hyperparameters={"blocks": 2, "width": 16, "context": 16},
        optimizer={"name": "torch.optim.SGD", "lr": 0.1},
        compile=compile,
    )
    # Two routes: all, and an adapter. Each has graphs of its own.
    value["data"] = {
        "corpora": str(here.corpora),
        "rows_per_step": {"everything": 2, "upper_half": 1, "removable": 2},
        "exclude": ["weak-one", *leave_out],
    }
    run = GovernedTrainer(parse_experiment(value, where="test")).train()
    found = snapshot.latest(run)
    assert found is not None
    return tensors_of(commit_folder.open_commit(found[0]), model_folder.WEIGHTS)


def test_kernels_of_inductor_train_as_torch_s_own(process: RankPool, tmp_path: Path) -> None:
    [found] = process.run(kernels_of, tmp_path)
    if reason := found.get("skipped"):
        pytest.skip(reason)
    assert found["kernels"] > 0
    plain, compiled = found["plain"], found["compiled"]
    assert plain.keys() == compiled.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-4, atol=1e-6)
    # A base that has no adapter beside it has the same kernels, and so the same bits.
    for name, tensor in compiled.items():
        assert torch.equal(found["without acme"][name], tensor), name
    # The control: it is not the plain run a second time.
    assert any(not torch.equal(compiled[name], tensor) for name, tensor in plain.items())
