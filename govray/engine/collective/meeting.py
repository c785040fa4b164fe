"""Where ranks meet in the middle of a step, before a collective that a failed rank could not join.

Torch's hosts run collectives in forward and backward. Before each, ranks meet: all are well, or
all stop. A rank that fails goes to the second status instead, which the others meet there.

Invariants:

* What stops a rank here has stopped all: the same error, raised by all.
* A loss function can't go on after it, whatever it catches: the next meeting stops it again,
  without an exchange that nobody would answer.
"""

from __future__ import annotations

from torch import Tensor

from govray.engine.collective.agreement import Agreement, Pending
from govray.errors import GovrayError


class StoppedTogether(BaseException):
    """All ranks have raised this error together.

    Not an `Exception`, for a loss function's ``except Exception`` must not swallow it.
    """

    def __init__(self, error: GovrayError) -> None:
        super().__init__(str(error))
        self.error = error


class Meeting:
    """The meetings of one step on this rank; call it to meet.

    Args:
        agreement: The run's.
        pending: The step's first exchange, awaited before the first meeting.
        step: The step.
        nothing: Zeros of the shape that the second status sums; float64, on the CPU.

    Attributes:
        stopped: What stopped the ranks, once it did.
    """

    def __init__(self, agreement: Agreement, pending: Pending, step: int, nothing: Tensor) -> None:
        self._agreement = agreement
        self._pending = pending
        self._step = step
        self._nothing = nothing
        self.stopped: GovrayError | None = None

    def __call__(self) -> None:
        """Return if all ranks are well. Collective.

        Raises:
            Stopped: One is not.
        """
        if self.stopped is None:
            try:
                self._pending.wait()
                self._agreement.conclude(self._step, self._nothing, None)
            except GovrayError as error:
                self.stopped = error
        if self.stopped is not None:
            raise StoppedTogether(self.stopped)
