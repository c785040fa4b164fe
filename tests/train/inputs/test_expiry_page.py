"""docs/keys-and-trust.md on expiry: its YAML is accepted, and its numbers are those of the code."""

from __future__ import annotations

import re

import yaml

from govray.governance.attestation import model_folder
from govray.governance.policy.depth_policy import Policy
from govray.train.inputs.experiment_config import Governance
from govray.train.inputs.revocation_feed import PATIENCE_S, POLL_S
from tests.support.page_commands import part

PAGE = part("docs/keys-and-trust.md", "When a credential ends")
CHOICES, EXPERIMENT = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)


def test_the_page_is_valid_and_its_numbers_hold() -> None:
    offered = [yaml.safe_load(line)["on_expiry"] for line in CHOICES.splitlines()]
    schema = Policy.model_json_schema()
    assert offered == schema["properties"]["onExpiry"]["enum"]
    governance = Governance(**yaml.safe_load(EXPERIMENT)["governance"])
    assert len(governance.revocations) == 1
    assert model_folder.GATES in PAGE
    assert f"Every {({2.0: 'two'})[POLL_S]} seconds" in PAGE
    assert f"for {({60.0: 'a minute'})[PATIENCE_S]}; then the run stops" in PAGE
