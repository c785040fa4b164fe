"""Runs that lie in an object store are attested as those of a disk, and within the same bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import govray
from govray.errors import CouldNotCheck, Refused
from govray.governance.attestation import model_folder
from govray.platform.attestor.staging import Bounds, copy_once
from govray.storage.place import place
from govray.train.checkpoint.storage import latest
from tests.support.attesting import Room
from tests.support.object_server import Bucket, Server


@pytest.fixture
def bucket(store_server: Server, request: pytest.FixtureRequest) -> Bucket:
    name = request.node.name.replace("_", "-")[:60]
    store_server.bucket(name)
    return Bucket(store_server, name)


@pytest.fixture
def stored(room: Room, bucket: Bucket) -> Room:
    """The run is in the bucket alone. Prepared data are on the attestor's disk."""
    bucket.take(room.run, f"runs/{room.run.name}")
    settings = room.attestor.settings.model_copy(update={"storage": bucket.url("runs")})
    room.run.rename(room.run.with_name("gone"))
    return replace(room, attestor=replace(room.attestor, settings=settings))


def test_a_run_in_a_bucket_is_attested(stored: Room) -> None:
    [done] = stored.attestor.once()

    assert done.state == "ATTESTED", done.why
    assert govray.verify(stored.model, trust_root=stored.deployment.root).digest == done.digest


def test_an_object_that_was_changed_is_found(stored: Room, bucket: Bucket) -> None:
    found = latest(stored.run.with_name("gone"))
    assert found is not None
    weights = Path(str(found[0])) / model_folder.WEIGHTS
    changed = bytearray(weights.read_bytes())
    changed[-3] ^= 4
    key = f"runs/{stored.run.name}/{weights.parent.name}/{weights.name}"
    bucket.put(key, bytes(changed))

    assert stored.attest().state == "NOT_ATTESTED"


def test_a_bucket_that_cannot_be_listed_decides_nothing(stored: Room, bucket: Bucket) -> None:
    gone = Bucket(bucket.server, "no-such-bucket").url("runs")
    settings = stored.attestor.settings.model_copy(update={"storage": gone})

    with pytest.raises(CouldNotCheck):
        replace(stored, attestor=replace(stored.attestor, settings=settings)).attest()


def test_of_very_many_objects_no_more_are_listed_than_the_bounds(
    bucket: Bucket, tmp_path: Path
) -> None:
    for each in range(4):
        bucket.put(f"runs/one/record/{each}", b"x")
    runs = place(bucket.url("runs"))

    def copied(files: int) -> int:
        return copy_once(
            runs, ["one"], tmp_path / f"{files}", lambda name: True, Bounds(files=files)
        )

    assert copied(4) == 4  # the control
    with pytest.raises(Refused, match="4 objects or more"):
        copied(2)
