"""This process: its account, a name of its own, and what a signal sets."""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import socket
from threading import Event


def account_name() -> str:
    """The name of this account; its number where it has none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises the second
        return str(os.getuid())


def own_name() -> str:
    """This process, by a name that no other has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def until_signal(stop: Event) -> None:
    """Set ``stop`` at SIGTERM or SIGINT."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stop.set())
