"""What turns records into words, by the kind of a run's records; and which kind corpora have."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from govray.data.rows.chat import ChatTokenizer
from govray.data.tokenizer import Tokenizer, Tokens, load_tokenizer
from govray.errors import Refused
from govray.governance.formats.row_schema import RowKind, RowSchema
from govray.governance.policy.credential import Credential


@dataclass(frozen=True)
class WholeRecords:
    """The identity that a manifest states for rows of tensors: no text is tokenized.
    A record counts as one token, id 0, and its separator, id 1."""

    name: str = "tensors"
    vocabulary: int = 2
    separator: int = 1

    @property
    def digest(self) -> str:
        """SHA-256 of the sentence that defines it."""
        return "sha256:" + hashlib.sha256(b"govray rows: one record is one row").hexdigest()

    def encode(self, content: bytes | memoryview) -> Tokens:
        return np.zeros(1, np.uint32)


def load_words(path: Path | None, kind: RowKind) -> Tokenizer:
    """What makes words of records of a kind, with the tokenizer file at ``path``, or bytes."""
    if kind == "images":
        return WholeRecords()
    text = load_tokenizer(path)
    return text if kind == "text" else ChatTokenizer(text)


def common_schema(
    credentials: Mapping[str, Credential], admitted: Collection[str], kind: RowKind
) -> RowSchema | None:
    """The one row schema of the corpora that a run reads; None for text. Raises ``Refused``: a
    corpus has records of another kind, or of another schema than the first."""
    first = None
    for corpus in sorted(admitted):
        schema = credentials[corpus].rows
        found: RowKind = schema.run_kind if schema else "text"
        if found != kind:
            raise Refused(
                f"by its credential its records are {found}, and the run reads {kind}",
                where=f"corpus {corpus}",
                do=f"Write data: {{rows: {found}}}, or keep it in another folder of corpora.",
            )
        first = first or corpus
        if schema != credentials[first].rows:
            raise Refused(
                f"its row schema is not that of corpus {first}",
                where=f"corpus {corpus}",
                do="Train on corpora with equal tensors and classes, or build one of them again.",
            )
    return credentials[first].rows if first else None
