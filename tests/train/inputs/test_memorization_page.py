"""docs/memorization.md: its policy section is accepted, and says what the code does."""

from __future__ import annotations

import re

from govray.governance.attestation import model_folder
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.rank_evidence import FRACTIONS
from tests.support.deployment import POLICY
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "memorization.md").read_text()
[SECTION] = re.findall(r"```yaml\n(memorization:.*?)```", PAGE, re.S)


def test_the_section_is_accepted_and_shows_every_field() -> None:
    section = read_policy(POLICY + SECTION).memorization
    assert section is not None
    assert section.model_fields_set == set(Monitoring.model_fields)
    assert section.tolerance("head") == 1.5
    assert section.tolerance("block.0") == 2


def test_what_the_page_names_is_there() -> None:
    assert model_folder.GATES in PAGE
    said = ", ".join(f"{100 * each:g}" for each in FRACTIONS)
    assert f"{said.replace(', 90', ' and 90')} %" in PAGE
