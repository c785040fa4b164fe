"""Trains on a real local cluster with the key in a variable; says where Ray's processes see it.

``python -m tests.support.key_seen DEPLOYMENT [control]``: with ``control``, nothing takes the key
away, and nothing is trained.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray

from govray.governance.verify.verifier import verify
from govray.train.driver.ray_cluster import start_ray
from govray.train.driver.trainer import from_experiment
from govray.train.inputs import operator_key
from govray.train.inputs.experiment_config import parse_experiment
from tests.support import loops
from tests.support.deployment import Deployment

VARIABLES = ("GOVRAY_KEY", "OTHER_KEY")


def holders() -> dict[str, bool]:
    """Whether this process, or one that it descends from up to the raylet, has a key's variable."""
    found = {"own": any(name in os.environ for name in VARIABLES)}
    process = os.getppid()
    while process > 1 and not found.get("raylet"):
        name = Path(f"/proc/{process}/comm").read_text().strip()
        held = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        found[name] = any(each.startswith((b"GOVRAY_KEY=", b"OTHER_KEY=")) for each in held)
        if name == "raylet":
            break
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def looking(config: dict[str, Any]) -> None:
    """The loop of the README, after a look around."""
    if os.getpid() != config["driver"]:  # which calls it too, to see the model
        Path(config["seen"], "worker.json").write_text(json.dumps(holders()))
    loops.script(config)


def main(folder: Path, control: bool) -> None:
    deployment = Deployment(folder)
    pem = deployment.key.read_text()
    deployment.key.unlink()
    os.environ.update(dict.fromkeys(VARIABLES, pem))
    if control:
        operator_key.take = lambda *_: None  # type: ignore[assignment]
    else:
        operator_key.take("env:OTHER_KEY")
    start_ray(num_cpus=2)
    told = {"task": ray.get(ray.remote(num_cpus=0.1)(holders).remote())}
    if control:
        print(json.dumps(told))
        return
    experiment = deployment.experiment(
        attestation_key="env:OTHER_KEY",
        max_steps=2,
        resources={"num_workers": 1, "cpus_per_worker": 0.5},
    )
    trainer = replace(
        from_experiment(parse_experiment(experiment, where="test")),
        experiment=None,
        train_loop_per_worker=looking,
        train_loop_config={
            "seen": str(folder),
            "driver": os.getpid(),
            "model": {"blocks": 2, "width": 32},
            "lr": 1e-2,
        },
    )
    run = Path(trainer.fit().path)
    seen = {"worker": json.loads((folder / "worker.json").read_text())}
    model = verify(run / "model", trust_root=deployment.root, at=datetime.now(UTC))
    files = [path for path in run.rglob("*") if path.is_file()]
    body = pem.splitlines()[1].encode()
    print(
        json.dumps(
            told
            | seen
            | {
                "signer": model.signer,
                "own": any(name in os.environ for name in VARIABLES),
                "recorded": [str(path) for path in files if body in path.read_bytes()],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), "control" in sys.argv)
