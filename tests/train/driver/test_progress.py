"""The watch over a run: a slow cluster or a failing callback ends neither it nor the run."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import ray

from govray.train.driver import progress


class Actor:
    """Stands for the handle of `progress.Latest`."""

    def __init__(self) -> None:
        self.get = self

    def remote(self) -> None:
        """The answer is scripted by the test."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `ray.get` gives or raises, one after the other; the last one again and again."""
    answers: list[Any] = []

    def get(ref: object, timeout: float) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(progress, "POLL_S", 0.001)
    monkeypatch.setattr(progress.Latest, "remote", Actor)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    return answers


def watched(script: list[Any], on_step: progress.StepCallback) -> None:
    with progress.ProgressWatch(on_step) as watch:
        while len(script) > 1 and watch._thread.is_alive():
            watch._thread.join(0.001)


def test_a_callback_that_raises_loses_that_step_alone(
    script: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    script += [(3, {"loss": 1.0}), (4, {"loss": 0.5})]
    called = []

    def fails(step: int, metrics: Any) -> None:
        called.append(step)
        if step == 3:
            raise ValueError("a user's bug")

    with caplog.at_level(logging.ERROR):
        watched(script, fails)
    assert called == [3, 4]
    assert "a callback failed at step 3" in caplog.text
    assert "a user's bug" in caplog.text
