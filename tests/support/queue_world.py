"""A deployment whose experiments run on a head of Ray, with a store and the attestor's register."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import Engine

from govray.governance.submission.code_archive import archive_folder
from govray.governance.submission.register_client import RegisterDoor
from govray.platform.attestor.register import Register
from govray.platform.queue.attestor_register import AttestorRegister
from govray.platform.queue.job import Cluster
from govray.platform.queue.queue_order import SlotLimits
from govray.platform.queue.ray_jobs import RayJobs
from govray.platform.queue.reconcile import Reconciler, Retries
from govray.platform.store.database import open_store
from govray.train.driver.preparation import prepare_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder.clock import instant
from tests.support import slow_while
from tests.support.attesting import root_digest
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.ray_nodes import RayNodes, ray_nodes
from tests.support.registered import TOKEN, door
from tests.support.solo import run_here
from tests.support.tree import ROOT


@dataclass(frozen=True)
class QueueWorld:
    """What is there before a service and a reconciler are.

    ``asked`` submits the experiment: its file, and the archive with the jobs. Its steps take a
    while as long as the file ``slow`` is there.
    """

    here: Deployment
    storage: Path
    asked: Mapping[str, Any]
    slow: Path
    url: str
    register: Register
    door: RegisterDoor
    nodes: RayNodes
    told: AttestorRegister
    cluster: Cluster

    def reconciler(self, engine: Engine, cluster: Cluster | None = None) -> Reconciler:
        return Reconciler(
            engine,
            cluster or self.cluster,
            SlotLimits(pools={"default": 2}),
            holder="the test",
            clock=instant,
            retries=Retries(first_s=0.1),
            decided=self.told.decided,
        )


@contextmanager
def queue_world(folder: Path, forked: Forked, *, steps: int) -> Iterator[QueueWorld]:
    """All of it below ``folder``; the experiment is prepared, so that no job needs the key."""
    here = Deployment(folder / "deployment")
    storage, code = here.folder / "runs", folder / "code"
    for each in (storage, code / "jobs"):
        each.mkdir(parents=True)
    (code / "jobs" / "train.py").write_bytes((ROOT / "jobs" / "train.py").read_bytes())
    experiment = here.experiment(
        entrypoint=f"{slow_while.__name__}:GPT",
        max_steps=steps,
        checkpoint={"every_steps": 1},
    )
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        prepare_experiment(parse_experiment(experiment, where="test"), here.signers["operator"])
    here.key.unlink()
    url = f"sqlite:///{folder / 'queue.db'}"
    open_store(url, create=True).dispose()
    register = Register(f"sqlite:///{folder / 'register.db'}")
    (token := folder / "token").write_text(TOKEN)
    token.chmod(0o600)
    with (
        pytest.MonkeyPatch.context() as patch,
        door(register, root_digest(here)) as address,
    ):
        patch.setenv(slow_while.FOLDER, str(folder))
        patch.delenv("RAY_ADDRESS", raising=False)
        at = RegisterDoor(url=address, token_file=str(token))
        told = AttestorRegister(at.client())
        with ray_nodes(forked, workers=0, cpus=2) as nodes:
            yield QueueWorld(
                here=here,
                storage=storage,
                asked={
                    "file": yaml.safe_dump(experiment),
                    "archive": archive_folder(code, storage),
                },
                slow=folder / "slow",
                url=url,
                register=register,
                door=at,
                nodes=nodes,
                told=told,
                cluster=RayJobs(nodes.dashboard, storage, register=told),
            )
    register.close()
