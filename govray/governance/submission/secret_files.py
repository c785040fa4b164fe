"""Files that a working directory may have, and that nobody else is to be given.

Private keys are told by how they begin (`govray.printable`), whatever their file is called. Files
with passwords and tokens of this machine are told by their names: ``.env`` and its variants,
``.netrc``, ``.pypirc`` and ``.git-credentials``. An example of an ``.env`` is none. The file that
salts a corpus's commitments has one name: unpacked, others could read it.
"""

from __future__ import annotations

import re

from govray.printable import holds_key

_LARGEST_KEY = 1 << 16  # bytes of a file
_PASSWORDS = re.compile(
    r"\.env(?!\.(?:example|sample|template|dist)$)(?:\..+)?|\.envrc|[._]netrc|\.pypirc|"
    r"\.git-credentials",
    re.IGNORECASE,
)
_OF_CORPUS = "records.secret"  # as govray.governance.policy.record_commitment says


def held_secret(name: str, data: bytes) -> str | None:
    """What of a file is secret, for who is told; None if nothing is.

    Args:
        name: The file's, without its folder.
        data: What it holds.
    """
    if _PASSWORDS.fullmatch(name):
        return f"{name}, a file with passwords,"
    if name == _OF_CORPUS:
        return "a corpus with its secret"
    if len(data) <= _LARGEST_KEY and holds_key(data):
        return "a private key"
    return None
