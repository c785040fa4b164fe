"""A run in MLflow: its settings, the metrics of its steps, and its attestation."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from govray.errors import UsageError
from govray.extras import install
from govray.train.watching.run_callback import RunCallback, RunStarted

TAG = "govray.run"
"""Tag of an MLflow run: the name of ours. A run that resumes is found by it."""
EVERY_S = 5.0
MOST = 900
"""Metrics of one request; MLflow takes 1,000."""
HELD = 100_000
"""Metrics that wait while the server does not answer; older ones are lost."""
PARAMS = 100
"""Settings of one request; MLflow takes no more."""
PARAM_CHARS = 500
"""Of a setting; stores of old take no more."""

_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
_logger = logging.getLogger(__name__)


class MLflowCallback(RunCallback):
    """Logs to an MLflow server or store; the extra ``mlflow``.

    Passwords and tokens come from MLflow's own variables (``MLFLOW_TRACKING_TOKEN``).

    Args:
        tracking_uri: The server, or ``sqlite:///FILE``; ``MLFLOW_TRACKING_URI`` by default.
        experiment: Its name in MLflow; that of the experiment file by default.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        if find_spec("mlflow") is None:
            raise UsageError(
                "MLflow is not installed", do=f"Run {install('mlflow')}, or leave it out"
            )
        self._uri = tracking_uri
        self._experiment = experiment
        self._waiting: list[Any] = []
        self._refused: set[str] = set()
        self._sent = 0.0

    def start(self, run: RunStarted) -> int | None:
        """Find the run, or make it with its settings."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        name = self._experiment or run.experiment
        found = self._client.get_experiment_by_name(name)
        at = found.experiment_id if found else self._client.create_experiment(name)
        filter_ = f"tags.`{TAG}` = '{run.run_id}'"
        if runs := self._client.search_runs([at], filter_string=filter_, max_results=1):
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            history = self._client.get_metric_history(self._run, "loss")
            return max((int(each.step) for each in history), default=None)
        tags = {TAG: run.run_id, "govray.policy": run.policy}
        made = self._client.create_run(at, run_name=run.run_id, tags=tags)
        self._run = made.info.run_id
        self._log_settings(run.settings)
        return None

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:PARAM_CHARS]) for name, value in settings.items()]
        for first in range(0, len(params), PARAMS):
            self._log("params", params[first : first + PARAMS])

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step, together with others every few seconds."""
        from mlflow.entities import Metric

        at = int(time.time() * 1000)
        self._waiting += [
            Metric(name, value, at, step)
            for name, value in metrics.items()
            if name not in self._refused
        ]
        del self._waiting[:-HELD]
        if time.monotonic() - self._sent >= EVERY_S:
            self._send()

    def _send(self) -> None:
        # A server that does not answer is asked again as late as one that does.
        self._sent = time.monotonic()
        while self._waiting:
            self._log("metrics", self._waiting[:MOST])
            del self._waiting[:MOST]

    def _log(self, kind: Literal["params", "metrics"], batch: Sequence[Any]) -> None:
        """Send all of it but names that MLflow refuses, which are said once."""
        try:
            given: Any = {kind: batch}
            self._client.log_batch(self._run, **given)
        except Exception as error:
            if getattr(error, "error_code", None) not in _REFUSALS:
                raise
            by_name: dict[str, list[Any]] = {}
            for each in batch:
                by_name.setdefault(each.key, []).append(each)
            if len(by_name) == 1:
                [name] = by_name
                if name not in self._refused:
                    self._refused.add(name)
                    _logger.warning(
                        "MLflow refuses %s of the %s, which it gets no more", name, kind
                    )
                return
            for named in by_name.values():
                self._log(kind, named)

    def attested(self, files: Mapping[str, bytes]) -> None:
        """Keep what was signed as artifacts."""
        with TemporaryDirectory() as scratch:
            for name, data in files.items():
                file = Path(scratch) / name
                file.write_bytes(data)
                self._client.log_artifact(self._run, str(file), "governance")

    def end(self, outcome: str) -> None:
        """Send what waits, and say how the run ended."""
        self._send()
        status = {"finished": "FINISHED", "stopped": "KILLED"}.get(outcome, "FAILED")
        self._client.set_terminated(self._run, status)
