"""Tokenizers: bytes, or a Hugging Face ``tokenizer.json`` by path.

A tokenizer is a pure function of one record's content and is named by a digest that the prepare
manifest pins. The separator is an id of its own, one past the tokenizer's vocabulary. So no content
can forge the end of a record, even by spelling a special token.

Nothing is added, truncated, padded or dropped at random, whatever the tokenizer file says about it.
A word-level tokenizer that has no token for unknown words is refused: it would leave them out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from govray.data.corpus import read_file
from govray.errors import Malformed

Tokens = npt.NDArray[np.uint32]


class Tokenizer(Protocol):
    """Content to token ids; picklable, since it travels to the workers.
    ``vocabulary`` counts the ids, the separator included; ``digest`` names the function."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def separator(self) -> int: ...

    def encode(self, content: bytes | memoryview) -> Tokens:
        """Token ids ``[n]`` of one record, without separator; n = 0 only for some contents."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Every byte is its own id; 256 separates records."""

    name: str = "bytes"
    vocabulary: int = 257
    separator: int = 256

    @property
    def digest(self) -> str:
        """SHA-256 of the sentence that defines the tokenizer."""
        return "sha256:" + hashlib.sha256(b"govray tokenizer: bytes, separator 256").hexdigest()

    def encode(self, content: bytes | memoryview) -> Tokens:
        return np.frombuffer(content, dtype=np.uint8).astype(np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, none of which is the separator; U+FFFD for what is no text."""
        return bytes(ids).decode(errors="replace")


@dataclass(frozen=True)
class FileTokenizer:
    """A Hugging Face ``tokenizers`` file; ``data`` holds its bytes.

    Content is read as UTF-8; a malformed sequence becomes U+FFFD, since the tokenizer knows text
    only. Record hashes are of the content itself and are not affected.
    """

    name: str
    data: bytes

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer as HuggingFaceTokenizer
        from tokenizers.models import WordLevel

        try:
            tokenizer = HuggingFaceTokenizer.from_buffer(self.data)
        except Exception as error:  # the binding raises bare Exception and ValueError
            raise Malformed(
                "not a Hugging Face tokenizer file",
                where=self.name,
                do="Give a tokenizer.json that the tokenizers library loads.",
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        model = tokenizer.model
        if getattr(model, "dropout", None) is not None:
            model.dropout = None  # of BPE: one record would have many encodings
        unknown = getattr(model, "unk_token", None)
        if isinstance(model, WordLevel) and model.token_to_id(unknown or "") is None:
            raise Malformed(
                "a word-level tokenizer without a token for unknown words leaves them out",
                where=self.name,
                do="Add its unknown token to the vocabulary, or use another tokenizer.",
            )
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "data": self.data}

    @property
    def separator(self) -> int:
        # Ids may have gaps, so the size of the vocabulary is not one past the largest id.
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def vocabulary(self) -> int:
        return self.separator + 1

    def encode(self, content: bytes | memoryview) -> Tokens:
        text = str(content, "utf-8", errors="replace")
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, none of which is the separator."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def load_tokenizer(path: Path | None) -> ByteTokenizer | FileTokenizer:
    if path is None:
        return ByteTokenizer()
    tokenizer = FileTokenizer(path.name, read_file(path))
    tokenizer.vocabulary  # noqa: B018  a bad file is an error here, not on a worker
    return tokenizer
