"""A credential class, of which a test says what matters to it."""

from __future__ import annotations

from typing import Any

from govray.governance.policy.credential import CredentialClass


def cls(**changes: Any) -> CredentialClass:
    attributes = {
        "corpus": "acme",
        "license": "MIT",
        "license_category": "permissive",
        "jurisdiction": "NO",
        "sensitivity": "public",
        "use": "commercial",
    }
    return CredentialClass(**(attributes | changes))
