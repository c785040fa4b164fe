"""govray: distributed training on Ray in which every gradient is a credentialed observation.

Importing this package loads neither ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from govray.governance.verify.verifier import verify

__all__ = ["__version__", "verify"]


def __getattr__(name: str) -> Any:
    if name == "verify":
        from govray.governance.verify.verifier import verify

        return verify
    raise AttributeError(f"module 'govray' has no attribute {name!r}")
