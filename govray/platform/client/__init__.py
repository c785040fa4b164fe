"""A client of the service: its operations by noun, by the standard library.

``from govray.platform.client import connect``. It needs what the base install has, and no more.
"""

from govray.platform.client.session import Client, connect

__all__ = ["Client", "connect"]
