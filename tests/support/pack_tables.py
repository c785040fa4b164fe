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


ANY, TEXT, WHOLE, NUMBER, YES_NO = range(5)
LEAVES = {"string": TEXT, "integer": WHOLE, "number": NUMBER, "boolean": YES_NO}


def tables() -> dict[str, Any]:
    """What the script has of govray, as JSON."""
    made: dict[str, Any] = json.loads(json.dumps({"names": NAMES, "shapes": shapes()}))
    return made


def shapes() -> dict[str, Any]:
    """Kind of document → its fields. What stands in several places has a name with ``@``."""
    named: dict[str, Any] = {}
    found = {
        kind.PREDICATE_TYPE.removeprefix("https://govray.dev/"): _of(kind, named) for kind in SIGNED
    }
    found |= {name: _merged([_of(kind, named) for kind in kinds]) for name, kinds in LINES.items()}
    text = json.dumps([found, named])
    for name in sorted(named, key=len, reverse=True):
        if text.count(f'"{name}"') == 2:  # here, and in the one place
            found, named = _inlined([found, named], name, named[name])
            del named[name]
    return found | named


def _inlined(value: Any, name: str, shape: Any) -> Any:
    if isinstance(value, dict):
        return {key: _inlined(each, name, shape) for key, each in value.items()}
    if isinstance(value, list):
        return [_inlined(each, name, shape) for each in value]
    return shape if value == name else value


def _of(kind: type[Document], named: dict[str, Any]) -> Any:
    schema = kind.model_json_schema(by_alias=True)
    return _shape(schema, schema.get("$defs", {}), named)


def _shape(schema: Mapping[str, Any], defs: Mapping[str, Any], named: dict[str, Any]) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        shape = _shape(defs[name], defs, named)
        if not isinstance(shape, dict):
            return shape
        assert named.setdefault(f"@{name}", shape) == shape, name
        return f"@{name}"
    if "anyOf" in schema:
        return _merged([_shape(each, defs, named) for each in schema["anyOf"]])
    if "properties" in schema:
        needed = schema.get("required", ())
        return {
            name if name in needed else f"{name}?": _shape(each, defs, named)
            for name, each in schema["properties"].items()
        }
    for each in (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")):
        if isinstance(each, Mapping):
            return {"*": _shape(each, defs, named)}
    if schema.get("type") == "array":
        items = [*schema.get("prefixItems", ()), schema.get("items", {})]
        return [_merged([_shape(each, defs, named) for each in items if each])]
    assert schema.get("type") != "object"
    return LEAVES.get(schema.get("type", ""), ANY)


def _merged(shapes: list[Any]) -> Any:
    """What any of them allows; ``ANY`` is of null, too, which no document has."""
    shapes = [each for each in shapes if each != ANY]
    if not shapes or all(each == shapes[0] for each in shapes):
        return shapes[0] if shapes else ANY
    if all(isinstance(each, dict) for each in shapes):
        bare = [{name.rstrip("?"): each for name, each in one.items()} for one in shapes]
        always = set.intersection(*({n for n in one if not n.endswith("?")} for one in shapes))
        return {
            name if name in always else f"{name}?": _merged(
                [one[name] for one in bare if name in one]
            )
            for name in sorted(set().union(*bare))
        }
    assert not any(isinstance(each, dict | list | str) for each in shapes), shapes
    return ANY


if __name__ == "__main__":
    file = ROOT / "govray" / "evidence" / "packs" / "verify_evidence.py"
    text = json.dumps(tables(), separators=(", ", ":"), sort_keys=True)
    lines = textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)
    table = "\n".join(["TABLES: dict[str, Any] = json.loads(", '    r"""', *lines, '"""', ")"])
    old = r"TABLES: dict\[str, Any\] = json\.loads\(.*?\n\)"
    file.write_text(re.sub(old, lambda _: table, file.read_text(), count=1, flags=re.DOTALL))
