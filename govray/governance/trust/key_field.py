"""Public keys in the documents of trust."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from govray.errors import Malformed
from govray.governance.formats.dsse import decode_base64, encode_base64
from govray.governance.formats.keys import ALGORITHMS, PublicKey


def _key_from_json(value: object) -> PublicKey:
    if isinstance(value, PublicKey):
        return value
    if not isinstance(value, dict) or value.keys() != {"algorithm", "spki"}:
        raise ValueError("a key should be an object with the fields 'algorithm' and 'spki'")
    algorithm, spki = value["algorithm"], value["spki"]
    if algorithm not in ALGORITHMS or not isinstance(spki, str):
        raise ValueError(f"a key's algorithm should be one of {', '.join(ALGORITHMS)}")
    try:
        return PublicKey(algorithm, decode_base64(spki))
    except Malformed as error:
        raise ValueError(f"a key's spki: {error.what}") from None


def _key_to_json(key: PublicKey) -> dict[str, str]:
    return {"algorithm": key.algorithm, "spki": encode_base64(key.spki)}


Key = Annotated[
    PublicKey,
    PlainValidator(_key_from_json),
    PlainSerializer(_key_to_json, return_type=dict[str, str]),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "algorithm": {"enum": list(ALGORITHMS)},
                "spki": {"type": "string", "contentEncoding": "base64"},
            },
            "required": ["algorithm", "spki"],
            "additionalProperties": False,
        }
    ),
]
"""A public key; in JSON ``{"algorithm", "spki"}``, the DER in base64."""
