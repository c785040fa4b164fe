"""Which code trained: one digest over govray's own source files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import govray
from govray.governance import canonical


@cache
def code_digest() -> str:
    """SHA-256 over the sorted (relative path, SHA-256) pairs of the package's ``.py`` files."""
    package = Path(govray.__file__).parent
    files = {
        path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*.py"))
    }
    return canonical.sha256(canonical.encode(files))
