"""Kind of submission → the command that its job runs, in its working directory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from govray.errors import UsageError, suggestion

ENTRYPOINTS: Mapping[str, str] = {
    "train": "python jobs/train.py --config {config} --submission {submission}",
    "tune": "python jobs/tune.py --config {config} --submission {submission}",
}
"""What a kind runs. ``{config}`` and ``{submission}`` are files of the working directory."""


def entrypoint(kind: str, *, config: str, submission: str) -> str:
    """The command of a kind.

    Args:
        config: The submission's file, as a path in the working directory.
        submission: The file that says who submitted it.

    Raises:
        UsageError: There is no such kind.
    """
    form = ENTRYPOINTS.get(kind)
    if form is None:
        raise UsageError(
            f"nothing runs a submission of kind {kind!r}{suggestion(kind, ENTRYPOINTS)}",
            where="kind",
            do=f"Known are: {', '.join(sorted(ENTRYPOINTS))}",
        )
    return form.format(config=shlex.quote(config), submission=shlex.quote(submission))
