"""docs/experiment-file.md on streams: its YAML is accepted, its numbers are those of the code."""

from __future__ import annotations

import re

import yaml

from govray.governance.formats import canonical_json
from govray.train.inputs.experiment_config import Data, Quota
from govray.train.inputs.planning import MOST_DUE, busiest
from tests.support.page_commands import part

PAGE = part("docs/experiment-file.md", "What a step reads")
EXPERIMENT, MIXTURE = (
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
)


def test_the_page_is_valid_and_its_numbers_hold() -> None:
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
