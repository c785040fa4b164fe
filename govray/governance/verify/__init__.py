"""The verifier: one model folder, one trust root, seventeen numbered steps, no network.

`verify` and `VerifiedModel` are its public face.
"""

from __future__ import annotations

from govray.governance.verify.verifier import VerifiedModel, verify

__all__ = ["VerifiedModel", "verify"]
