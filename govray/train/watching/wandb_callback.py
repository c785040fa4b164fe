"""A run in Weights & Biases: its settings, the metrics of its steps, and its attestation."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from govray.errors import UsageError
from govray.train.watching.run_callback import RunCallback, RunStarted


class WandbCallback(RunCallback):
    """Logs to Weights & Biases; ``pip install 'govray[wandb]'``.

    The key comes from ``WANDB_API_KEY`` or W&B's own login. Its files lie in ``<run>/wandb``, or in
    the working directory if the run is on an object store.

    Args:
        project: Where the run is shown.
        entity: A user or team; the key's own by default.
        mode: ``offline`` only writes files, which ``wandb sync`` sends.
    """

    def __init__(
        self,
        project: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        if find_spec("wandb") is None:
            raise UsageError(
                "Weights & Biases is not installed",
                do="pip install 'govray[wandb]', or leave it out",
            )
        self._project = project
        self._entity = entity
        self._mode = mode

    def start(self, run: RunStarted) -> int | None:
        """Make the run, or go on with it."""
        import wandb

        self._name = run.run_id
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            id=run.run_id,
            name=run.run_id,
            group=run.experiment,
            resume="allow",
            dir=str(run.folder) if isinstance(run.folder, Path) else None,
            config={**run.settings, "policyDigest": run.policy},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        return int(self._run.step) - 1 if self._run.resumed else None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def attested(self, files: Mapping[str, bytes]) -> None:
        """Keep what was signed as an artifact."""
        import wandb

        artifact = wandb.Artifact(f"{self._name}-governance", type="attestation")
        with TemporaryDirectory() as scratch:
            for name, data in files.items():
                file = Path(scratch) / name
                file.write_bytes(data)
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)

    def end(self, outcome: str) -> None:
        """End the run; it counts as failed unless it finished or was stopped."""
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
