"""Starting from existing weights: which files, what taint they bring, how a model loads them.

The driver reads a start once, before any worker exists. It digests the files and compares their
tensors with the model's. It derives T0, the taint that the start brings to each layer group. Rank 0
then loads the same bytes before it sends its weights to the other ranks.

Invariants:

* Safetensors only: no pickle is opened, and nothing is looked for on a network.
* Either every tensor of the model is filled, and then holds what the files have, or the run is
  refused (`govray.engine.model.stored_weights`).
* T0 is ``unknown`` for every layer group, with one exception. For a govray model folder that
  verifies under the run's own trust root, T0 is the taint attested there, tensor by tensor. A
  folder that does not verify is allowed: its weights are somebody else's, and ``unknown``.
* What is loaded has the digests that the driver recorded, or the run is refused.

An entrypoint that loads weights itself names them by a static method
``starts_from(hyperparameters) -> files`` (`loop.entrypoint.declared_start`). They are digested and
their taint is recorded all the same. How the model uses them is not checked.

Weights that a training loop loads without declaring them are not found.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.engine.model.stored_weights import (
    Stored,
    fill,
    first_names,
    require_held,
    require_names,
)
from govray.errors import CouldNotCheck, Malformed, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.tensor_header import Described
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.train.checkpoint.sharded_file import cut
from govray.train.checkpoint.stored_tensors import read_rows
from govray.train.checkpoint.tensor_shards import fail_together
from govray.train.inputs.pretrained_start import Start
from govray.train.state.optimizer_start import find_optimizer, open_start

UNKNOWN = "unknown"
"""What unattested weights bring."""

_SHARDS = "model-*-of-*.safetensors"


def find_weights(path: Path) -> list[Path]:
    """The weight files at a path. ``path``: a ``.safetensors`` file; or a folder with
    ``model.safetensors``, or else with the shards ``model-*-of-*.safetensors``."""
    if os.path.isfile(path):  # unlike Path's, False of any name that the system refuses
        found = [path] if path.suffix == ".safetensors" else []
    elif os.path.isdir(path):
        whole = path / model_folder.WEIGHTS
        found = [whole] if whole.is_file() else sorted(path.glob(_SHARDS))
    else:
        raise UsageError("no such file or folder", where=f"pretrained {path}")
    if not found:
        raise UsageError(
            "no safetensors to start from",
            where=f"pretrained {path}",
            do=f"Give a .safetensors file, or a folder with {model_folder.WEIGHTS} or {_SHARDS}; "
            "pickled weights are not opened: convert them first",
        )
    return found


def read_start(
    paths: Sequence[Path],
    groups: Mapping[str, Sequence[str]],
    *,
    trust_root: TrustAnchor | bytes,
    at: datetime,
    loaded_by_model: bool = False,
    optimizer: Path | None = None,
) -> Start:
    """Digest the files of a start, and derive what they bring.

    Args:
        paths: One file, or several of one folder.
        groups: Layer group → FQNs of the model that starts.
        trust_root: The run's root or anchor, to verify a govray model folder.
        optimizer: The run or commit whose optimizer's state the run begins with (`find_optimizer`).
    """
    if len({path.parent for path in paths}) > 1:
        raise UsageError(
            "the weights lie in several folders",
            where=f"pretrained {', '.join(str(path) for path in paths)}",
            do="Put them into one",
        )
    folder = paths[0].parent.resolve()
    files = {each.name: _digest(each) for each in paths}
    model = _verified(folder, files, trust_root, at)
    return Start(
        folder=str(folder),
        files=files,
        taint=_taint(model, groups),
        loaded_by_model=loaded_by_model,
        optimizer=find_optimizer(optimizer, files, model) if optimizer else None,
    )


def check_fits(model: nn.Module, start: Start) -> None:
    """Compare the files' tensors with a model's, by their headers alone.

    Args:
        model: On any device, the meta device included.

    Raises:
        UsageError: Names the tensors that are missing, unexpected or of another shape or kind.
        Malformed: A file is not safetensors.
    """
    stored: dict[str, Stored] = {}
    for name in start.files:
        path = Path(start.folder, name)
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                for tensor in file.keys():  # noqa: SIM118  # no mapping
                    part = file.get_slice(tensor)
                    floating = part.get_dtype().startswith(("F", "BF"))
                    _add(stored, tensor, Stored(tuple(part.get_shape()), floating), path)
        except (safetensors.SafetensorError, OSError) as error:
            raise Malformed(
                f"not a safetensors file: {error}", where=f"pretrained {path}"
            ) from error
    require_names(model, stored, where=f"pretrained {start.folder}")


def load_start(model: nn.Module, start: Start) -> None:
    """Fill a model on rank 0 with the recorded bytes. Collective.

    The other ranks get rank 0's weights afterwards. If the model has loaded the files itself, rank
    0 only checks that they are still the recorded ones.

    Raises:
        Refused: A file is no longer the one that the driver digested.
        UsageError: A file is missing, or does not fit. All ranks raise the same error.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    fail_together(lambda: _load(model, start) if first else None)


def load_rows(
    model: nn.Module, rows: Mapping[str, Tensor], start: Start, rank: int, world: int
) -> None:
    """Fill this rank's rows with those of the recorded bytes. Collective; ranks fail together.

    Each rank reads every file once, hashes it, and keeps its own rows.

    Args:
        model: On the meta device but for its buffers, which are filled too.
        rows: FQN → (own rows, …) of each parameter, of any dtype, on the CPU; they are written.
        rank, world: Which rows these are.
    """
    fail_together(lambda: _load_rows(model, rows, start, rank, world))


def check_unchanged(start: Start) -> None:
    """Refuse files that are no longer the recorded ones."""
    for name, digest in start.files.items():
        path = Path(start.folder, name)
        _require_same(_digest(path), digest, path)
    if start.optimizer:
        open_start(start.optimizer)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"not readable: {error.strerror}", where=f"pretrained {path}") from error


def _verified(
    folder: Path, files: Mapping[str, str], trust_root: TrustAnchor | bytes, at: datetime
) -> VerifiedModel | None:
    """The model of which these are attested files; None if there is no such one."""
    root = model_folder.find_model(folder)
    if root is None:
        return None
    try:
        model = verify(root, trust_root=trust_root, at=at)
    except (Refused, CouldNotCheck):
        return None
    attested = {subject.name: subject.sha256 for subject in model.subjects}
    where = folder.relative_to(root)
    same = all(attested.get((where / name).as_posix()) == files[name] for name in files)
    return model if same else None


def _taint(
    model: VerifiedModel | None, groups: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    if model is None:
        return dict.fromkeys(groups, (UNKNOWN,))
    reached = {entry.group: entry.transitive for entry in model.attestation.taint}
    # This run may have other layer groups, so taint is carried over by tensor.
    labels = {
        fqn: reached[group.group] for group in model.attestation.groups for fqn in group.parameters
    }
    brought = {
        group: tuple(sorted({label for fqn in fqns for label in labels.get(fqn, (UNKNOWN,))}))
        for group, fqns in groups.items()
    }
    return {group: found for group, found in brought.items() if found}


def _add(stored: dict[str, Any], tensor: str, value: Any, path: Path) -> None:
    if tensor in stored:
        raise UsageError(
            f"tensor {tensor} is in two files",
            where=f"pretrained {path}",
            do="Name one file",
        )
    stored[tensor] = value


def _load(model: nn.Module, start: Start) -> None:
    if start.loaded_by_model:
        check_unchanged(start)
        return
    tensors: dict[str, Tensor] = {}
    for name, digest in start.files.items():
        path = Path(start.folder, name)
        # The bytes that are parsed are the bytes that were digested.
        data = _read(path)
        _require_same(canonical_json.sha256(data), digest, path)
        for tensor, value in _parse(data, path).items():
            _add(tensors, tensor, value, path)
    fill(model, tensors, where=f"pretrained {start.folder}")


def _load_rows(
    model: nn.Module, rows: Mapping[str, Tensor], start: Start, rank: int, world: int
) -> None:
    if start.loaded_by_model:
        check_unchanged(start)
        return
    first = first_names(model)
    stored: dict[str, Stored] = {}
    tensors: dict[str, Tensor] = {}

    def wanted(path: Path, tensor: Described) -> range:
        _add(stored, tensor.name, Stored(tensor.shape, tensor.dtype.startswith(("F", "BF"))), path)
        whole = tensor.shape[0] if tensor.shape else 1
        return cut(whole, rank, world) if first.get(tensor.name) in rows else range(whole)

    for name, digest in start.files.items():
        path = Path(start.folder, name)
        where = f"pretrained {path}"
        try:
            with path.open("rb") as file:
                found, read = read_rows(file, partial(wanted, path), where=where)
        except OSError as error:
            raise UsageError(f"not readable: {error.strerror}", where=where) from error
        _require_same(read, digest, path)
        tensors |= found
    where = f"pretrained {start.folder}"
    require_names(model, stored, where=where)
    state = model.state_dict()
    held = {name: rows.get(first[name], state[name]) for name in tensors}
    with torch.no_grad():
        for name, value in tensors.items():
            held[name].copy_(value)
    require_held(held, tensors, where=where)


def _require_same(found: str, recorded: str, path: Path) -> None:
    if found != recorded:
        raise Refused(
            "the file changed since the run began",
            where=f"pretrained {path}",
            do="Restore it, or start a new run",
        )


def _parse(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise Malformed(f"not a safetensors file: {error}", where=f"pretrained {path}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"not readable: {error.strerror}", where=f"pretrained {path}") from error
