"""The base weights of a run's newest commit."""

from __future__ import annotations

from govray.checkpoint import commit_folder
from govray.files.place import Place
from govray.governance.attestation import model_folder
from govray.train.state.snapshot import latest


def newest_weights(run: Place) -> bytes:
    """Their file, byte for byte."""
    found = latest(run)
    assert found is not None
    return bytes(commit_folder.load(found[0]).files[model_folder.WEIGHTS])
