"""Selection: a run was one of several, and a choice among them was made by what corpora gave.

A search compares runs by a metric and by a memorization statistic. Which run is stopped, cloned or
called the best then depends on every corpus that these numbers saw, at every layer. No ledger
counts this path from data to model, and no depth policy closes it. So it is listed, as the taint of
the selection, beside the taint of gradients.

Invariant: the corpora listed are all those that the run's plan reads. The loss is a mean over all
of them, whatever layers each may reach.

Nothing here lists what else a metric saw. A training loop that reports a number of its own, from
data that was not admitted, brings what no record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from govray.errors import Refused
from govray.governance.formats.bounds import ShortText
from govray.governance.formats.document import Document, Name
from govray.governance.record.batch_plan import BatchPlan


class Selection(Document):
    """A search that a run was a trial of.

    Attributes:
        search: Its name.
        metric: The loss that trials were compared by.
        statistic: What limited memorization, if anything did.
        corpora: Whose data these numbers depend on, sorted.
    """

    search: Name
    metric: ShortText
    statistic: ShortText | None = None
    corpora: Annotated[tuple[Name, ...], Field(min_length=1)]


def selecting_corpora(plan: BatchPlan) -> tuple[str, ...]:
    """The corpora that a choice among runs of a plan depends on, sorted."""
    return tuple(sorted(set(plan.corpora) - set(plan.excluded)))


def check_selection(stated: Sequence[Selection], plan: BatchPlan) -> None:
    """Check what is stated against the run's plan.

    Raises:
        Refused: Names the search, and the corpora that do not fit.
    """
    expected = selecting_corpora(plan)
    for each in stated:
        if each.corpora != expected:
            wrong = sorted(set(each.corpora) ^ set(expected)) or sorted(each.corpora)
            raise Refused(
                f"a selection depends on every corpus that was read, and on no other: {wrong}",
                where=f"search {each.search}",
            )
