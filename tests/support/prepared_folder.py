"""Prepared folders, as far as their records go."""

from __future__ import annotations

from pathlib import Path

from govray.data import records_file
from govray.governance.attestation import model_folder
from govray.governance.formats.dsse import Envelope
from govray.governance.record.prepare_manifest import MANIFEST_FILE, read_manifest
from tests.support.world import World, write


def write_prepared(world: World, model: Path, folder: Path) -> Path:
    """Write the manifest that a model's run read, and the records that it binds; no shards."""
    data = (model / model_folder.MANIFEST).read_bytes()
    write(folder / MANIFEST_FILE, data)
    manifest = read_manifest(Envelope.parse(data), where=str(model)).document
    for corpus in manifest.corpora:
        for number, part in enumerate(corpus.parts):
            (folder / part.records_file).parent.mkdir(exist_ok=True)
            records_file.write(folder / part.records_file, world.files.read(corpus, number))
    return folder
