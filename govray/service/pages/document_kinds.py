"""What the verifier in the browser has to know of documents: their types, schemas and wording.

The schemas are pydantic's of the very classes that `govray verify` reads with, so the browser
refuses unknown fields where it does.
"""

from __future__ import annotations

import json
from functools import lru_cache

from govray.governance.attestation.model_attestation import DISCLAIMER, Attestation
from govray.governance.formats.document import Document
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.trust.authority import Delegation, TrustRoot

_KINDS: dict[str, type[Document]] = {
    "attestation": Attestation,
    "credential": Credential,
    "delegation": Delegation,
    "manifest": Manifest,
    "policy": Policy,
    "trustRoot": TrustRoot,
}


@lru_cache(maxsize=1)
def kinds() -> bytes:
    """JSON: ``kinds``, each with ``predicateType`` and ``schema``; and the ``disclaimer``."""
    found = {
        name: {
            "predicateType": kind.PREDICATE_TYPE,
            "schema": kind.model_json_schema(by_alias=True),
        }
        for name, kind in _KINDS.items()
    }
    return json.dumps({"disclaimer": DISCLAIMER, "kinds": found}, sort_keys=True).encode()
