"""Texts for many prompts, by one verified model: what a worker of `jobs/infer.py` runs.

Each worker verifies the folder itself and loads what it verified. It refuses one that is not the
one the driver verified, so all rows of an output rest on one attestation. Each row says which.

No adapter's rights are asked. A job that answers from a folder can read all of it, whatever a file
said. Adapters with rights lie where no job reads, behind `govray.platform.inference.app`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.errors import Refused, UsageError
from govray.platform.inference.generation import generate
from govray.platform.inference.served_model import ServedModel, load
from govray.platform.tasks.task_file import InferenceTask

MAX_PROMPT = 1 << 16
"""Characters."""

SECONDS = 300.0
"""That one text takes at most."""


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


def check_prompt(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError("a row's prompt is no text", where="input")
    if len(value) > MAX_PROMPT:
        raise UsageError(f"a prompt has more than {MAX_PROMPT} characters", where="input")
    return value
