"""docs/streams.md: its YAML is accepted, and the numbers it names are those of the code."""

from __future__ import annotations

import re

import yaml

from govray.governance.formats import canonical_json
from govray.governance.policy.depth_policy import PER_CORPUS
from govray.governance.policy.policy_yaml import read_policy
from govray.train.inputs.experiment_config import Data, Quota
from govray.train.inputs.planning import MOST_DUE, busiest
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "streams.md").read_text()
POLICY, EXPERIMENT, MIXTURE = (
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
)

WHOLE = """
schema: govray.dev/depth-policy/v1
name: many
version: 1
valid: {from: 2020-01-01, until: 2099-01-01}
on_expiry: stop
rules:
  - {name: open, match: {license_category: [permissive]}, profile: everything}
  - {name: contracts, match: {license_category: [commercial]}, profile: removable}
"""


def test_the_page_is_valid_and_its_numbers_hold() -> None:
    profiles = {**yaml.safe_load(WHOLE), **POLICY}
    policy = read_policy(yaml.safe_dump(profiles))
    assert policy.profiles["removable"].adapter == PER_CORPUS
    quotas = Data(corpora="c", **EXPERIMENT["data"]).rows_per_step
    assert quotas["removable"] == Quota(rows=4, every=100)
    mixed = Data(corpora="c", **EXPERIMENT["data"], **MIXTURE["data"]).mixture
    assert mixed == {"web": 0.25, "handbook": 4}
    assert f"more than {MOST_DUE} streams" in PAGE
    crowds = [
        busiest([canonical_json.sha256(b"%d-%d" % (draw, i)) for i in range(300)], 100)
        for draw in range(200)
    ]
    assert sum(7 <= crowd <= 11 for crowd in crowds) > 180
