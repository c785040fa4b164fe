"""Our pieces of a safetensors file are the library's bytes."""

from __future__ import annotations

import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from govray.train.checkpoint.safetensors_stream import _DTYPES, PIECE, pieces


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
