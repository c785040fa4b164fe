"""docs/evidence.md on reports: its commands run, and its words are those of the code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from govray.evidence.reports import eu_summary
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from tests.support.command import Run, write_key
from tests.support.page_commands import part
from tests.support.world import World, write

PAGE = part("docs/evidence.md", "Reports for regulators")
LINES = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.S | re.M)
    for line in block.splitlines()
]
GPT = {
    "context": 7,
    "entrypoint": "govray.engine.gpt:GPT",
    "hyperparameters": {"blocks": 2, "context": 7, "vocabulary": 257, "width": 8},
}


@pytest.fixture
def models(untouched: Path, root: Path, world: World, tmp_path: Path) -> Path:
    """MODEL, ROOT, a key, and a model whose configuration is that of a GPT."""
    (tmp_path / "MODEL").symlink_to(untouched)
    root.rename(tmp_path / "ROOT")
    write_key(tmp_path / "operator.pem", world.keys.operator)
    folder = world.deploy(tmp_path / "GPT")
    write(folder / "govray.json", canonical_json.encode(GPT))
    attested = folder / "governance" / "attestation.dsse.json"
    document = read(Attestation, Envelope.parse(attested.read_bytes())).document
    attested.unlink()
    world.attest(folder, document)
    return tmp_path


def test_its_commands_run(run: Run, models: Path, at: str) -> None:
    assert len([line for line in LINES if line.startswith("govray ")]) == 6
    for line in LINES:
        words = shlex.split(line)
        if words[0] == "govray":
            run(*words[1:], *(["--at", at] if "--trust-root" in words else []))
        else:
            subprocess.run(words, cwd=models, check=True)
    page = (models / "summary.html").read_text()
    assert "Draft for the provider's review" in page
    assert "Example Ltd" in page
    assert (models / "annex.docx").read_bytes().startswith(b"PK")
    counted = json.loads((models / "flops.json").read_text())
    fields = {f["key"]: f for section in counted["sections"] for f in section["fields"]}
    assert fields["2d flops"]["state"] == "filled"
    assert "of what is counted" in fields["2d flops"]["value"][0]


def test_its_words_are_those_of_the_code() -> None:
    assert re.findall(r"^\| (filled|asked|missing) \|", PAGE, re.M) == [
        "filled", "asked", "missing",
    ]  # fmt: skip
    assert "C(2025) 8311" in PAGE
    assert "C(2025) 8311" in eu_summary.TEMPLATE
    assert f"{eu_summary.SMALL_MOST:,}" in PAGE
    assert (1 / eu_summary.SHARE, 1 / eu_summary.SMALL_SHARE) == (10, 20)
    assert "hardwareAttested" not in PAGE
