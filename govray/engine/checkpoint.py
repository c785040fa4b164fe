"""Commit a folder of files as one thing, and load it by digest.

``commit`` writes every file into a sibling folder named ``….partial``, then
``manifest.json`` (canonical JSON: name → SHA-256 and size), and renames the
folder into place. The rename is the commit point: before it nothing under the
final name exists, and ``load`` refuses a ``….partial`` folder by its name, even
a complete one that a kill left behind. Every write is fsynced before the
manifest, the manifest before the rename, the rename before returning.

``load`` compares names, sizes and SHA-256 of all files with the manifest before
anything but the manifest is parsed, and hands out the bytes that it hashed. It
opens nothing a second time.

Equal content gives equal bytes: safetensors orders tensors by dtype and name,
and the manifest is canonical. Nothing is ever pickled; optimizer state is
tensors plus a JSON value.

What it does not do: decide what belongs into a checkpoint, sign it (the digest
that ``commit`` returns is what to sign), prune old ones, stream files larger
than memory.

Source: RFC 8785 for the manifest; https://github.com/huggingface/safetensors
for tensors; fsync, rename, fsync of the parent as in POSIX rename(2), fsync(2).
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from govray.errors import Malformed, UsageError
from govray.governance import canonical

MANIFEST = "manifest.json"
SCHEMA = "govray.dev/checkpoint/v1"
_PARTIAL = ".partial"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Scalar = None | bool | int | float | str


@dataclass(frozen=True)
class Committed:
    """A folder whose files all match its manifest.

    Attributes:
        digest: SHA-256 of the manifest's bytes, ``sha256:<hex>``.
        files: Name → the bytes that were checked.
    """

    digest: str
    files: Mapping[str, bytes]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a safetensors file, on the CPU.

        Raises:
            Malformed: If there is no such file, or it is not safetensors.
        """
        if name not in self.files:
            raise Malformed("the checkpoint has no such file", where=name)
        try:
            return safetensors.torch.load(self.files[name])
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise Malformed(f"not a safetensors file: {error}", where=name) from error


def commit(folder: Path, files: Mapping[str, bytes | Mapping[str, Tensor]]) -> str:
    """Write all files and the manifest, or leave nothing.

    Args:
        folder: Must not exist. Its parent is created if need be.
        files: Relative POSIX path → content. A mapping of tensors is written as
            safetensors; tensors that share memory are written once per name.

    Returns:
        The digest of the manifest, which fixes every byte of the folder.

    Raises:
        UsageError: If the folder exists, a name leaves it, or the disk refuses
            (full, read-only). Nothing of the attempt remains. That also holds
            for any other exception, ``KeyboardInterrupt`` included.
    """
    for name in files:
        if not _is_inside(name):
            raise UsageError(f"{name!r} is no path inside the checkpoint", where=str(folder))
    if os.path.lexists(folder):
        raise UsageError(
            "already exists", where=str(folder), do="A checkpoint is never overwritten"
        )
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{_PARTIAL}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        entries: dict[str, Any] = {}
        for name, content in files.items():
            data = content if isinstance(content, bytes) else _safetensors(content, name)
            _write(partial / name, data)
            entries[name] = {"digest": canonical.sha256(data), "size": len(data)}
        manifest = canonical.encode({"schema": SCHEMA, "files": entries})
        for directory, _, _ in os.walk(partial, topdown=False):
            _fsync_directory(directory)
        _write(partial / MANIFEST, manifest)
        _fsync_directory(partial)
        os.rename(partial, folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UsageError(
            f"the checkpoint could not be written: {error.strerror}",
            where=str(folder),
            do="Nothing of it was kept. Make room or choose another place, then resume",
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    try:
        _fsync_directory(folder.parent)
    except OSError as error:
        raise UsageError(
            f"the checkpoint is complete, but the disk did not confirm it: {error.strerror}",
            where=str(folder),
            do="Check the disk before relying on it",
        ) from error
    return canonical.sha256(manifest)


def load(folder: Path) -> Committed:
    """Read a committed folder, every byte checked.

    Raises:
        UsageError: If the folder does not exist or cannot be read.
        Malformed: If it was never committed, or a file is missing, added,
            changed, cut, or not a regular file.
    """
    if folder.resolve().name.endswith(_PARTIAL):
        raise Malformed(
            "was never committed",
            where=str(folder),
            do="It is what an interrupted run left behind: resume from another checkpoint",
        )
    try:
        sizes = _regular_files(folder)
        if MANIFEST not in sizes:
            raise Malformed(
                f"has no {MANIFEST}, so it was never committed",
                where=str(folder),
                do="Resume from another checkpoint",
            )
        manifest = _read(folder / MANIFEST, sizes.pop(MANIFEST))
        entries = _entries(manifest, folder)
        if odd := entries.keys() ^ sizes.keys():
            raise Malformed(
                "missing" if min(odd) in entries else f"not in {MANIFEST}",
                where=str(folder / min(odd)),
                do="Resume from another checkpoint",
            )
        for name, (_, size) in entries.items():
            if sizes[name] != size:
                raise Malformed(
                    f"has {sizes[name]} bytes, {MANIFEST} says {size}", where=str(folder / name)
                )
        files = {name: _read(folder / name, size) for name, (_, size) in entries.items()}
    except OSError as error:
        raise UsageError(
            f"the checkpoint could not be read: {error.strerror}", where=str(folder)
        ) from error
    for name, (digest, _) in entries.items():
        if canonical.sha256(files[name]) != digest:
            raise Malformed(f"differs from its digest in {MANIFEST}", where=str(folder / name))
    return Committed(canonical.sha256(manifest), files)


def optimizer_state(
    optimizer: Optimizer, names: Mapping[Parameter, str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state without pickle.

    Args:
        optimizer: Any whose state and hyperparameters are tensors (state only),
            finite numbers, booleans, strings, ``None``, or tuples of these.
        names: A name for each of its parameters; FQNs, by convention.

    Returns:
        Tensors named ``<state key>/<parameter name>``, and a JSON value with the
        param groups and the state that is not tensors. A parameter that was
        never stepped has no entry, here as there.

    Raises:
        UsageError: If a parameter has no name or a value cannot be stored.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        groups.append(
            {
                "parameters": [_name(names, parameter, index) for parameter in group["params"]],
                "hyperparameters": {
                    key: _storable(value, f"param group {index}, {key}")
                    for key, value in group.items()
                    if key != "params"
                },
            }
        )
        for parameter in group["params"]:
            name = names[parameter]
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}/{name}"] = value.detach().cpu().clone()
                else:
                    values.setdefault(name, {})[key] = _storable(value, f"{name}, {key}")
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "values": values}


def restore_optimizer(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Put back what ``optimizer_state`` returned, into an optimizer built the same way.

    Tensors keep their dtype and bits, where ``Optimizer.load_state_dict`` casts
    them to the parameter's.

    Raises:
        Malformed: If the optimizer's class or its parameters in their groups and
            order differ, or a tensor belongs to no parameter. Nothing is changed then.
    """
    kind = type(optimizer).__name__
    here = [
        [_name(names, parameter, index) for parameter in group["params"]]
        for index, group in enumerate(optimizer.param_groups)
    ]
    try:
        there = [group["parameters"] for group in state["groups"]]
        hyperparameters = [dict(group["hyperparameters"]) for group in state["groups"]]
        values = {name: dict(entries) for name, entries in state["values"].items()}
        stored_kind = state["kind"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Malformed("not a stored optimizer state", where="optimizer state") from error
    if any("params" in stored for stored in hyperparameters):
        raise Malformed("params is no hyperparameter", where="optimizer state")
    if stored_kind != kind or there != here:
        raise Malformed(
            f"stored for {stored_kind} over {sum(map(len, there))} parameters, which is not "
            f"this {kind} over {sum(map(len, here))}",
            where="optimizer state",
            do="Build the optimizer over the same parameters, groups and order",
        )
    parameters = {names[p]: p for group in optimizer.param_groups for p in group["params"]}
    for tensor_name, tensor in tensors.items():
        key, _, name = tensor_name.partition("/")
        if name not in parameters:
            raise Malformed(f"{tensor_name} belongs to no parameter", where="optimizer state")
        values.setdefault(name, {})[key] = tensor
    if unknown := values.keys() - parameters.keys():
        raise Malformed(f"{min(unknown)} is no parameter", where="optimizer state")
    for group, stored in zip(optimizer.param_groups, hyperparameters, strict=True):
        group.update({key: _like(value, group.get(key)) for key, value in stored.items()})
    optimizer.state.clear()
    for group in optimizer.param_groups:
        # torch counts steps on the CPU unless the kernel reads the count on the device.
        steps_on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            for key, value in values.get(names[parameter], {}).items():
                if isinstance(value, Tensor):
                    on_device = key != "step" or steps_on_device
                    value = value.clone().to(parameter.device if on_device else "cpu")
                optimizer.state[parameter][key] = value


def rng_state() -> Tensor:
    """State of torch's CPU generator: uint8, one dimension."""
    return torch.get_rng_state()


def restore_rng(state: Tensor) -> None:
    """Put back what ``rng_state`` returned.

    Raises:
        Malformed: If the tensor is no generator state.
    """
    try:
        torch.set_rng_state(state)
    except (RuntimeError, TypeError) as error:
        raise Malformed("not the state of a torch CPU generator", where="RNG state") from error


def _is_inside(name: str) -> bool:
    """Whether a manifest name is a plain relative path, and not the manifest's own."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return plain and name != MANIFEST and not set(name) & {"\\", "\0"}


def _safetensors(tensors: Mapping[str, Tensor], name: str) -> bytes:
    """Deterministic safetensors bytes; shared memory is copied, since the format has none."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(storage.data_ptr())
        separate[key] = plain
    try:
        return safetensors.torch.save(separate)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"tensors cannot be stored: {error}", where=name) from error


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _fsync_directory(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _regular_files(folder: Path) -> dict[str, int]:
    """Relative name → size of all files below, refusing what is neither file nor folder."""
    sizes: dict[str, int] = {}
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    pending.append(Path(entry.path))
                elif stat.S_ISREG(status.st_mode):
                    sizes[Path(entry.path).relative_to(folder).as_posix()] = status.st_size
                else:
                    raise Malformed("is not a regular file", where=entry.path)
    return sizes


def _read(path: Path, size: int) -> bytes:
    """The file's bytes; one more than ``size`` at most, so that growth shows in the digest."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        return file.read(size + 1)


def _entries(manifest: bytes, folder: Path) -> dict[str, tuple[str, int]]:
    """Name → (digest, size) of a manifest, strictly parsed."""
    where = str(folder / MANIFEST)
    value = canonical.parse_canonical(manifest, where=where)
    if not isinstance(value, dict) or value.keys() != {"schema", "files"}:
        raise Malformed("expected the fields schema and files", where=where)
    if value["schema"] != SCHEMA or not isinstance(value["files"], dict):
        raise Malformed(f"not a {SCHEMA} manifest", where=where)
    entries: dict[str, tuple[str, int]] = {}
    for name, entry in value["files"].items():
        match entry:
            case {"digest": str(digest), "size": int(size), **rest} if (
                not rest
                and type(size) is int
                and size >= 0
                and _is_inside(name)
                and _DIGEST.fullmatch(digest)
            ):
                entries[name] = (digest, size)
            case _:
                raise Malformed(f"the entry of {name!r} is malformed", where=where)
    return entries


def _name(names: Mapping[Parameter, str], parameter: Parameter, group: int) -> str:
    if parameter not in names:
        raise UsageError(
            f"a parameter of shape {tuple(parameter.shape)} has no name",
            where=f"optimizer, param group {group}",
            do="Give the optimizer the parameters of the model and its adapters only",
        )
    return names[parameter]


def _storable(value: Any, where: str) -> Any:
    if isinstance(value, tuple | list):
        return [_storable(item, where) for item in value]
    if isinstance(value, Scalar) and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise UsageError(
        f"a {type(value).__name__} in the optimizer cannot be stored",
        where=where,
        do="Use finite numbers, booleans, strings and tuples of them",
    )


def _like(value: Any, present: Any) -> Any:
    """Undo what JSON loses: tuples become lists, and canonical JSON writes 1.0 as 1."""
    if isinstance(present, tuple) and isinstance(value, list) and len(value) == len(present):
        return tuple(_like(item, old) for item, old in zip(value, present, strict=True))
    if isinstance(present, float) and type(value) is int:
        return float(value)
    return value
