"""``python -m tests.support.pack_tables`` writes tables of govray's into `verify_evidence.py`.

The script imports nothing of govray. So it has the fields of documents and the rules for names of
files in it, and a test compares them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.model_folder import NAMES
from govray.governance.formats.document import Document
from govray.governance.policy.credential import Credential
from govray.governance.policy.depth_policy import Policy
from govray.governance.record.entropy_profile import EntropyProfile
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import GradientNorms, Leaf
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.trust.authority import Delegation, TrustRoot
from govray.governance.trust.revocation_list import RevocationList
from tests.support.tree import ROOT

SIGNED = (Attestation, Credential, Delegation, Manifest, Policy, RevocationList, TrustRoot)
LINES: Mapping[str, tuple[type[Document], ...]] = {
    "gate": (Gate,),
    "leaf": (EntropyProfile, GradientNorms, Leaf),
}


def tables() -> dict[str, Any]:
    """What the script has of govray, as JSON."""
    made: dict[str, Any] = json.loads(json.dumps({"names": NAMES, "shapes": shapes()}))
    return made


def shapes() -> dict[str, Any]:
    """Kind of document → the fields of its objects; a list of one for members, 0 for the rest."""
    found = {kind.PREDICATE_TYPE.removeprefix("https://govray.dev/"): _of(kind) for kind in SIGNED}
    return found | {name: _merged([_of(kind) for kind in kinds]) for name, kinds in LINES.items()}


def _of(kind: type[Document]) -> Any:
    schema = kind.model_json_schema(by_alias=True)
    return _shape(schema, schema.get("$defs", {}))


def _shape(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _shape(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return _merged([_shape(each, defs) for each in schema["anyOf"]])
    if "properties" in schema:
        return {name: _shape(each, defs) for name, each in schema["properties"].items()}
    for each in (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")):
        if isinstance(each, Mapping):
            return [_shape(each, defs)]
    if schema.get("type") in ("array", "object"):
        items = [*schema.get("prefixItems", ()), schema.get("items", {})]
        return [_merged([_shape(each, defs) for each in items])]
    return 0


def _merged(shapes: list[Any]) -> Any:
    """What any of them allows. None allows fields where another allows members."""
    objects = [each for each in shapes if isinstance(each, dict)]
    lists = [each for each in shapes if isinstance(each, list)]
    assert not (objects and lists)
    if lists:
        return [_merged([each for [each] in lists])]
    return {name: each for fields in objects for name, each in fields.items()} or 0


if __name__ == "__main__":
    file = ROOT / "govray" / "evidence" / "packs" / "verify_evidence.py"
    text = json.dumps(tables(), separators=(", ", ":"), sort_keys=True)
    lines = textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)
    table = "\n".join(["TABLES: dict[str, Any] = json.loads(", '    r"""', *lines, '"""', ")"])
    old = r"TABLES: dict\[str, Any\] = json\.loads\(.*?\n\)"
    file.write_text(re.sub(old, lambda _: table, file.read_text(), count=1, flags=re.DOTALL))
