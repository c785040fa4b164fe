"""From the columns of a source to a record's content, for records that are no text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from govray.data.rows import chat, tensor_record
from govray.errors import Malformed
from govray.governance.formats.row_schema import TARGETS, RowSchema

_DO = "Mend the record, or let it go into quarantine."


def content(schema: RowSchema, raw: Mapping[str, Any]) -> bytes:
    """The content of one row's record.

    Args:
        raw: Attribute → value: ``messages``, or ``image`` and ``label``. An image is bytes in the
            order channels, height, width, or lists of whole numbers in that order.
    """
    if schema.kind == "chat":
        if raw.get("messages") is None:
            raise Malformed("there are no messages", do=_DO)
        return chat.encode(raw["messages"])
    [image] = [each for each in schema.tensors or () if each.name != TARGETS]
    label = raw.get("label")
    if type(label) is not int or not -(1 << 63) <= label < 1 << 63:
        raise Malformed("the label is no whole number", do=_DO)
    pixels = _pixels(raw.get("image"), image.shape)
    return tensor_record.encode(schema, {image.name: pixels, TARGETS: np.array(label, np.int64)})


def _pixels(value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    if isinstance(value, bytes):
        found: npt.NDArray[Any] = np.frombuffer(value, np.uint8)
    else:
        try:
            found = np.array(value)
        except ValueError:
            raise Malformed("the lists of the image have different lengths", do=_DO) from None
        if found.dtype.kind not in "iu" or not found.ndim:
            raise Malformed("the image is no bytes and no lists of whole numbers", do=_DO)
        if found.size and not 0 <= found.min() <= found.max() <= np.iinfo(np.uint8).max:
            raise Malformed("the image has a number outside 0 to 255", do=_DO)
    # A flat image has the right order by the user's word; a gray one may leave out its channel.
    if found.shape not in ((int(np.prod(shape)),), shape, shape[1:] if shape[0] == 1 else shape):
        told = f"{found.size} bytes" if isinstance(value, bytes) else f"shape {found.shape}"
        raise Malformed(
            f"the image has {told}, --image-shape is {shape}",
            do="Decode images to bytes of one shape: channels, height, width.",
        )
    return found.astype(np.uint8).reshape(shape)
