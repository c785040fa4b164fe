"""Step 4: the folder holds the attested files, and no other that a loader may load or execute."""

from __future__ import annotations

from collections.abc import Sequence

from govray.errors import CouldNotCheck, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.model_folder import Bundle, TensorFile
from govray.governance.formats.tensor_header import MAX_HEADER
from govray.governance.policy.globs import matches
from govray.governance.trust.trust_state import Verified


def check_files(
    folder: Bundle, attested: Verified[Attestation], allowed: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, TensorFile]]:
    """Every file has its digest; returns the files not covered, and the tensor files by name.

    Args:
        allowed: Globs of files that may be there without being attested.

    Raises:
        Refused: A file is missing, altered, or not covered though a loader may load it.
        CouldNotCheck: The ledger is missing.
    """
    attestation = attested.document
    subjects = {model_folder.check_name(s.name): s.sha256 for s in attested.subjects}
    for name in subjects:
        if name.split("/")[0].casefold() == model_folder.GOVERNANCE:
            raise Refused("a governance file is named as a model file", where=name)
    gone = {removal.adapter for removal in attestation.removals}
    expected = {model_folder.CONFIG, model_folder.WEIGHTS}
    expected.update({model_folder.EMA} & subjects.keys())
    for adapter in attestation.adapters:
        if adapter.name not in gone:
            expected.update(model_folder.adapter_files(adapter.name))
    claimed = {name for name in subjects if model_folder.covered(name)}
    for name in sorted(expected ^ claimed):
        raise Refused(
            "the attestation does not cover this file"
            if name in expected
            else "the attestation covers a file that the model does not have",
            where=name,
        )
    pinned = set(attestation.files)
    required = {
        model_folder.POLICY,
        model_folder.MANIFEST,
        model_folder.CREDENTIALS,
        model_folder.LEDGER,
    }
    required.add(model_folder.CHECKPOINT)
    for name in sorted(required - pinned) + sorted(
        pinned - required - {model_folder.DELEGATIONS, model_folder.GATES, model_folder.REPLAYS}
    ):
        raise Refused("the attestation pins the wrong governance files", where=name)
    present = folder.names()
    if model_folder.LEDGER not in present:
        raise CouldNotCheck(
            "the ledger is missing",
            where=model_folder.LEDGER,
            do="Get the whole model folder from where this one came from.",
        )
    digests = subjects | dict(attestation.files)
    weights: dict[str, TensorFile] = {}
    heads = 0
    for name, digest in sorted(digests.items()):
        if name not in present:
            raise Refused("the file is missing", where=name)
        if name in expected and name.endswith(".safetensors"):
            weights[name] = folder.tensor_file(name)
            found = weights[name].sha256
            heads += len(weights[name].head)
        else:
            found = folder.sha256(name)
        by_payload = (
            name == model_folder.MANIFEST and attestation.manifest_pinned_by_payload
        )  # step 7
        if f"sha256:{found}" != digest and not by_payload:
            raise Refused("the file is not the one that was attested", where=name)
        if heads > MAX_HEADER:
            raise Refused(f"the headers of all weights exceed {MAX_HEADER} bytes", where=name)
    others = [n for n in present if n not in digests and n != model_folder.ATTESTATION]
    others = [n for n in others if not model_folder.by_outsiders(n)]  # steps 14 to 16
    attested_names = {name.casefold() for name in digests}
    for name in others:
        if model_folder.reserved(name) or name.casefold() in attested_names:
            raise Refused(
                "the file is not covered by the attestation, but stands where one that is would",
                where=name,
                do="Remove it, or get the folder from its source again.",
            )
        if not model_folder.inert(name) and not any(matches(glob, name) for glob in allowed):
            raise Refused(
                "a loader may load or execute this file, and the attestation does not cover it",
                where=name,
                do="Move it away, or get the folder from its source again. If you want it there: "
                "govray verify, trace, cosign and adapter take --allow-uncovered GLOB. Whatever "
                "else reads model folders takes no exception.",
            )
    return tuple(others), weights
