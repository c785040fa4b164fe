"""The page's validator knows each keyword of its schemas: else it would refuse sound models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from govray.platform.service.pages.site import kinds
from tests.support.tree import ROOT

VALIDATOR = ROOT / "govray" / "platform" / "service" / "pages" / "static" / "schema.js"

NAMED = ("$defs", "properties", "patternProperties")
"""Keywords whose members are schemas by name."""


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from keywords(each)
    elif isinstance(schema, dict):
        for keyword, value in schema.items():
            yield keyword
            if keyword in NAMED:
                yield from keywords([*value.values()])
            elif keyword not in ("default", "examples", "const", "enum", "required"):
                yield from keywords(value)


def test_the_pages_validator_knows_every_keyword() -> None:
    script = VALIDATOR.read_text()
    known = {*re.findall(r"^  ([a-zA-Z$]+)\(", script, re.MULTILINE)}
    known |= {
        *re.findall(r'"([a-zA-Z$]+)"', "\n".join(re.findall("^.*ANNOTATIONS.*$", script, re.M)))
    }
    told = json.loads(kinds())
    schemas = [told["view"], *(each["schema"] for each in told["kinds"].values())]
    assert {*keywords(schemas)} <= known, {*keywords(schemas)} - known
