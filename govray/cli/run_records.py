"""Where the records and the corpora of a model's run lie, if they are at hand."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from govray.errors import CouldNotCheck, GovrayError, UsageError
from govray.extras import install
from govray.storage.place import Place, place
from govray.storage.regular_file import read_regular

if TYPE_CHECKING:
    from govray.governance.attestation.model_attestation import Attestation
    from govray.governance.record.prepared_records import ReadPart


def given_records(folder: Place, model: Place) -> ReadPart:
    """Reads the records of a prepared folder that the user named, or of the one in it that the
    model's run read. ``model``: the model folder, or a path in it."""
    from govray.governance.attestation.model_folder import find_model
    from govray.governance.record.prepare_manifest import MANIFEST_FILE

    try:
        from govray.data.records_file import prepared_in, reader
    except ModuleNotFoundError as error:
        raise CouldNotCheck(
            f"records cannot be read without {error.name}",
            where=str(folder),
            do=f"Run {install('trace')}. Or leave --records out, for a summary.",
        ) from error
    if not (folder / MANIFEST_FILE).is_file():
        home = find_model(model)
        found = prepared_in(folder, _attested(home).manifest) if home else None
        if found is None:
            raise UsageError(
                f"not a prepared folder: it has no {MANIFEST_FILE}, and no folder in it is the "
                "one that the model's run read",
                where=str(folder),
                do="Name prepared/ of the run's storage, or a folder in it.",
            )
        folder = found
    return reader(folder)


def run_records(model: Place) -> ReadPart | None:
    """Reads the records of the run that made a model; None if its prepared folder is gone.
    ``model``: the model folder, or a path in it."""
    from govray.governance.formats import canonical_json

    run = _run_of(model)
    record = run / "record" / "run.json"
    try:
        from govray.data.records_file import find_prepared, reader

        summary: Any = canonical_json.parse_canonical(read_regular(record), where=str(record))
        folder = find_prepared(run, summary["plan"]["manifest"])
    except (ModuleNotFoundError, OSError, GovrayError, KeyError, TypeError):
        return None
    return None if folder is None else reader(folder)


def run_corpora(model: Place) -> Place | None:
    """The corpora of the run that made the model, as its record names them."""
    from govray.governance.formats import canonical_json

    record = _run_of(model) / "record" / "run.json"
    try:
        summary: Any = canonical_json.parse_canonical(read_regular(record), where=str(record))
        folder = place(summary["experiment"]["data"]["corpora"])
        return folder if folder.is_dir() else None
    except (OSError, GovrayError, KeyError, TypeError, ValueError):
        return None


def _run_of(model: Place) -> Place:
    """The run that a model lies in; or of ``runs`` beside the model the one that it names.
    Nothing is verified: what is found there has to be what the model's manifest states."""
    from govray.governance.attestation.model_folder import find_model

    folder = (find_model(model) or model).resolve()
    if isinstance(folder, Path) and not (folder.parent / "record").is_dir():
        with suppress(GovrayError, OSError):
            return folder.parent / "runs" / _attested(folder).run.id
    return folder.parent


def _attested(folder: Place) -> Attestation:
    """What the attestation of a model folder states; nothing is verified."""
    from govray.governance.attestation.model_attestation import Attestation
    from govray.governance.attestation.model_folder import ATTESTATION
    from govray.governance.formats.dsse import Envelope
    from govray.governance.formats.statement import read

    return read(Attestation, Envelope.parse(read_regular(folder / ATTESTATION))).document
