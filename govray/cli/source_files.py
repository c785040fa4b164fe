"""From the files that people write to the documents that get signed.

A source is YAML in snake_case, or canonical-form JSON in camelCase (a file named ``*.json``). Its
kind follows from its fields, so nobody has to name it. Short forms: a date means its first second
in UTC. A key of a trust root or a delegation is the path of a ``.pub`` file beside the source. A
certificate is the path of a PEM file.

Validates structure and meaning of the document alone; signs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from govray.cli import user_files
from govray.errors import Malformed

if TYPE_CHECKING:
    from govray.governance.formats.document import Document
    from govray.governance.formats.keys import Signer
    from govray.governance.formats.strict_yaml import Source

D = TypeVar("D", bound="Document")

ROOT_SCHEMA = "govray.dev/trust-root/v1"
DELEGATION_SCHEMA = "govray.dev/delegation/v1"


@dataclass(frozen=True)
class Unsigned:
    """A document ready to be signed. ``name``: what it is about: a corpus, a policy, a root or an
    authority."""

    kind: str
    name: str
    document: Document
    seal: Callable[[Sequence[Signer]], bytes]
    output: Path


def read(path: Path) -> Unsigned:
    from govray.governance.formats import canonical_json
    from govray.governance.formats.strict_yaml import read_yaml

    data = user_files.read(path)
    source = None if path.suffix == ".json" else read_yaml(data, name=str(path))
    value: Any = canonical_json.parse(data, where=str(path)) if source is None else source.value
    if not isinstance(value, dict):
        raise Malformed("not a mapping of fields", where=str(path), do=_KINDS)
    if "rules" in value or "profiles" in value:
        return _policy(path, data, None if source else value)
    if "stages" in value:
        return _promotion(path, data, None if source else value)
    if source is not None:
        value = _expand(value, path)
    if "attestation" in value:
        return _provider(path, value, source)
    if "records" in value or "license" in value:
        return _credential(path, value, source)
    if "delegator" in value:
        return _delegation(path, value, source)
    if "authorities" in value:
        return _root(path, value, source)
    if "entries" in value:
        return _revocations(path, value, source)
    raise Malformed("govray does not sign this kind of document", where=str(path), do=_KINDS)


_KINDS = (
    "govray signs policies, promotion gates, credentials, trust roots, delegations, revocation "
    "lists and provider statements."
)


def _policy(path: Path, data: bytes, value: dict[str, Any] | None) -> Unsigned:
    from govray.governance.policy.depth_policy import Policy, seal_policy
    from govray.governance.policy.policy_yaml import read_policy

    policy = (
        read_policy(data, name=str(path))
        if value is None
        else Policy.from_json(value, where=str(path))
    )
    return Unsigned(
        "policy", policy.name, policy, lambda by: seal_policy(policy, by), _envelope(path)
    )


def _promotion(path: Path, data: bytes, value: dict[str, Any] | None) -> Unsigned:
    from govray.platform.store.promotion_gates import (
        PromotionPolicy,
        read_promotion_policy,
        seal_promotion_policy,
    )

    gates = (
        read_promotion_policy(data, name=str(path))
        if value is None
        else PromotionPolicy.from_json(value, where=str(path))
    )
    return Unsigned(
        "promotion policy",
        gates.name,
        gates,
        lambda by: seal_promotion_policy(gates, by),
        _envelope(path),
    )


def _credential(path: Path, value: dict[str, Any], source: Source | None) -> Unsigned:
    from govray.governance.policy.credential import Credential, seal_credential

    credential = _read(Credential, value, path, source)
    return Unsigned(
        "credential",
        credential.corpus,
        credential,
        lambda by: seal_credential(credential, by),
        _envelope(path),
    )


def _root(path: Path, value: dict[str, Any], source: Source | None) -> Unsigned:
    from govray.governance.trust.authority import TrustRoot
    from govray.governance.trust.trust_state import sign_root

    root = _read(TrustRoot, _without_schema(value, path, ROOT_SCHEMA, source), path, source)
    # The one name without ``.dsse``: a root is handed around on its own.
    output = path.with_suffix(".json")
    if output == path:
        output = _envelope(path)
    return Unsigned("trust root", root.name, root, lambda by: sign_root(root, by), output)


def _delegation(path: Path, value: dict[str, Any], source: Source | None) -> Unsigned:
    from govray.governance.trust.authority import Delegation
    from govray.governance.trust.trust_state import sign_delegation

    value = _without_schema(value, path, DELEGATION_SCHEMA, source)
    delegation = _read(Delegation, value, path, source)
    return Unsigned(
        "delegation",
        delegation.authority.name,
        delegation,
        lambda by: sign_delegation(delegation, by),
        _envelope(path),
    )


def _revocations(path: Path, value: dict[str, Any], source: Source | None) -> Unsigned:
    from govray.governance.trust.revocation_list import SCHEMA, RevocationList, seal_revocations

    value = _without_schema(value, path, SCHEMA, source)
    revocations = _read(RevocationList, value, path, source)
    return Unsigned(
        "revocation list",
        revocations.issuer,
        revocations,
        lambda by: seal_revocations(revocations, by),
        _envelope(path),
    )


def _provider(path: Path, value: dict[str, Any], source: Source | None) -> Unsigned:
    from govray.evidence.reports.provider_statement import SCHEMA, ProviderStatement, seal_statement

    value = _without_schema(value, path, SCHEMA, source)
    statement = _read(ProviderStatement, value, path, source)
    return Unsigned(
        "provider statement",
        statement.name,
        statement,
        lambda by: seal_statement(statement, by),
        _envelope(path),
    )


def _read(kind: type[D], value: dict[str, Any], path: Path, source: Source | None) -> D:
    if source is None:
        return kind.from_json(value, where=str(path))
    return kind.from_source(value, where=source.where)


def _envelope(path: Path) -> Path:
    return path.with_suffix(".dsse.json")


def _without_schema(
    value: dict[str, Any], path: Path, schema: str, source: Source | None
) -> dict[str, Any]:
    """YAML says its schema; the JSON form has the statement's predicate type for that."""
    if source is None:
        return value
    if value.get("schema") != schema:
        raise Malformed(
            "the schema is missing or another one",
            where=source.where("schema"),
            do=f"Write schema: {schema}.",
        )
    return {name: member for name, member in value.items() if name != "schema"}


_INSTANTS = frozenset({"expires", "issued", "since"})


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
    if isinstance(entries := value.get("entries"), list):
        expanded["entries"] = [
            _expand(each, path) if isinstance(each, dict) else each for each in entries
        ]
    if isinstance(keys := value.get("keys"), list):
        expanded["keys"] = [_key(each, path) for each in keys]
    if isinstance(key := value.get("key"), str):
        expanded["key"] = _key(key, path)
    if isinstance(certificates := value.get("certificates"), list):
        expanded["certificates"] = [_certificate(each, path) for each in certificates]
    if isinstance(policy := value.get("witness_policy"), dict):
        expanded["witness_policy"] = _expand(policy, path)
    for name in ("timestamp_authorities", "witnesses"):
        if isinstance(parties := value.get(name), list):
            expanded[name] = [
                _expand(each, path) if isinstance(each, dict) else each for each in parties
            ]
    if isinstance(authority := value.get("authority"), dict):
        expanded["authority"] = _expand(authority, path)
    if isinstance(authorities := value.get("authorities"), list):
        expanded["authorities"] = [
            _expand(each, path) if isinstance(each, dict) else each for each in authorities
        ]
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
