"""Rows of a safetensors file are those of its tensors, and the digest is that of all its bytes."""

from __future__ import annotations

import hashlib
import io

import pytest
import torch
from safetensors.torch import save

from govray.errors import Malformed
from govray.governance.formats.tensor_header import Described
from govray.train.checkpoint.safetensors_stream import read_rows
from govray.train.checkpoint.sharded_file import cut

TENSORS = {
    "wide": torch.randn(1000, 700, dtype=torch.float64),
    "half": torch.randn(7, 3).bfloat16(),
    "scalar": torch.tensor(5),
    "none": torch.empty(0, 4),
}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rows_and_digest(rank: int) -> None:
    data = save(TENSORS)

    def wanted(tensor: Described) -> range:
        return cut(tensor.shape[0], rank, 3) if tensor.shape else range(1)

    found, digest = read_rows(io.BytesIO(data), wanted, where="here")
    assert digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        own = cut(len(tensor), rank, 3) if tensor.ndim else None
        expected = tensor if own is None else tensor[own.start : own.stop]
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], expected)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"0"])
def test_a_file_of_another_length_is_refused(change) -> None:
    with pytest.raises(Malformed, match="the file ends"):
        read_rows(io.BytesIO(change(save(TENSORS))), lambda each: range(0), where="here")
