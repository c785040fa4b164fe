"""What the verifiers in the browser are told: steps, and the documents' types and wording.

The schemas are pydantic's, of the classes that `govray verify` and `govray view` read with.
So the browser refuses the same unknown fields.
"""

from __future__ import annotations

import json
from functools import lru_cache

from govray.evidence.views.disclosure import Disclosure
from govray.evidence.views.view import View
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import DISCLAIMER, Attestation
from govray.governance.formats.document import Document
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.trust.authority import Delegation, TrustRoot
from govray.governance.trust.revocation_list import RevocationList
from govray.governance.verify.steps import STEPS

_KINDS: dict[str, type[Document]] = {
    "attestation": Attestation,
    "credential": Credential,
    "delegation": Delegation,
    "disclosure": Disclosure,
    "policy": Policy,
    "revocations": RevocationList,
    "trustRoot": TrustRoot,
}


@lru_cache(maxsize=1)
def kinds() -> bytes:
    """JSON: ``kinds``, each with ``predicateType`` and ``schema``; ``disclaimer``; ``steps``.

    ``view`` is the schema of a view, which is no signed document. ``names`` are the rules for what
    files of a model folder are called.
    """
    found = {
        name: {
            "predicateType": kind.PREDICATE_TYPE,
            "schema": kind.model_json_schema(by_alias=True),
        }
        for name, kind in _KINDS.items()
    }
    steps = [{"number": step.number, "name": step.name} for step in STEPS]
    view = View.model_json_schema(by_alias=True)
    told = {
        "disclaimer": DISCLAIMER,
        "kinds": found,
        "names": model_folder.NAMES,
        "steps": steps,
        "view": view,
    }
    return json.dumps(told, sort_keys=True).encode()
