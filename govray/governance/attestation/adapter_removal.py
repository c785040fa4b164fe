"""Replacing a model folder by the same one without an adapter, in one step.

A removal changes several files: the adapter's go, the attestation is another
one. So the whole new folder is built beside the old one and the two are
exchanged by name.

Invariants:
    * Until the exchange, the folder is the old one, byte for byte; from then on
      it is the new one. No moment shows a mixture.
    * Both are whole: if the old one verified, it verifies until the exchange,
      and ``accept`` saw the new one before it.
    * Base files are carried over as hard links where the file system has them,
      so no tensor is copied, and none can change.

The exchange is ``renameat2(RENAME_EXCHANGE)`` on Linux and
``renamex_np(RENAME_SWAP)`` on macOS. A file system without it gets two renames:
a crash between them leaves no folder under the name, and both whole ones beside
it (``.<name>.*``).

`attestation.without_adapter` decides what the new attestation says. Copies that others hold are not
erased.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from govray.errors import GovrayError, UsageError
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import Signer
from govray.governance.formats.signed_note import countersign_checkpoint

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS


def countersigned(folder: Path, attestation: Attestation, signer: Signer) -> dict[str, bytes]:
    """Name → new bytes of the governance files that a removal's signer has to have signed too.

    A removal may be signed with another key than the run: the operator's second one, or the one
    after a rotation. The ledger's note must carry a signature of whoever signed the attestation;
    the manifest gets one too, so that it holds when the first key is gone. What was signed stays
    the same in both, and so do the signatures that they have; where the attestation pins the
    manifest by its statement, its signatures begin anew with this one, as the attestation's do.

    Args:
        folder: A model folder that verified.
        attestation: Its attestation.
        signer: Of the new attestation.

    Raises:
        Malformed: One has no room for another signature.
    """
    manifest = (folder / model_folder.MANIFEST).read_bytes()
    note = (folder / model_folder.CHECKPOINT).read_bytes()
    sealed = Envelope.parse(manifest, where=model_folder.MANIFEST)
    found = {model_folder.CHECKPOINT: countersign_checkpoint(note, signer)}
    if attestation.manifest_pinned_by_payload:
        found[model_folder.MANIFEST] = sign_payload(sealed.payload, [signer])
    elif not sealed.signed_by([signer.public_key]):
        found[model_folder.MANIFEST] = sealed.cosign([signer])
    return {name: data for name, data in found.items() if data not in (note, manifest)}


def remove_adapter_files(
    folder: Path,
    adapter: str,
    attestation: bytes,
    *,
    accept: Callable[[Path], object],
    replaced: Mapping[str, bytes] | None = None,
) -> None:
    """Replace the model ``folder`` by the same without ``adapter``, under ``attestation``.

    Args:
        folder: The model folder.
        adapter: The adapter whose files go. Other files of its folder go with them.
        attestation: The new envelope.
        accept: Called with the new folder before it takes the old one's place, to
            verify it; what it raises leaves the old one in place.
        replaced: Files that get other bytes, by name (`countersigned`).

    Raises:
        UsageError: the disk refuses; the old folder is in place.
    """
    folder = folder.resolve()
    try:
        staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise _refused(folder.parent, error) from None
    try:
        _stage(folder, staged, adapter, {**(replaced or {}), model_folder.ATTESTATION: attestation})
        accept(staged)
        exchange(staged, folder)
    except OSError as error:
        raise _refused(folder, error) from None
    finally:
        # The old folder after the exchange, the unfinished new one before it.
        shutil.rmtree(staged, ignore_errors=True)


def exchange(one: Path, two: Path) -> None:
    """Let two folders of one file system change names, atomically where it can.

    Raises:
        OSError: the system refuses; both have their old names.
    """
    if not _exchange_atomically(one, two):
        aside = one.with_name(f"{one.name}.old")
        os.rename(two, aside)
        try:
            os.rename(one, two)
        except OSError:
            os.rename(aside, two)
            raise
        os.rename(aside, one)
    _sync(two.parent)


def _stage(folder: Path, staged: Path, adapter: str, written: Mapping[str, bytes]) -> None:
    gone = f"{model_folder.ADAPTERS}/{adapter}/"
    for name in model_folder.Bundle(folder).names():
        # What others said, they said of the folder with the adapter.
        if name.startswith(gone) or name in written or model_folder.replay_party(name) is not None:
            continue
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, target)
        except OSError:
            shutil.copy2(folder / name, target)
            _sync(target)
    for name, data in written.items():
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    shutil.copymode(folder, staged)
    for each in (staged, *(path for path in staged.rglob("*") if path.is_dir())):
        _sync(each)


def _exchange_atomically(one: Path, two: Path) -> bool:
    """Whether the system could exchange the names. Nothing has changed if not."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(two)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return bool(library.renamex_np(first, second, _EXCHANGE) == 0)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        done = library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE)
        return bool(done == 0)
    return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(where: Path, error: OSError) -> GovrayError:
    return UsageError(
        f"cannot be written: {error.strerror}",
        where=str(where),
        do="The model folder is as it was; check the permissions and the disk",
    )
