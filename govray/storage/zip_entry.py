"""An entry of a zip that follows from a file's name and kind alone, on every machine."""

from __future__ import annotations

import stat
from zipfile import ZipInfo

_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip can state."""


def zip_entry(name: str, *, executable: bool = False) -> ZipInfo:
    """A regular file of that name, stored, of one time and one mode.
    ``executable``: its owner may run it: mode 0755 in place of 0644."""
    entry = ZipInfo(name, _TIME)
    entry.create_system = 3  # Unix, whatever this machine is
    entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    return entry
