"""From the files that people write to the documents that get signed.

A source is YAML in snake_case, or canonical-form JSON in camelCase (a file named ``*.json``). Its
kind follows from its fields, so nobody has to name it. Short forms: a date means its first second
in UTC. A key of a trust root or a delegation is the path of a ``.pub`` file beside the source. A
certificate is the path of a PEM file.

Validates structure and meaning of the document alone; signs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from govray.cli import user_files
from govray.errors import Malformed

if TYPE_CHECKING:
    from govray.governance.formats.statement import Signed

ROOT_SCHEMA = "govray.dev/trust-root/v1"
DELEGATION_SCHEMA = "govray.dev/delegation/v1"


@dataclass(frozen=True)
class Unsigned:
    """A document ready to be signed. ``name``: what it is about: a corpus, a policy, a root or an
    authority."""

    kind: str
    name: str
    document: Signed
    output: Path


@dataclass(frozen=True)
class _Kind:
    """A kind of document, and what a source of it is called by: the field ``named``."""

    called: str
    of: type[Signed]
    named: str = "name"
    schema: str | None = None
    read: Callable[..., Signed] | None = None
    """Its own reader of YAML, with short forms and a schema of its own."""


def read(path: Path) -> Unsigned:
    from govray.governance.formats import canonical_json
    from govray.governance.formats.strict_yaml import read_yaml

    data, where = user_files.read(path), str(path)
    source = None if path.suffix == ".json" else read_yaml(data, name=where)
    value: Any = canonical_json.parse(data, where=where) if source is None else source.value
    if not isinstance(value, dict):
        raise Malformed("not a mapping of fields", where=where, do=_KINDS)
    if (kind := _kind(value)) is None:
        raise Malformed("govray does not sign this kind of document", where=where, do=_KINDS)
    if source is None:
        document = kind.of.from_json(value, where=where)
    elif kind.read is not None:
        document = kind.read(data, name=where)
    else:
        value = _expand(value, path)
        if kind.schema is not None and value.pop("schema", None) != kind.schema:
            raise Malformed(
                "the schema is missing or another one",
                where=source.where("schema"),
                do=f"Write schema: {kind.schema}.",
            )
        document = kind.of.from_source(value, where=source.where)
    name = attrgetter(kind.named)(document)
    output = path.with_suffix(".dsse.json")
    # The one name without ``.dsse``: a root is handed around on its own.
    if kind.schema == ROOT_SCHEMA and path.suffix != ".json":
        output = path.with_suffix(".json")
    return Unsigned(kind.called, name, document, output)


def _kind(value: dict[str, Any]) -> _Kind | None:
    """The kind that a source's fields tell."""
    if "rules" in value or "profiles" in value:
        from govray.governance.policy.depth_policy import Policy
        from govray.governance.policy.policy_yaml import read_policy

        return _Kind("policy", Policy, read=read_policy)
    if "stages" in value:
        from govray.platform.store.promotion_gates import PromotionPolicy, read_promotion_policy

        return _Kind("promotion policy", PromotionPolicy, read=read_promotion_policy)
    if "attestation" in value:
        from govray.evidence.reports import provider_statement as told

        return _Kind("provider statement", told.ProviderStatement, schema=told.SCHEMA)
    if "records" in value or "license" in value:
        from govray.governance.policy.credential import Credential

        return _Kind("credential", Credential, "corpus")
    if "delegator" in value:
        from govray.governance.trust.authority import Delegation

        return _Kind("delegation", Delegation, "authority.name", DELEGATION_SCHEMA)
    if "authorities" in value:
        from govray.governance.trust.authority import TrustRoot

        return _Kind("trust root", TrustRoot, schema=ROOT_SCHEMA)
    if "round" in value:
        from govray.governance.trust.beacon import SCHEMA as PULSE_SCHEMA
        from govray.governance.trust.beacon import Pulse

        return _Kind("pulse", Pulse, "beacon", PULSE_SCHEMA)
    if "entries" in value:
        from govray.governance.trust.revocation_list import SCHEMA, RevocationList

        return _Kind("revocation list", RevocationList, "issuer", SCHEMA)
    return None


_KINDS = (
    "govray signs policies, promotion gates, credentials, trust roots, delegations, revocation "
    "lists, provider statements and pulses."
)


_INSTANTS = frozenset({"expires", "genesis", "issued", "since"})
_WITHIN = frozenset(
    {
        "authorities",
        "authority",
        "beacon",
        "entries",
        "timestamp_authorities",
        "witness_policy",
        "witnesses",
    }
)
"""Fields that hold documents with short forms of their own."""


def _expand(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write the short forms out. What has another type is left for the schema to refuse."""
    expanded = dict(value)
    if isinstance(period := value.get("valid"), dict):
        # ``from`` is a keyword in Python, so the field is called ``from_`` there.
        expanded["valid"] = {
            "from_" if key == "from" else key: _instant(each) for key, each in period.items()
        }
    for name in _INSTANTS & value.keys():
        expanded[name] = _instant(value[name])
    if isinstance(keys := value.get("keys"), list):
        expanded["keys"] = [_key(each, path) for each in keys]
    if isinstance(key := value.get("key"), str):
        expanded["key"] = _key(key, path)
    if isinstance(certificates := value.get("certificates"), list):
        expanded["certificates"] = [_certificate(each, path) for each in certificates]
    for name in _WITHIN & value.keys():
        inner = value[name]
        if isinstance(inner, dict):
            expanded[name] = _expand(inner, path)
        elif isinstance(inner, list):
            expanded[name] = [_expand(e, path) if isinstance(e, dict) else e for e in inner]
    return expanded


def _instant(value: Any) -> Any:
    is_date = isinstance(value, str) and len(value) == len("2026-11-01")
    return f"{value}T00:00:00Z" if is_date else value


def _key(value: Any, path: Path) -> Any:
    """A path of a public key file becomes the key; the written-out form stays."""
    from govray.governance.formats.dsse import encode_base64
    from govray.governance.formats.keys import PublicKey

    if not isinstance(value, str):
        return value
    file = path.parent / value
    try:
        key = PublicKey.from_pem(user_files.read(file))
    except Malformed as error:
        raise Malformed(
            error.what, where=f"{path}, key {value}", do="Name a file that govray keys new wrote."
        ) from None
    return {"algorithm": key.algorithm, "spki": encode_base64(key.spki)}


def _certificate(value: Any, path: Path) -> Any:
    """A path of a PEM file becomes the certificate's DER in base64; that form stays."""
    from govray.governance.formats.certificate import Certificate
    from govray.governance.formats.dsse import encode_base64

    file = path.parent / value if isinstance(value, str) else None
    if file is None or not file.suffix:
        return value
    try:
        return encode_base64(Certificate.from_pem(user_files.read(file)).der)
    except Malformed as error:
        raise Malformed(error.what, where=f"{path}, certificate {value}", do=error.do) from None
