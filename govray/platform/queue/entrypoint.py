"""Kind of submission → the command that its job runs, in its working directory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from govray.errors import UsageError, suggestion
from govray.platform.tasks.task_file import KINDS

_TASK = "python jobs/task.py --id {id} --storage {storage} --config {config} --user {user}"

ENTRYPOINTS: Mapping[str, str] = {
    "train": "python jobs/train.py --config {config} --submission {submission}",
    "tune": "python jobs/tune.py --config {config} --submission {submission}",
    **dict.fromkeys(KINDS, _TASK),
}
"""What a kind runs. ``{config}`` and ``{submission}`` are files of the working directory."""

UNSIGNED = " --unsigned"
"""Behind the command of a run that the attestor signs: its job reads no key."""


def entrypoint(kind: str, **words: str) -> str:
    """The command of a kind.

    Args:
        words: ``config``, the submission's file, and ``submission``, the file that says who
            submitted it, as paths in the working directory; ``id``, ``user`` and ``storage``.
    """
    form = ENTRYPOINTS.get(kind)
    if form is None:
        raise UsageError(
            f"nothing runs a submission of kind {kind!r}{suggestion(kind, ENTRYPOINTS)}",
            where="kind",
            do=f"Known are: {', '.join(sorted(ENTRYPOINTS))}",
        )
    return form.format_map({name: shlex.quote(word) for name, word in words.items()})
