"""Why a rank cannot go on, and how all ranks come to raise it.

A status is a number in a row that every rank sees. The text travels only after all have agreed that
there is an error, so no rank waits for a text that nobody sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from govray.errors import GovrayError, InfrastructureFailed, RankFailed, Refused, UsageError

_KINDS: tuple[type[GovrayError], ...] = (RankFailed, Refused, UsageError, InfrastructureFailed)
"""What a status means: 0 is well, i + 1 is an error of kind i."""


@dataclass(frozen=True)
class RankFailure:
    """Why this rank cannot go on.

    Attributes:
        kind: The error that all ranks raise.
        cause: What was caught here, if anything.
    """

    text: str
    kind: type[GovrayError] = RankFailed
    cause: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException) -> RankFailure:
        """A caught error; one of ours keeps its kind, for refusals are never retried."""
        for kind in (Refused, UsageError, InfrastructureFailed):
            if isinstance(error, kind):
                return cls(str(error), kind, error)
        said = str(error)
        if not isinstance(error, GovrayError):
            said = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return cls(said, RankFailed, error)


class StoppedTogether(BaseException):
    """All ranks have raised this error together.

    Not an `Exception`, for a loss function's ``except Exception`` must not swallow it.
    """

    def __init__(self, error: GovrayError) -> None:
        super().__init__(str(error))
        self.error = error


class FirstFailure:
    """What went wrong first on this rank, kept until an exchange tells all ranks.
    ``failure``: it, or None."""

    def __init__(self) -> None:
        self.failure: RankFailure | None = None

    @contextmanager
    def noted(self, but: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """Inside, whatever is raised ends the block and is kept: all ranks must hear of it.
        ``but``: what is raised on, because nobody can be told: a collective broke off."""
        try:
            yield
        except StoppedTogether:
            pass  # they have heard
        except but:
            raise
        except BaseException as error:
            self.failure = self.failure or RankFailure.of(error)


def status(failure: RankFailure | None) -> int:
    """What a row says of a failure: 0 means that nothing failed."""
    return _KINDS.index(failure.kind) + 1 if failure else 0


def stop_if_failed(
    statuses: Sequence[int],
    steps: Sequence[int],
    own: RankFailure | None,
    texts: Callable[[str], Sequence[str]],
    do: str = "All ranks stopped before any weight moved; that rank's log has more",
) -> None:
    """Raise the first failed rank's error, the same on all ranks. Collective if there is one.

    Args:
        statuses: By rank, as all ranks see them.
        steps: By rank.
        own: What went wrong here, if anything.
        texts: Sends this rank's text, and returns those of all, by rank. Collective.

    Raises:
        GovrayError: A rank failed. What ends a process, such as `SystemExit`, is raised as it is.
    """
    failed = [rank for rank, said in enumerate(statuses) if said]
    if not failed:
        return
    # All ranks are here, because all saw the same statuses: now the text can travel.
    first = failed[0]
    sent = texts(own.text if own else "")[first]
    cause = own.cause if own else None
    if cause is not None and not isinstance(cause, Exception):
        raise cause  # what ends a process, such as SystemExit, ends it: the others know now
    others = f" (so did rank {', '.join(map(str, failed[1:]))})" if failed[1:] else ""
    raise _KINDS[statuses[first] - 1](
        sent + others, where=f"rank {first}, step {steps[first]}", do=do
    ) from cause
