"""What the page's scripts are told: the verifier's steps, which stand once in ``steps.py``, and
schemas, of which the validator knows each keyword. Else it would refuse sound models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from govray.governance.verify.steps import STEPS
from govray.platform.service.pages.site import kinds
from tests.support.tree import ROOT

STATIC = ROOT / "govray" / "platform" / "service" / "pages" / "static"
NAMES = [(step.number, step.name) for step in STEPS]

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
    script = (STATIC / "schema.js").read_text()
    known = {*re.findall(r"^  ([a-zA-Z$]+)\(", script, re.MULTILINE)}
    known |= {
        *re.findall(r'"([a-zA-Z$]+)"', "\n".join(re.findall("^.*ANNOTATIONS.*$", script, re.M)))
    }
    told = json.loads(kinds())
    schemas = [told["view"], *(each["schema"] for each in told["kinds"].values())]
    assert {*keywords(schemas)} <= known, {*keywords(schemas)} - known


def test_the_page_tells_its_script_the_steps() -> None:
    told = json.loads(kinds())["steps"]
    assert [(step["number"], step["name"]) for step in told] == NAMES


def test_the_script_checks_steps_by_their_numbers_and_repeats_no_text() -> None:
    script = (STATIC / "verify.js").read_text()
    [table] = re.findall(r"^const ORDER = \[\n(.*?)^\];$", script, re.M | re.S)
    checks = dict(re.findall(r"^  \[(\d+), (\w+)\],$", table, re.M))
    named = {str(n): re.sub(r" (\w)", lambda m: m[1].upper(), name) for n, name in NAMES}
    assert checks == {n: named[n] for n in checks}
    for each in ("verify.js", "attestation.js"):
        text = " ".join((STATIC / each).read_text().split())
        assert not [step.name for step in STEPS if step.text in text]
