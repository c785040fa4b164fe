"""The secret that salts and pseudonyms come from: 32 bytes in a file for its owner alone.

Whoever has it can open every leaf and test every pseudonym. It belongs in no model folder.
"""

from __future__ import annotations

from pathlib import Path

from govray.errors import UsageError
from govray.storage.private_file import OpenToOthers, read_private

SECRET_BYTES = 32


def read_secret(path: Path) -> bytes:
    """The secret in a file. Raises `UsageError`: it cannot be read, has another length, or others
    can read it."""
    try:
        secret = read_private(path, SECRET_BYTES + 1)
    except OpenToOthers as error:
        raise UsageError(
            "the secret can be read by others", where=str(path), do=error.remedy
        ) from None
    except OSError as error:
        raise UsageError(
            f"the secret cannot be read: {error.strerror}",
            where=str(path),
            do="Name the one that the disclosure was made with",
        ) from None
    if len(secret) != SECRET_BYTES:
        raise UsageError(
            f"a secret has {SECRET_BYTES} bytes",
            where=str(path),
            do="Name the one that the disclosure was made with",
        )
    return secret
