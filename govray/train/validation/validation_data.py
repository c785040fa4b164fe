"""Validation data: credentialed corpora of their own, admitted as training data are.

Invariants:

* No batch plan reads them. They are prepared in a folder of their own, with the same tokenizer and
  row schema, and nothing of them is held back.
* The policy decides their classes too. A class that it quarantines is not measured.
* No record of them is also, byte for byte, a record that the run may train on. `refuse_overlap`
  reads every record of both, so it runs when a run begins, and not when it is resumed.
* If one of their credentials ends, the run ends, as it does with the policy. What they give decides
  for all layers, so leaving one corpus out would not do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

from govray.data.admission import Prepared
from govray.data.corpus import part_files, read_credentials, read_part, verify_credentials
from govray.data.records_file import find_prepared
from govray.errors import CouldNotCheck, Refused
from govray.governance.formats.row_schema import RowSchema
from govray.governance.record.prepare_manifest import MANIFEST_FILE, Manifest
from govray.storage.place import Place, place
from govray.train.experiment.sections import Validation
from govray.train.inputs.run_record import RunRecord
from govray.train.inputs.shared_inputs import ValidationData
from govray.train.inputs.verified_inputs import Inputs, check_unrevoked


def recorded_validation(
    section: Validation | None, data: ValidationData | None
) -> dict[str, Any] | None:
    """What a run's record says of what it is judged by; of data, the digests."""
    if section is None:
        return None
    stated: dict[str, Any] = {
        "metric": section.metric_name,
        "goal": section.better,
        "every": section.every_steps,
    }
    if section.early_stopping is not None:
        stated["earlyStopping"] = section.early_stopping.model_dump(mode="json")
    if data is not None:
        stated |= {
            "rows": section.rows,
            "manifest": data.prepared.digest,
            "corpora": {name: data.credentials[name].digest for name in data.corpora},
        }
    return stated


def validation_inputs(corpora: str | Place, inputs: Inputs, *, at: datetime) -> Inputs:
    """A run's verified inputs with the credentials of its validation corpora instead of its own.

    Args:
        at: The time at which they must be valid: when the run began, or begins.

    Raises:
        Refused: A credential does not verify, is revoked, or is of a corpus that the run trains
            on.
    """
    folder = place(corpora)
    envelopes = read_credentials(folder)
    if both := sorted(envelopes.keys() & inputs.credentials.keys()):
        raise Refused(
            f"corpus {both[0]!r} is among the corpora to train on too",
            where=f"validation.corpora {corpora}",
            do="Hold other records out, as a corpus with a name of its own",
        )
    credentials = verify_credentials(folder, envelopes, inputs.trust, at=at)
    if inputs.revocations is not None:
        check_unrevoked(inputs.revocations, inputs.policy, credentials, at)
    return replace(inputs, credentials=credentials, credential_bytes=envelopes)


def carried_validation(
    section: Validation, run: Place, record: RunRecord, inputs: Inputs
) -> ValidationData | None:
    """The data that a resumed run is judged by, packed as it was when the run began.

    Their credentials are where the experiment says: a commit carries their digests alone.

    Raises:
        CouldNotCheck: The packed rows are not in the run's storage.
    """
    stated = record.validation or {}
    if section.corpora is None or "manifest" not in stated:
        return None
    folder = find_prepared(run, stated["manifest"])
    if folder is None:
        raise CouldNotCheck(
            "the packed rows of the validation corpora are not here",
            where=str(run),
            do="Restore the prepared folder that the run read",
        )
    held_out = validation_inputs(section.corpora, inputs, at=record.started)
    for name, digest in stated["corpora"].items():
        found = held_out.credentials.get(name)
        if found is None or found.digest != digest:
            raise Refused(
                f"changed since the run began: credential {name}",
                where=f"validation.corpora {section.corpora}",
                do="Restore what it began with",
            )
    return ValidationData(
        credentials=held_out.credentials,
        prepared=Prepared(folder, (folder / MANIFEST_FILE).read_bytes()),
    )


def refuse_other_rows(schema: RowSchema | None, manifest: Manifest) -> None:
    """Refuse validation data whose rows are not as those that the model is trained on."""
    if manifest.rows != schema:
        raise Refused(
            "their row schema is not that of the corpora to train on",
            where="validation.corpora",
            do="Build them with equal tensors and classes",
        )


def refuse_overlap(
    corpora: Place, trained: Collection[str], held_out: Place, measured: Collection[str]
) -> None:
    """Refuse validation data of which records are trained on.

    Holds 32 bytes of each validation record, and none of the others.

    Args:
        trained: Those that the plan reads.
        measured: Those of them that were admitted.
    """
    known: dict[bytes, list[str]] = {}
    for name in sorted(measured):
        for found in set(_hashes(held_out / name)):
            known.setdefault(found, []).append(name)
    shared: dict[tuple[str, str], int] = {}
    for name in sorted(trained):
        for found in _hashes(corpora / name):
            for other in known.get(found, ()):
                shared[other, name] = shared.get((other, name), 0) + 1
    if shared:
        pairs = [
            f"{count:,} records of {name} stand in {other}"
            for (other, name), count in sorted(shared.items(), key=lambda each: -each[1])
        ]
        more = f", and {len(pairs) - 4} pairs more" if len(pairs) > 4 else ""
        raise Refused(
            f"{', '.join(pairs[:4])}{more}: a model is not judged by what it trains on",
            where=f"validation.corpora {held_out}",
            do="Take these records out of one of the two, and have it signed again",
        )


def _hashes(corpus: Place) -> list[bytes]:
    return [
        hashlib.sha256(record).digest()
        for part in part_files(corpus)
        for record in read_part(part)
        if len(record)  # an empty record is in no row
    ]
