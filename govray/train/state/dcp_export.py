"""A run's commit for programs that know torch and not govray: ``govray checkpoint export --dcp``.

``model`` and ``optim`` are what ``torch.distributed.checkpoint.state_dict`` makes of the base model
and its optimizer. ``ema`` is the average of the weights, where the run kept one. ``adapters`` has
the tensors of each adapter, by its name and then as peft calls them, and ``adapter_configs`` what
peft's ``LoraConfig`` takes. The optimizer's state of adapters is left out.

An adapter that was removed from the run's model folder is not exported, though the commit has it.

See ``train/checkpoint/dcp_folder.py`` for the format, and why nothing comes back from it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.errors import Malformed, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.tensor_header import read_header
from govray.storage.place import Place
from govray.storage.staged_folder import staged_folder
from govray.train.checkpoint import commit_folder, dcp_folder, whole_file
from govray.train.checkpoint.commit_reader import Committed
from govray.train.checkpoint.storage import storage_of
from govray.train.state.trained_model import OPTAX, OPTIMIZER, OPTIMIZER_VALUES


@dataclass(frozen=True)
class DcpExport:
    """What was exported.

    Attributes:
        digest: Of the commit's manifest.
        tensors: Name in the folder's state → how many: ``model``, ``optim``, ``ema``, ``adapters``.
        removed: Adapters of the commit that the run's model folder no longer has.
    """

    folder: Path
    digest: str
    tensors: dict[str, int]
    removed: tuple[str, ...]
    size: int


def find_commit(named: Place) -> Committed:
    """The commit that a user names as ``RUN/checkpoint_000000100``, wherever the run commits."""
    if isinstance(named, Path) and os.path.lexists(named):
        return commit_folder.open_commit(named)
    for _, folder in storage_of(named.parent).commits():
        if folder.name == named.name:
            return commit_folder.open_commit(folder)
    raise UsageError(
        "no such checkpoint",
        where=str(named),
        do="Name one as RUN/checkpoint_000000100; `govray checkpoint ls RUN --json` has the names",
    )


def export_dcp(named: Place, out: Path) -> DcpExport:
    """Write a commit as a DCP folder. It is there whole, or not at all.

    Every byte of the commit is read and compared with the manifest before anything is written, and
    what is written is compared once more.

    Args:
        out: It must not exist.
    """
    if os.path.lexists(out):
        raise UsageError("already exists", where=str(out), do="Name a new folder")
    committed = find_commit(named)
    dcp_folder.require_intact(committed)
    if model_folder.WEIGHTS not in committed.names:
        raise Malformed("holds no model", where=str(committed.folder))
    base = _names(committed, model_folder.WEIGHTS)
    removed = _removed(committed, named.parent / model_folder.MODEL)
    adapters = {
        model_folder.adapter_files(name)[1]: name
        for name in _adapters(committed.names)
        if name not in removed
    }

    def path(file: str, tensor: str) -> tuple[str, ...] | None:
        if file in adapters:
            return ("adapters", adapters[file], tensor)
        if file != OPTIMIZER:
            return ("model" if file == model_folder.WEIGHTS else "ema", tensor)
        key, _, name = tensor.partition("/")
        return ("optim", "state", name, key) if name in base else None

    files = [
        file
        for file in (model_folder.WEIGHTS, model_folder.EMA, OPTIMIZER, *adapters)
        if file in committed.names
    ]
    paths = [path(file, tensor) for file in files for tensor in _names(committed, file)]
    values = _optimizer(committed, base) | _configs(committed, adapters.values())
    try:
        with staged_folder(out) as staged:
            dcp_folder.write(committed, staged, files, path, values)
            size = sum(each.stat().st_size for each in staged.iterdir())
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}",
            where=str(out),
            do="Check the space and the permissions there",
        ) from error
    counts = Counter(each[0] for each in paths if each)
    return DcpExport(out, committed.digest, dict(counts), removed, size)


def _names(committed: Committed, file: str) -> frozenset[str]:
    with whole_file.header(committed, file) as opened:
        return frozenset(each.name for each in read_header(opened, where=file))


def _adapters(names: Collection[str]) -> list[str]:
    """The adapters whose weights are among the files of a folder."""
    found = (name.split("/")[1] for name in sorted(names) if "/" in name)
    return [each for each in dict.fromkeys(found) if model_folder.adapter_files(each)[1] in names]


def _removed(committed: Committed, model: Place) -> tuple[str, ...]:
    """Adapters of a commit that are no longer in the model that was attested from the run."""
    if not (model / model_folder.ATTESTATION).is_file():
        return ()
    return tuple(
        name
        for name in _adapters(committed.names)
        if not (model / model_folder.adapter_files(name)[1]).is_file()
    )


def _configs(committed: Committed, adapters: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: canonical_json.parse_canonical(committed.files[model_folder.adapter_files(name)[0]])
        for name in adapters
    }
    return {"adapter_configs": found} if found else {}


def _optimizer(committed: Committed, base: frozenset[str]) -> dict[str, Any]:
    """What of the optimizer is no tensor, as torch's own state dict has it."""
    if OPTIMIZER_VALUES not in committed.entries:
        return {}
    stored: Any = canonical_json.parse_canonical(committed.files[OPTIMIZER_VALUES])
    if stored["kind"] == OPTAX:
        raise UsageError(
            "JAX trained the run, and torch has no place for an optimizer of Optax",
            where=str(committed.folder),
            do="Read its safetensors; docs/jax.md says how they are named",
        )
    groups = [
        {
            **{key: _as_torch(value) for key, value in group["hyperparameters"].items()},
            "params": [name for name in group["parameters"] if name in base],
        }
        for group in stored["groups"]
    ]
    return {
        "optim": {
            "state": {name: dict(held) for name, held in stored["values"].items() if name in base},
            "param_groups": [group for group in groups if group["params"]],
        }
    }


def _as_torch(value: Any) -> Any:
    """JSON has no tuples, and torch's hyperparameters no lists."""
    return tuple(map(_as_torch, value)) if isinstance(value, list) else value
