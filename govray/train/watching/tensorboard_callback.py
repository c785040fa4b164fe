"""TensorBoard's files of a run, by tensorboardX as Ray Tune writes a search's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorboardX import SummaryWriter

from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place
from govray.train.watching.run_callback import RunCallback, RunStarted

FOLDER = "tensorboard"
FLUSH_S = 10


class TensorBoardCallback(RunCallback):
    """Writes a run's metrics as scalars to ``<run>/tensorboard``.

    A run on an object store has its files there when its driver ends. Where a run resumes, the
    steps that run again replace those written before.
    """

    def start(self, run: RunStarted) -> int | None:
        """Begin a file."""
        self._folder: Place = run.folder / FOLDER
        self._scratch = None if isinstance(self._folder, Path) else TemporaryDirectory()
        self._writer = SummaryWriter(
            logdir=self._scratch.name if self._scratch else str(self._folder),
            purge_step=run.step or None,
            flush_secs=FLUSH_S,
            # tensorboardX names a file by its second: a resume within it would overwrite the first.
            filename_suffix=f".{time.time_ns()}",
        )
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def end(self, outcome: str) -> None:
        """Close the file, and upload it if the run is on an object store."""
        self._writer.close()
        if self._scratch:
            make_folder(self._folder)
            for file in Path(self._scratch.name).iterdir():
                write_whole(self._folder / file.name, file.read_bytes())
            self._scratch.cleanup()
