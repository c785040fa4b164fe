"""The operating curve: decisions in other bands are those that a run under them would make."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from govray.engine.memorization.deviation import measures
from govray.engine.memorization.operating_curve import ObservedRun, curve, flagged_at
from govray.engine.memorization.scores import RowScores
from govray.errors import Refused
from govray.governance.policy.memorization_section import Action, Band, Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
from govray.governance.record.incidents import Incidents

LAYERS = ("block.0", "head")
SHIFTS = {"clean": 0.0, "known": 2.5, "little": 0.8}
PROFILES = 6
ROWS = 32


def section(half_width: float, *, row_scores: bool = True) -> Monitoring:
    return Monitoring(
        every=10,
        probe_rows=ROWS,
        bands={"*": Band(low=-half_width, high=half_width)},
        row_scores=row_scores,
    )


def subjects(action: Action = "flag") -> dict[str, MonitoredCorpus]:
    return {name: MonitoredCorpus("trunk", action, profiles=PROFILES) for name in sorted(SHIFTS)}


def profiles(under: Monitoring, shifts: Mapping[str, float] = SHIFTS) -> list[EntropyProfile]:
    """What a run of these corpora records under a policy: the same rows, whatever its bands."""
    made = []
    for number in range(PROFILES):
        found = []
        for name, shift in sorted(shifts.items()):
            draw = torch.Generator().manual_seed(sum(name.encode()) + 100 * number)
            sides = [
                RowScores.of_table(
                    LAYERS, torch.randn(ROWS, 6, generator=draw, dtype=torch.float64) + up
                )
                for up in (0.0, 0.0)
            ]
            probe = RowScores(
                LAYERS, sides[0].entropy - shift, sides[0].surprise - shift, sides[0].min_k + shift
            )
            found += measures(
                name,
                probe,
                sides[1],
                probe_units=[f"p{row}" for row in range(ROWS)],
                reserve_units=[f"r{row}" for row in range(ROWS)],
                statistic=under.statistic,
                key=(0, number),
                bands={layer: ends for layer in LAYERS if (ends := under.band(layer))},
                row_scores=under.row_scores,
            )
        made.append(
            EntropyProfile(step=10 * number + 9, statistic=under.statistic, measures=tuple(found))
        )
    return made


def observed(under: Monitoring, action: Action = "flag") -> ObservedRun:
    return ObservedRun(
        section=under, subjects=subjects(action), profiles=profiles(under), clean={"clean"}
    )


@pytest.mark.parametrize("half_width", [0.0, 0.5, 2.0])
def test_a_point_is_what_a_run_in_that_band_decides(half_width: float) -> None:
    told = Incidents(section(half_width), subjects())
    decided: dict[str, int] = {}
    for number, profile in enumerate(profiles(section(half_width)), start=1):
        for each in told.take(profile):
            decided.setdefault(each.corpus, number)
    assert flagged_at(observed(section(1.0)), [half_width]) == [decided]


def test_e_values_that_do_not_follow_are_refused() -> None:
    run = observed(section(1.0))
    first = run.profiles[0]
    other = tuple(each.model_copy(update={"e": (each.e or 0) + 0.5}) for each in first.measures)
    changed = first.model_copy(update={"measures": other})
    wrong = ObservedRun(
        section=run.section, subjects=run.subjects, profiles=[changed], clean=run.clean
    )
    with pytest.raises(Refused, match="does not follow from its row scores"):
        curve([wrong], [1.0])
