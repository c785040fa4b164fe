"""``govray schema``: the JSON Schema of what people write, for editors.

It describes sources: snake_case, with the short forms of `source_files.py` and
`policy_yaml.read_policy`. A schema cannot say everything, so ``govray policy lint`` and ``govray
sign`` may still refuse a file that fits.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from govray.cli.output import print_json

Schema = dict[str, Any]


class Kind(StrEnum):
    EXPERIMENT = "experiment"
    POLICY = "policy"
    CREDENTIAL = "credential"


def schema(kind: Annotated[Kind, typer.Argument(help="What to describe.")]) -> None:
    """Print the JSON Schema of what people write, for editors."""
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **_describe(kind)})


def _describe(kind: Kind) -> Schema:
    match kind:
        case Kind.EXPERIMENT:
            from govray.tune.search_config import ExperimentFile

            return ExperimentFile.model_json_schema()
        case Kind.POLICY:
            return _policy()
        case Kind.CREDENTIAL:
            from govray.governance.policy.credential import Credential

            described: Schema = _source(Credential.model_json_schema(by_alias=False))
            return described


def _policy() -> Schema:
    from govray.governance.policy.depth_policy import SCHEMA, Policy

    described: Schema = _source(Policy.model_json_schema(by_alias=False))
    described["properties"] = {"schema": {"const": SCHEMA}, **described["properties"]}
    described["required"].insert(0, "schema")
    profile = described["$defs"]["Profile"]["properties"]
    selectors: Schema = {"type": "array", "items": {"type": "string"}}
    phase = described["$defs"]["Phase"]["properties"]
    for each in (profile, phase):
        each["layers"] = _either({"enum": ["all", "none"]}, selectors, each["layers"])
    match = described["$defs"]["Match"]["properties"]
    for name, attribute in match.items():
        match[name] = _either(attribute["items"], attribute)
    _shorten(described["$defs"])
    return described


def _shorten(definitions: Schema) -> None:
    """The short forms of the memorization section."""
    from govray.governance.policy.memorization_section import CALIBRATED

    section = definitions["Monitoring"]["properties"]
    [odds] = section["odds"]["patternProperties"].values()
    section["odds"] = _either({"const": CALIBRATED}, odds, section["odds"])
    name = definitions["RuleAction"]["properties"]["action"]
    actions = section["actions"]
    actions["additionalProperties"] = _either(name, actions["additionalProperties"])


def _source(node: Any) -> Any:
    """The document's schema as its source has it: no null, ``from`` for ``from_``, dates."""
    if isinstance(node, list):
        return [_source(each) for each in node]
    if not isinstance(node, dict):
        return node
    branches = [each for each in node.get("anyOf", ()) if each != {"type": "null"}]
    if "anyOf" in node and len(branches) < len(node["anyOf"]):
        # A field that may be left out; it may not be null.
        rest = {k: v for k, v in node.items() if k not in ("anyOf", "default")}
        return _source(rest | (branches[0] if len(branches) == 1 else {"anyOf": branches}))
    if node.get("format") == "date-time":
        return _either({"type": "string", "format": "date"}, node)
    found = {key: _source(value) for key, value in node.items()}
    if "from_" in found.get("properties", ()):
        found["properties"] = {k.rstrip("_"): v for k, v in found["properties"].items()}
        found["required"] = [name.rstrip("_") for name in found["required"]]
    return found


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}
