"""The file that says what a task is: closed, small, one kind each.

```yaml
kind: tensorboard
idle_minutes: 30
runs: [python-source-gpt-20261121-090500-1]
```

Where files go is not in it: the storage is the cluster's, and whoever starts a task names it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from govray.errors import UsageError
from govray.governance.formats.document import Name
from govray.governance.formats.strict_yaml import read_yaml

LONGEST_IDLE = 24 * 60
"""Minutes."""

_TASK = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

Word = Annotated[str, Field(max_length=4096)]
PathText = Annotated[str, Field(min_length=1, max_length=1024)]


class _Task(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Watched(_Task):
    idle_minutes: Annotated[float, Field(gt=0, le=LONGEST_IDLE, allow_inf_nan=False)] = Field(
        30.0, description="minutes without use after which it ends"
    )


class NotebookTask(_Watched):
    """JupyterLab."""

    kind: Literal["notebook"]


class ShellTask(_Watched):
    """A terminal in the browser."""

    kind: Literal["shell"]


class TensorBoardTask(_Watched):
    """TensorBoard over the runs of the storage."""

    kind: Literal["tensorboard"]
    runs: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        (), description="the runs to show; all of the storage by default"
    )


class CommandTask(_Task):
    """A program that ends by itself."""

    kind: Literal["command"]
    argv: Annotated[tuple[Word, ...], Field(min_length=1, max_length=1024)] = Field(
        description="the program and its arguments; no shell reads them"
    )


class InferenceTask(_Task):
    """Texts for a file of prompts, by a model whose attestation verifies."""

    kind: Literal["inference"]
    model: PathText = Field(description="the model folder, where every node reads it")
    trust_root: PathText = Field(description="the envelope of the trust root")
    revocations: Annotated[tuple[PathText, ...], Field(max_length=64)] = ()
    input: PathText = Field(description="JSON lines, each with a `prompt`")
    output: PathText = Field(description="a folder that does not exist yet")
    adapter: Annotated[str, Field(max_length=128)] | None = None
    tokenizer: PathText | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = 128
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


Watched: TypeAlias = NotebookTask | ShellTask | TensorBoardTask
"""Tasks that answer over HTTP, and end when nobody uses them."""

TaskFile: TypeAlias = Annotated[
    NotebookTask | ShellTask | TensorBoardTask | CommandTask | InferenceTask,
    Field(discriminator="kind"),
]

SHOWN = ("notebook", "shell", "tensorboard")
"""Kinds that answer over HTTP: the code that they end with is `jobs/task.py`'s own."""

FINITE = ("command", "inference")
"""Kinds that end by themselves, with a code of the program's."""

KINDS = (*SHOWN, *FINITE)

_READ: TypeAdapter[Any] = TypeAdapter(TaskFile)


def read_task(text: str | bytes, *, where: str) -> Any:
    """The task that a file describes: one of the classes above."""
    source = read_yaml(text, name=where)
    try:
        return _READ.validate_python(source.value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [each for each in first["loc"] if each not in KINDS]
        field = ".".join(map(str, path)) or "the task"
        raise UsageError(
            f"{field}: {first['msg']}",
            where=source.where(*path),
            do=f"A task is of the kind {', '.join(KINDS)}; see docs/queue.md",
        ) from None


def check_id(task: str) -> str:
    """``task`` if it is a task's id. It names a folder and a host of the proxy (RFC 1123)."""
    if not _TASK.fullmatch(task):
        raise UsageError(
            f"{task[:80]!r} is no id of a task: at most 63 of a-z, 0-9 and - between them"
        )
    return task
