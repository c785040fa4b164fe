"""What a finished command left, and keys on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.governance.formats.keys import LocalSigner


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)


Run = Callable[..., Done]


def write_key(path: Path, signer: LocalSigner) -> Path:
    path.write_bytes(signer.to_pem())
    path.chmod(0o600)
    return path
