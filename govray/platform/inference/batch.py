"""Texts for many prompts, by one verified model: what a worker of `jobs/infer.py` runs.

Each worker verifies the folder itself and loads what it verified. It refuses one that is not the
one the driver verified, so all rows of an output rest on one attestation. Each row says which.

`described` says what the answers rest on: which model, prompts and files. It is the job's own word,
as the answers are, and nobody signs it. `check_described` makes it again and compares.

No adapter's rights are asked. A job that answers from a folder can read all of it, whatever a file
said. Adapters with rights lie where no job reads, behind `govray.platform.inference.app`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet

from govray.errors import Refused, UsageError
from govray.governance.formats import canonical_json
from govray.platform.inference.generation import generate
from govray.platform.inference.served_model import ServedModel, load
from govray.platform.tasks.task_file import InferenceTask

MAX_PROMPT = 1 << 16
"""Characters."""

SECONDS = 300.0
"""That one text takes at most."""

RECORD = "_results.json"
"""Readers of Parquet pass over a file whose name begins so."""
_LIMITS = (
    "The job that wrote the answers wrote this, and nobody signed it. It binds the prompts and the "
    "files of answers to one attestation. It does not show that this model gave these answers."
)


def load_for(task: InferenceTask) -> ServedModel:
    """The model of a task, verified, which has the adapter that the task names."""
    served = load(
        Path(task.model),
        trust_root=Path(task.trust_root),
        revocations=[Path(each) for each in task.revocations],
        tokenizer=Path(task.tokenizer) if task.tokenizer else None,
    )
    if task.adapter is not None and task.adapter not in served.names:
        raise UsageError(
            f"the model has no adapter {task.adapter!r}",
            where=task.model,
            do=f"Name one of {', '.join(served.names)}" if served.names else "Name none",
        )
    return served


class BatchAnswers:
    """The callable of ``ray.data``: loaded once a worker, called with batch after batch."""

    def __init__(self, task: InferenceTask, attestation: str) -> None:
        self._task = task
        self._served = load_for(task)
        if self._served.attestation != attestation:
            raise Refused(
                f"the folder has another attestation than when the task began: "
                f"{self._served.attestation}, not {attestation}",
                where=task.model,
            )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Columns ``prompt``, ``text``, ``tokens``, ``finish``, ``adapter``, ``attestation``."""
        prompts = [check_prompt(each) for each in batch["prompt"].tolist()]
        found = [
            generate(
                self._served,
                prompt,
                adapter=self._task.adapter,
                max_tokens=self._task.max_tokens,
                seed=self._task.seed,
                seconds=SECONDS,
            )
            for prompt in prompts
        ]
        count = len(prompts)
        return {
            "prompt": prompts,
            "text": [each.text for each in found],
            "tokens": [each.tokens for each in found],
            "finish": [each.finish for each in found],
            "adapter": [self._task.adapter or ""] * count,
            "attestation": [self._served.attestation] * count,
        }


def described(task: InferenceTask, attestation: str, *, id: str | None, code: str) -> bytes:
    """The record of a task's results, in canonical JSON.

    Args:
        id: The task's in the queue; None by hand.
        code: The version of govray that answered.

    Raises:
        Refused: A file is no Parquet of answers, or a row of it is of another model or adapter.
    """
    files: list[dict[str, Any]] = []
    for path in sorted(Path(task.output).iterdir()):
        if path.name == RECORD:
            continue
        try:
            digest = _digest(path)
            rows = parquet.read_table(path, columns=["attestation", "adapter"]).to_pydict()
        except (ArrowException, OSError):
            raise Refused("it is no Parquet of answers", where=str(path)) from None
        for name, wanted in (("attestation", attestation), ("adapter", task.adapter or "")):
            if other := set(rows.get(name, ["?"])) - {wanted}:
                raise Refused(
                    f"a row has the {name} {next(iter(other))!r}, not {wanted!r}", where=str(path)
                )
        files.append({"name": path.name, "rows": len(rows["adapter"]), **digest})
    settings = {"adapter": task.adapter, "maxTokens": task.max_tokens, "seed": task.seed}
    return canonical_json.encode(
        {
            "schema": "govray.dev/inference-results/v1",
            "attestation": attestation,
            "code": f"govray {code}",
            "files": files,
            "input": _digest(Path(task.input)),
            "limits": _LIMITS,
            "rows": sum(each["rows"] for each in files),
            "settings": settings,
            "task": id,
        }
    )


def check_described(task: InferenceTask, attestation: str) -> None:
    """Return if a results' folder is as its record says, and the record as this task has it.

    Raises:
        Refused: Something differs, or there is no record.
    """
    where = Path(task.output) / RECORD
    try:
        data = where.read_bytes()
    except OSError as error:
        raise Refused(f"it can't be read: {error.strerror}", where=str(where)) from None
    value: Any = canonical_json.parse_canonical(data, where=str(where))
    told = value if isinstance(value, dict) else {}
    code = str(told.get("code")).removeprefix("govray ")
    now: Any = canonical_json.parse_canonical(
        described(task, attestation, id=told.get("task"), code=code)
    )
    differ = sorted(name for name in {*now, *told} if now.get(name) != told.get(name))
    if differ:
        raise Refused(f"{', '.join(differ)} differ from what is there now", where=str(where))


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": f"sha256:{digest}"}


def check_prompt(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError("a row's prompt is no text", where="input")
    if len(value) > MAX_PROMPT:
        raise UsageError(f"a prompt has more than {MAX_PROMPT} characters", where="input")
    return value
