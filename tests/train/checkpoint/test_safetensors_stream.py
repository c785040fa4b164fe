"""Our pieces of a safetensors file are the library's bytes."""

from __future__ import annotations

import hashlib
import io

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from govray.errors import Malformed
from govray.governance.formats.tensor_header import Described
from govray.train.checkpoint.sharded_file import cut
from govray.train.checkpoint.stored_tensors import _DTYPES, PIECE, pieces, read_rows


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(list(_DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    empty = torch.empty(shape, dtype=dtype)
    raw = draw(st.binary(min_size=empty.nbytes, max_size=empty.nbytes))
    # Any bytes but for bool, of which only 0 and 1 are values.
    data = [byte & 1 for byte in raw] if dtype is torch.bool else list(raw)
    return torch.tensor(data, dtype=torch.uint8).view(dtype).reshape(shape)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), tensors()))
def test_the_bytes_are_those_of_the_library(content: dict[str, torch.Tensor]) -> None:
    content.pop("__metadata__", None)
    ours = b"".join(bytes(piece) for piece in pieces(content, where="x"))
    assert ours == safetensors.torch.save(content)


def test_a_large_tensor_comes_in_pieces_without_a_copy() -> None:
    tensor = torch.arange(PIECE // 2, dtype=torch.float32)
    _, *rest = pieces({"w": tensor}, where="x")
    assert len(rest) == 2
    before = bytes(rest[0][:4])
    tensor[0] = 7
    assert bytes(rest[0][:4]) != before, "a view of the tensor, not a copy"


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
