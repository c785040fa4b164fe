"""The verifier's steps stand once, in ``steps.py``: what prints them or documents them follows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from govray.governance.verify.steps import STEPS
from govray.platform.service.pages import site

DOCS = ROOT / "docs"
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


def test_the_documents_name_the_steps_as_they_are() -> None:
    told = STATES.findall((DOCS / "pages.md").read_text())
    assert [(int(number), name) for number, name in told] == NAMES
    checkable = [step.name for step in STEPS if step.needs is None]
    *first, last = checkable
    assert (len(checkable), len(STEPS)) == (5, 17), "the sentences below have these numbers"
    sentence = f"five of the verifier's seventeen steps: the {', the '.join(first)} and the {last}."
    assert sentence in (DOCS / "lineage.md").read_text()
    assert "The page lists the seventeen steps" in (DOCS / "pages.md").read_text()


PRINTED = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path

from govray.errors import VerificationFailed
from govray.governance.verify.envelope_check import check_envelope
from govray.governance.verify.verifier import verify
from govray.platform.service.pages.site import kinds

model, root, at = Path(sys.argv[1]), Path(sys.argv[2]), datetime.fromisoformat(sys.argv[3])
assert False, "-O leaves this out"
try:
    verify(model, trust_root=root, at=at)
except VerificationFailed as error:
    refused = error.what
checked = check_envelope(b"{}", [(root.read_bytes(), ())], at=at).steps
print(json.dumps({
    "doc": verify.__doc__,
    "page": json.loads(kinds())["steps"],
    "envelope": [(step.number, step.name, step.why) for step in checked],
    "refused": refused,
}))
"""


def test_steps_are_named_where_python_drops_docstrings(tmp_path: Path) -> None:
    world = World()
    model = world.deploy(tmp_path / "model")
    (model / model_folder.CONFIG).write_bytes(b"{}")
    (tmp_path / "root.json").write_bytes(world.root)
    given = [str(model), str(tmp_path / "root.json"), AT.isoformat()]
    done = subprocess.run(
        [sys.executable, "-OO", "-c", PRINTED, *given], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["doc"] is None, "the control: docstrings are gone"
    assert [(step["number"], step["name"]) for step in told["page"]] == NAMES
    assert [(number, name) for number, name, _ in told["envelope"]] == NAMES
    for number, _, why in told["envelope"]:
        needs = STEPS[number - 1].needs
        assert not needs or why == f"needs {needs}"
    assert told["refused"].startswith(f"step {steps.FILES.number} ({steps.FILES.name}): ")
