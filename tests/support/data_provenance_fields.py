"""The fields of the Data & Trust Alliance's data provenance standard 1.0.0, as a JSON Schema."""

from __future__ import annotations

from typing import Any


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with these members and no other."""
    return {
        "type": "object",
        "required": sorted(required),
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }


def many(of: dict[str, Any], least: int = 0) -> dict[str, Any]:
    """A list of different ones."""
    return {"type": "array", "items": of, "minItems": least, "uniqueItems": True}


TEXT = {"type": "string"}
PARTY = closed({"name": TEXT}, {"address": many(TEXT)})
PLACE = closed({"country": TEXT}, {"state": TEXT})
CODE = closed({"code": TEXT}, {"system": TEXT, "description": TEXT})

FIELDS = closed(
    {
        "source": closed(
            {
                "version": {"const": "1.0.0"},
                "title": TEXT,
                "id": TEXT,
                "issuer": many(PARTY, 1),
                "description": TEXT,
            },
            {"location": TEXT},
        ),
        "provenance": closed(
            {
                "origin-geography": many(PLACE, 1),
                "date": TEXT,
                "generation-method": many(CODE, 1),
            },
            {
                "source": TEXT,
                "origin": many(PARTY),
                "previous-date": TEXT,
                "generation-period": closed({}, {"start": TEXT, "end": TEXT}),
                "format": many(TEXT),
                "sub-provenance": {"type": "object"},
            },
        ),
        "use": closed(
            {
                "intended-purpose": many(
                    closed({"code": TEXT, "description": TEXT}, {"system": TEXT}), 1
                )
            },
            {
                "classification": many(
                    closed({"regulation": CODE, "evaluated": {"type": "boolean"}}, {"tool": TEXT})
                ),
                "consents": many(TEXT),
                "privacy-enhancing": {"type": "array"},
                "processing-included": many(PLACE),
                "processing-excluded": many(PLACE),
                "storage-allowed": many(PLACE),
                "storage-forbidden": many(PLACE),
                "license": many(TEXT),
                "copyright": many(TEXT),
                "patent": many(TEXT),
                "trademark": many(TEXT),
            },
        ),
    },
    {"$schema": TEXT},
)
