"""The base weights of a run's newest commit."""

from __future__ import annotations

from govray.governance.attestation import model_folder
from govray.storage.place import Place
from govray.train.checkpoint import commit_folder
from govray.train.state.snapshot import latest


def newest_weights(run: Place) -> bytes:
    found = latest(run)
    assert found is not None
    return bytes(commit_folder.load(found[0]).files[model_folder.WEIGHTS])
