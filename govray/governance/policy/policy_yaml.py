"""A depth policy as people write it: YAML with short forms, which become the document's one form.

A value of an unexpected type is left as it is, for the document to refuse with its field's name.
"""

from __future__ import annotations

from govray.errors import Malformed
from govray.governance.formats.canonical_json import JSON
from govray.governance.formats.strict_yaml import read_yaml
from govray.governance.policy.credential import Period
from govray.governance.policy.depth_policy import SCHEMA, Policy
from govray.governance.policy.memorization_section import expanded as expanded_monitoring


def read_policy(text: str | bytes, *, name: str = "policy") -> Policy:
    """Read a policy's YAML source.

    Short forms are written out. ``layers: all``, ``none`` and a list of selectors become selectors
    with weights. A single value of a match becomes a list, and a date means its first second in
    UTC.
    """
    source = read_yaml(text, name=name)
    fields = _fields(source.value, source.where())
    schema = fields.pop("schema", None)
    if schema != SCHEMA:
        raise Malformed(
            f"the schema is {schema!r}" if schema else "the schema is missing",
            where=source.where("schema"),
            do=f"Write schema: {SCHEMA}",
        )
    if isinstance(profiles := fields.get("profiles"), dict):
        fields["profiles"] = {
            key: _expanded_profile(value, source.where("profiles", key))
            for key, value in profiles.items()
        }
    if isinstance(rules := fields.get("rules"), list):
        fields["rules"] = [_expanded_rule(value) for value in rules]
    if "memorization" in fields:
        fields["memorization"] = expanded_monitoring(
            fields["memorization"], source.where("memorization")
        )
    if "valid" in fields:
        fields["valid"] = _expanded_period(fields["valid"], source.where("valid"))
    return Policy.from_source(fields, where=source.where)


def _fields(value: JSON, where: str) -> dict[str, JSON]:
    if not isinstance(value, dict):
        raise Malformed("no mapping of fields", where=where, do=f"Begin with schema: {SCHEMA}")
    return dict(value)


def _expanded_profile(value: JSON, where: str) -> JSON:
    value = _expanded_layers(value, where)
    if isinstance(value, dict) and isinstance(phases := value.get("phases"), list):
        expanded: list[JSON] = [_expanded_layers(phase, where) for phase in phases]
        value = value | {"phases": expanded}
    return value


def _expanded_layers(value: JSON, where: str) -> JSON:
    if isinstance(value, dict) and "layers" in value:
        layers = value["layers"]
        if layers == "all":
            layers = {"all": 1}
        elif layers == "none":
            layers = {}
        elif isinstance(layers, list):
            layers = {str(item): 1 for item in layers}
        elif not isinstance(layers, dict):
            raise Malformed(
                f"layers is {layers!r}",
                where=where,
                do="Write all, none, a list of selectors, or selectors with weights",
            )
        value = value | {"layers": layers}
    return value


def _expanded_rule(value: JSON) -> JSON:
    if isinstance(value, dict) and isinstance(match := value.get("match"), dict):
        lists: dict[str, JSON] = {
            key: [item] if isinstance(item, str) else item for key, item in match.items()
        }
        value = value | {"match": lists}
    return value


def _expanded_period(value: JSON, where: str) -> JSON:
    if not isinstance(value, dict) or value.keys() != {"from", "until"}:
        raise Malformed("no period", where=where, do="Write valid: {from: DATE, until: DATE}")
    period: dict[str, JSON] = {key: _instant(item) for key, item in value.items()}
    return Period.from_json(period, where=where).model_dump()


def _instant(value: JSON) -> JSON:
    is_date = isinstance(value, str) and len(value) == len("2026-11-01")
    return f"{value}T00:00:00Z" if is_date else value
