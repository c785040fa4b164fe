"""The verifier's steps stand once, in ``steps.py``: what prints them or documents them follows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from govray.governance.verify.steps import STEPS
from govray.platform.service.pages import site

STATIC = Path(site.__file__).parent / "static"
NAMES = [(step.number, step.name) for step in STEPS]


def test_the_page_tells_its_script_the_steps() -> None:
    told = json.loads(site.kinds())["steps"]
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
