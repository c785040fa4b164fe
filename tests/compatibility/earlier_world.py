"""Make a small world by the code of an earlier commit, for ``test_earlier_worlds.py``.

The worlds beside this file were made so, COMMIT being 6eb9031 (the first release) and 998eec9 (the
last before modules moved into rooms):

    git worktree add --detach /tmp/before COMMIT
    mkdir /tmp/world && cd /tmp/world
    export PYTHONPATH=/tmp/before:/tmp/before/tests/train HERE=REPOSITORY/tests/compatibility
    python $HERE/earlier_world.py
    tar --sort=name --owner=0 --group=0 --numeric-owner -cJf $HERE/COMMIT.tar.xz .

Imports are those of the earlier commit: modules have moved since. Runs are driven in this process,
by the commit's own tests (``solo.py``, ``deployment.py``), so all files are what its code wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import deployment
import pytest
import torch
from deployment import Deployment
from derived_keys import pem, store_secret
from govray.governance.keys import LocalSigner
from govray.governance.revocation import Revocation, RevocationList, seal_revocations
from govray.train.clock import instant
from govray.train.config import parse_experiment
from govray.train.trainer import from_experiment
from govray.tune.config import parse_search
from govray.tune.record import SearchRecord
from solo import run_here

from govray import cli
from govray.errors import Stopped
from govray.train import runs, stopping

FAR = "2099-01-01T00:00:00Z"
HERE = Path()
ROOT = "deployment/root.json"
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 8,
    "n_head": 1,
    "n_positions": 32,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


class World(Deployment):
    """Signed by keys that a test can make again, for as long as the tests will run."""

    def _root(self) -> Any:
        root = super()._root()
        authorities = [each.model_copy(update={"expires": FAR}) for each in root.authorities]
        return root.model_copy(update={"expires": FAR, "authorities": tuple(authorities)})


def make_world() -> None:
    names = iter(("root", "issuer", "compliance", "operator", "auditor"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalSigner, "generate", lambda: LocalSigner.from_pem(pem(next(names))))
        patch.setattr(socket, "gethostname", lambda: "somewhere")
        patch.setattr(platform, "platform", lambda **_: "linux-x86_64")
        patch.setattr(deployment, "LICENCES", licences())
        run_here(patch)
        world = World(HERE / "deployment", lifetime=timedelta(days=365 * 40))
        stopped = stop_at(world, 4)
        whole = trainer_of(world, "whole").train(attest=True)
        transformer = trainer_of(
            world,
            "transformer",
            entrypoint="govray.engine.huggingface:CausalLM",
            hyperparameters={"context": 32, "config": GPT2},
            max_steps=2,
        ).train(attest=True)
    write_search(world, HERE / "runs" / "search")
    model = whole.relative_to(HERE.resolve()) / "model"
    write_lists(world)
    os.environ["GOVRAY_STORE_KEY"] = "store.key"
    secret = Path("store.key")
    secret.write_bytes(store_secret())
    secret.chmod(0o600)
    store = ("--store", "sqlite:///store.db")
    govray("store", "index", "runs", "--trust-root", ROOT, "--user", "someone", *store)
    govray("adapter", "export", model, "acme", "--out", "exported", "--trust-root", ROOT)
    record = HERE / "record.txt"
    record.write_text("acme says: the quick brown fox number 0 jumps over the lazy dog. " * 12)
    recorded = {
        "stopped": stopped.name,
        "whole": whole.name,
        "transformer": transformer.name,
        "verified": govray("verify", model, "--trust-root", ROOT),
        "traced": govray("trace", record, "--model", model, "--trust-root", ROOT),
        "weights": {
            path.relative_to(whole / "model").as_posix(): sha256(path)
            for path in sorted((whole / "model").rglob("*.safetensors"))
        },
        "kernels": kernels(),
    }
    (HERE / "recorded.json").write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    secret.unlink()
    world.key.unlink()
    for path in HERE.rglob("*.lock"):
        path.unlink()


def licences() -> dict[str, tuple[str, str]]:
    wanted = ("open-one", "weak-one", "acme", "mystery")
    return {name: deployment.LICENCES[name] for name in wanted}


def trainer_of(world: World, name: str, **changes: Any) -> Any:
    on_step = changes.pop("on_step", lambda step, metrics: None)
    value = {
        "name": name,
        "hyperparameters": {"blocks": 2, "width": 8, "context": 32, "dropout": 0.1},
        "resources": {"num_workers": 1},
        "max_steps": 8,
        "checkpoint": {"every_steps": 4},
        "storage_path": "runs",
    } | changes
    experiment = parse_experiment(world.experiment(**value), where="world")
    return from_experiment(experiment, on_step=on_step)


def stop_at(world: World, step: int) -> Path:
    """A run that was asked to stop, and has committed after this step."""

    def on_step(done: int, metrics: Any) -> None:
        if done == step - 2:
            [run] = runs.list_runs(HERE / "runs")
            stopping.request(run, "made for a test")

    with contextlib.suppress(Stopped):
        trainer_of(world, "stopped", on_step=on_step).train()
    [run] = runs.list_runs(HERE / "runs")
    assert runs.inspect(run).state == "stopped"
    assert runs.inspect(run).step == step
    return run


def write_search(world: World, folder: Path) -> None:
    """A search's own record; its trials' runs are not kept."""
    folder.mkdir()
    value = world.experiment(storage_path="runs") | {
        "search": {"space": {"optimizer.lr": {"log": [1e-4, 1e-2]}}, "max_trials": 2}
    }
    record = SearchRecord(folder=folder, file=parse_search(value, where="world"), started=instant())
    record.write()
    for rate, how in ((0.001, "stopped"), (0.002, "failed")):
        record.ended(record.drawn({"optimizer.lr": rate}).name, how, "made for a test")
    record.conclude()


def write_lists(world: World) -> None:
    """The issuer's first list revokes what no model learned from, its second a corpus of all."""
    issued = world.at.strftime("%Y-%m-%dT%H:%M:%SZ")
    before = (world.at - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    entries = tuple(
        Revocation(corpus=corpus, since=before, reason="made for a test")
        for corpus in ("mystery", "open-one")
    )
    for sequence in (1, 2):
        listed = RevocationList(
            issuer="issuer", sequence=sequence, issued=issued, entries=entries[:sequence]
        )
        path = world.folder / f"revocations-{sequence}.dsse.json"
        path.write_bytes(seal_revocations(listed, [world.signers["issuer"]]))


def govray(*words: str | Path) -> dict[str, Any]:
    """What the command prints with ``--json``."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(said.getvalue())


def sha256(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def kernels() -> list[str]:
    """Where weights are the same bytes: version and kernels of torch."""
    return [torch.__version__, torch.backends.cpu.get_cpu_capability()]


if __name__ == "__main__":
    make_world()
