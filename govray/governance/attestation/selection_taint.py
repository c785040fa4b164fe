"""Selection: a run was one of several, and a choice among them was made by what corpora gave.

A search compares runs by a metric and by a memorization statistic. Which run is stopped, cloned or
called the best then depends on every corpus that these numbers saw, at every layer. No ledger
counts this path from data to model, and no depth policy closes it. So it is listed, as the taint of
the selection, beside the taint of gradients. Early stopping is such a choice too: of a run among
those that would have gone on.

Invariant: the corpora listed are all those that the run's plan reads. The loss is a mean over all
of them, whatever layers each may reach.

Nothing here lists what else a metric saw. A training loop that reports a number of its own, from
data that was not admitted, brings what no record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from govray.errors import Refused
from govray.governance.formats.bounds import Positive, ShortText
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.record.batch_plan import BatchPlan


class Selection(Document):
    """A search that a run was a trial of, or the early stopping that it was under.

    Attributes:
        search: The search's name; absent of early stopping.
        metric: What trials were compared by, or a run with itself.
        statistic: What limited memorization, if anything did.
        corpora: Whose data these numbers depend on, sorted.
        validation: Corpora that the metric was measured on, if no step trained on them, with the
            digests of their credentials.
        ended: The steps of a run that early stopping ended before its plan did.
    """

    search: Name | None = None
    metric: ShortText
    statistic: ShortText | None = None
    corpora: Annotated[tuple[Name, ...], Field(min_length=1)]
    validation: Annotated[dict[Name, Digest], Field(min_length=1)] | None = None
    ended: Positive | None = None

    @property
    def where(self) -> str:
        """For errors."""
        return f"search {self.search}" if self.search else "early stopping"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.search is not None and self.ended is not None:
            raise ValueError("a search ends trials as it likes, so it does not state how many")
        return self


def selecting_corpora(plan: BatchPlan) -> tuple[str, ...]:
    """The corpora that a choice among runs of a plan depends on, sorted."""
    return tuple(sorted(set(plan.corpora) - set(plan.excluded)))


def check_selection(stated: Sequence[Selection], plan: BatchPlan) -> None:
    """Check what is stated against the run's plan."""
    expected = selecting_corpora(plan)
    for each in stated:
        if each.corpora != expected:
            wrong = sorted(set(each.corpora) ^ set(expected)) or sorted(each.corpora)
            raise Refused(
                f"a selection depends on every corpus that was read, and on no other: {wrong}",
                where=each.where,
            )
        if odd := sorted(set(each.validation or ()) & set(plan.corpora)):
            raise Refused(
                f"corpus {odd[0]!r} was trained on, so it was not held out", where=each.where
            )
        if each.ended is not None and each.ended >= plan.max_steps:
            raise Refused(f"the plan has {plan.max_steps} steps", where=each.where)


def ended_early(stated: Sequence[Selection]) -> int | None:
    """The steps of a run that ended before its plan did, if it did."""
    return next((each.ended for each in stated if each.ended is not None), None)
