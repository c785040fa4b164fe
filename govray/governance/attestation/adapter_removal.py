"""Replacing a model folder by the same one without an adapter, in one step.

A removal changes several files: the adapter's go, the attestation is made
anew. So the whole new folder is built beside the old one and the two are
exchanged by name (`govray.storage.staged_folder`).

Invariants:
    * Until the exchange, the folder is the old one, byte for byte; from then on
      it is the new one. No moment shows a mixture.
    * Both are whole: if the old one verified, it verifies until the exchange,
      and ``accept`` saw the new one before it.
    * Base files are carried over as hard links where the file system has them,
      so no tensor is copied, and none can change.

`attestation.without_adapter` decides what the new attestation says. Copies that others hold are not
erased.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from govray.errors import GovrayError, UsageError
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats.dsse import Envelope, sign_payload
from govray.governance.formats.keys import Signer
from govray.governance.formats.signed_note import countersign_checkpoint
from govray.storage.staged_folder import staged_folder


def countersigned(folder: Path, attestation: Attestation, signer: Signer) -> dict[str, bytes]:
    """Name → new bytes of the governance files that a removal's signer has to have signed too.

    A removal may be signed with another key than the run: the operator's second one, or the one
    after a rotation. The ledger's note must carry a signature of whoever signed the attestation.
    The manifest gets one too, so that it holds when the first key is gone. In both, the signed
    content stays the same, and so do the signatures. If the attestation pins the manifest by its
    statement, its signatures begin anew with this one, as the attestation's do.

    Args:
        folder: A model folder that verified.
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
        adapter: The adapter whose files go. Other files of its folder go with them.
        accept: Called with the new folder before it takes the old one's place, to
            verify it; what it raises leaves the old one in place.
        replaced: Files that get other bytes, by name (`countersigned`).

    Raises:
        UsageError: the disk refuses; the old folder is in place.
    """
    written = {**(replaced or {}), model_folder.ATTESTATION: attestation}
    try:
        with staged_folder(folder, replace=True) as staged:
            _stage(folder, staged, adapter, written)
            accept(staged)
    except OSError as error:
        raise _refused(folder, error) from None


def _stage(folder: Path, staged: Path, adapter: str, written: Mapping[str, bytes]) -> None:
    gone = f"{model_folder.ADAPTERS}/{adapter}/"
    for name in model_folder.Bundle(folder).names():
        # What others said of the attestation, they said of the one with the adapter. Witnesses
        # cosigned the ledger's head, which stays.
        said = model_folder.by_outsiders(name) and name != model_folder.WITNESSED
        if name.startswith(gone) or name in written or said:
            continue
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, target)
        except OSError:
            shutil.copy2(folder / name, target)
    for name, data in written.items():
        target = staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(data)


def _refused(where: Path, error: OSError) -> GovrayError:
    return UsageError(
        f"cannot be written: {error.strerror}",
        where=str(where),
        do="The model folder is as it was; check the permissions and the disk",
    )
