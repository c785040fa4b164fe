"""The signing key that a verb uses, and the password of one that is encrypted.

A password comes from a file that only its owner can read, or is typed at a terminal. It is never an
argument, which other users see, nor a variable, which child processes inherit.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from govray.cli.output import DEFAULT_KEY
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.governance.formats.keys import Signer


def load(key: str, password_file: Path | None) -> Signer:
    from govray.governance.formats.keys import read_password
    from govray.governance.signers.kept_memory import keep_memory
    from govray.governance.signers.key_reference import open_signer

    if key == DEFAULT_KEY and not os.environ.get("GOVRAY_KEY", "").strip():
        raise UsageError("no key was given", do="Give its path by --key, or set GOVRAY_KEY to it")
    keep_memory()
    if password_file is not None:
        return open_signer(key, password=read_password(password_file))
    return open_signer(key, password=_ask)


def new_password(password_file: Path | None) -> bytes:
    """The password for a new key: from a file, or typed twice."""
    from govray.governance.formats.keys import read_password

    if password_file is not None:
        return read_password(password_file)
    first = _ask("Password of the new key: ")
    if _ask("The same again: ") != first:
        raise UsageError("the two passwords differ", do="Type the same twice")
    return first


def _ask(prompt: str = "Password of the key: ") -> bytes:
    if not sys.stdin.isatty():
        raise UsageError(
            "the private key is encrypted, and there is no terminal to ask at",
            do="Give its password: --password-file FILE",
        )
    password = getpass.getpass(prompt).encode()
    if not password:
        raise UsageError("the password is empty", do="Type the password of the key")
    return password
