"""docs/memorization.md: its policy section is accepted, and says what the code does."""

from __future__ import annotations

import re

from govray.governance.attestation import model_folder
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.calibration import DEFAULT_K, into_source
from tests.support.deployment import POLICY
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "memorization.md").read_text()
SECTION, OBSERVING = re.findall(r"```yaml\n(memorization:.*?)```", PAGE, re.S)


def test_the_section_is_accepted_and_shows_every_field() -> None:
    section = read_policy(POLICY + SECTION).memorization
    assert section is not None
    assert section.model_fields_set == set(Monitoring.model_fields)
    # A layer is in both bands where both globs match it.
    assert section.band("head") == (-3, 3)
    assert section.band("block.0") == (-4, 4)


def test_a_policy_that_observes_keeps_row_scores_and_only_flags() -> None:
    section = read_policy(POLICY + OBSERVING).memorization
    assert section is not None
    assert section.row_scores
    assert section.actions == {}


def test_what_the_page_names_is_there() -> None:
    assert f"`--k` being {DEFAULT_K:g} by default" in PAGE
    assert model_folder.GATES in PAGE
    lines = SECTION.splitlines(keepends=True)
    bands = next(n for n, line in enumerate(lines) if line.startswith("  bands:"))
    source = "".join([*lines[:bands], "  bands: calibrated\n", *lines[bands + 3 :]])
    section = read_policy(POLICY + SECTION).memorization
    assert section is not None
    written = into_source(source, section.bands, where="page")
    assert read_policy(POLICY + written).memorization == section
