"""A client of the service: typed, generated from the service's own description, small.

``from govray.platform.client import connect``. It needs what the base install has, and no more.
"""

from govray.platform.client.session import Client, connect

__all__ = ["Client", "connect"]
