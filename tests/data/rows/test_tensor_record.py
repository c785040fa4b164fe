"""Records of named tensors: safetensors files of one layout, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data.rows import tensor_record
from govray.errors import Malformed
from govray.governance.formats.row_schema import NamedTensor, RowSchema, image_schema
from tests.support.table import each_row

SCHEMA = RowSchema(
    kind="tensors",
    tensors=(
        NamedTensor(name="targets", dtype="int64", shape=()),
        NamedTensor(name="box", dtype="float32", shape=(4,)),
        NamedTensor(name="image", dtype="uint8", shape=(1, 2, 3)),
    ),
    classes=5,
)


def tensors(key: int) -> dict[str, Any]:
    draw = np.random.default_rng(key)
    return {
        "targets": np.array(draw.integers(5), np.int64),
        "box": draw.random(4, np.float32),
        "image": draw.integers(0, 256, (1, 2, 3), np.uint8),
    }


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_what_goes_in_comes_out_in_rows(keys: list[int]) -> None:
    records = [tensor_record.encode(SCHEMA, tensors(key)) for key in keys]
    words = np.array([tensor_record.row(SCHEMA, each) for each in records], np.uint32)
    found = tensor_record.tensors(SCHEMA, words)
    for name in ("targets", "box", "image"):
        assert np.array_equal(found[name], np.array([tensors(key)[name] for key in keys]))
        assert found[name].dtype == tensors(0)[name].dtype


def test_the_bytes_of_an_image_are_those_of_ever() -> None:
    image = np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
    schema = image_schema((1, 2, 2), 10)
    content = tensor_record.encode(schema, {"image": image, "targets": np.array(7, np.int64)})
    header = (
        b'{"targets":{"dtype":"I64","shape":[],"data_offsets":[0,8]},'
        b'"image":{"dtype":"U8","shape":[1,2,2],"data_offsets":[8,12]}}'
    )
    header += b" " * (-len(header) % 8)
    assert content == len(header).to_bytes(8, "little") + header + bytes([7, *[0] * 7, 0, 1, 2, 3])


@each_row(
    ("changes", "told"),
    [
        ({"image": np.zeros((1, 3, 2), np.uint8)}, r"'image' is uint8 of shape \(1, 3, 2\)"),
        ({"image": np.zeros((1, 2, 3), np.int64)}, "'image' is int64"),
        ({"box": None}, "'box' is missing"),
        ({"more": np.zeros(1)}, "no tensor 'more'"),
        ({"targets": np.array(5, np.int64)}, "the label is 5, the row schema has 5 classes"),
        ({"targets": np.array(-1, np.int64)}, "the label is -1"),
    ],
)
def test_other_tensors_are_refused(changes: dict[str, Any], told: str) -> None:
    given = {name: each for name, each in (tensors(1) | changes).items() if each is not None}
    with pytest.raises(Malformed, match=told):
        tensor_record.encode(SCHEMA, given)
