"""Files that a working directory may have, and that nobody else is to be given: one rule.

`LEFT_OUT` are patterns of what is never packed and never received. They are what runs leave, the
store with its secret, and version control, whose hooks and settings run code. `SECRET` are patterns
of what is refused instead, since a job may need a file of that name that is no secret. ``govray
init`` writes both into the ``.gitignore`` and the ``.rayignore`` of a deployment. Ray's own upload
reads the latter.

Private keys are told by how they begin (`govray.printable`), whatever their file is called. Files
with passwords and tokens of this machine are told by their names: ``.env`` and its variants,
``.netrc``, ``.pypirc`` and ``.git-credentials``. An example of an ``.env`` is no secret. The file
that salts a corpus's commitments has one name: unpacked, others could read it.
"""

from __future__ import annotations

from govray.printable import holds_key
from govray.storage.gitignore import Ignored

_VERSION_CONTROL = (".git", ".hg", ".svn")

LEFT_OUT = (
    *_VERSION_CONTROL,
    "__pycache__/",
    "/runs/",
    "/govray-demo/",
    "govray.db",
    "govray.db-*",
    "*.db.key",
)
_PASSWORDS = (
    ".env",
    ".env.*",
    *(f"!.env.{each}" for each in ("example", "sample", "template", "dist")),
    ".envrc",
    ".netrc",
    "_netrc",
    ".pypirc",
    ".git-credentials",
)
_OF_CORPUS = "records.secret"  # as govray.governance.policy.record_commitment says
SECRET = ("*.pem", _OF_CORPUS, *_PASSWORDS)

_left_out, _passwords = Ignored.of(LEFT_OUT), Ignored.of(_PASSWORDS)
_LARGEST_KEY = 1 << 16  # bytes of a file


def ignore_file() -> str:
    """A ``.gitignore``, and a ``.rayignore``, of a folder that jobs are sent from."""
    lines = ["# Stays here: govray packs none of it, and Ray reads this file.", *LEFT_OUT]
    return "\n".join([*lines, "# Secrets.", *SECRET]) + "\n"


def left_out(name: str, is_folder: bool) -> bool:
    """Whether a file or folder is never packed; what lies above it is not looked at.

    Version control is told as systems do that ignore case, and dots at the end.

    Args:
        name: Below the folder, with slashes.
    """
    alike = name.rpartition("/")[2].rstrip(". ").lower()
    return alike in _VERSION_CONTROL or _left_out(name, is_folder)


def never_received(name: str) -> bool:
    """Whether `code_archive.packed` leaves out this file, or a folder above it."""
    parts = name.split("/")
    above = ("/".join(parts[:end]) for end in range(1, len(parts)))
    return any(left_out(each, True) for each in above) or left_out(name, False)


def held_secret(name: str, data: bytes) -> str | None:
    """What of a file is secret, for who is told; None if nothing is.
    ``name``: the file's, without its folder."""
    if _passwords(name.lower(), False):
        return f"{name}, a file with passwords,"
    if name == _OF_CORPUS:
        return "a corpus with its secret"
    if len(data) <= _LARGEST_KEY and holds_key(data):
        return "a private key"
    return None
