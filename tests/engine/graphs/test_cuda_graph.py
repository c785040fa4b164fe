"""What a capture says when it fails, whatever fails after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from govray.engine.graphs.pass_graphs import CudaCapture
from govray.errors import GovrayError, Refused, UsageError

set_again: list[object] = []
"""Streams that were made current."""


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> CudaCapture:
    """One whose CUDA is not there: it ends as one that failed does, by an error of its own."""

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            raise RuntimeError("operation failed due to a previous error during capture") from None

    for name, stand_in in {
        "CUDAGraph": object,
        "graph": graph,
        "device": lambda _: nullcontext(),
        "current_stream": lambda: "own",
        "set_stream": set_again.append,
        "graph_pool_handle": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    set_again.clear()
    made = object.__new__(CudaCapture)
    made._device, made._pool = torch.device("cuda", 0), None
    return made


def holding() -> AbstractContextManager[None]:
    return nullcontext()


def failing(error: Exception) -> Any:
    def work() -> None:
        raise error

    return work


def test_the_first_error_is_told(capture: CudaCapture) -> None:
    waits = "CUDA error: operation not permitted when stream is capturing\nSearch for it"
    with pytest.raises(Refused, match="captured: CUDA error: operation not permitted when"):
        capture(holding, failing(RuntimeError(waits)))
    assert set_again == ["own"]


@pytest.mark.parametrize(
    "error", [UsageError("no parameter learns", where="loss_fn"), torch.OutOfMemoryError("full")]
)
def test_what_is_no_matter_of_capturing_is_raised_as_it_is(
    capture: CudaCapture, error: Exception
) -> None:
    with pytest.raises(type(error)) as raised:
        capture(holding, failing(error))
    assert raised.value is error
    assert not isinstance(error, Refused)
    assert set_again == ["own"]


def test_a_model_on_a_cpu_is_refused() -> None:
    with pytest.raises(GovrayError, match=r"resources\.gpus_per_worker"):
        CudaCapture(nn.Linear(2, 2))
