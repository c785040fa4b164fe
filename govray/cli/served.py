"""The service that a verb acts through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from govray.cli import server_option

if TYPE_CHECKING:
    from govray.platform.client import Client


def service() -> Client:
    """The one that ``--server`` or GOVRAY_SERVER names.

    Raises:
        UsageError: Neither does.
    """
    from govray.platform.client import connect

    return connect(server_option.chosen())
