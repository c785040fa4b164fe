"""Starts a real local cluster with the key in two variables; says where its processes see it.

``python -m tests.support.key_seen`` prints what a task saw, and what it saw where nothing had taken
the key away.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import ray

from govray.governance.formats.keys import LocalSigner
from govray.train.driver.ray_cluster import start_ray
from govray.train.inputs import operator_key

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


def seen() -> dict[str, bool]:
    """By a task of a cluster that starts with the variables set here."""
    os.environ.update(dict.fromkeys(VARIABLES, LocalSigner.generate().to_pem().decode()))
    operator_key.take("env:OTHER_KEY")
    start_ray(num_cpus=2)
    found: dict[str, bool] = ray.get(ray.remote(num_cpus=0.1)(holders).remote())
    ray.shutdown()
    return found


if __name__ == "__main__":
    taken = seen()
    operator_key.take = lambda *_: None  # type: ignore[assignment]
    print(json.dumps([taken, seen()]))
