"""The ``log_policies`` section of the experiment file: what follows from a line of a worker's log.

A pattern is plain text, in which ``*`` stands for any text. That is less than a regular expression
on purpose. Each part is looked for once, from where the part before ended. So a line takes time in
proportion to its length, whatever line and pattern are; `re` may take for ever on a few.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from govray.train.experiment.sections import Section

LONGEST_PATTERN = 200
MOST_POLICIES = 20


def _check_pattern(value: str) -> str:
    if not value.replace("*", "").strip():
        raise ValueError("it fits every line; write some of the text that is meant")
    if not value.isprintable():
        raise ValueError("a pattern is one line of text")
    return value


class LogPolicy(Section):
    """What a worker's line means for the run."""

    pattern: Annotated[str, Field(max_length=LONGEST_PATTERN), AfterValidator(_check_pattern)] = (
        Field(description="text that a line has; * stands for any text")
    )
    action: Literal["stop", "flag"] = Field(
        description="flag: an event; stop: an event, and the run stops after a commit"
    )

    def fits(self, line: str) -> bool:
        """Whether the line has the parts of the pattern, one behind the other."""
        at = 0
        for part in self.pattern.split("*"):
            found = line.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return True


LogPolicies = Annotated[tuple[LogPolicy, ...], Field(max_length=MOST_POLICIES)]
