"""Where the corpora of a model's run lie, if the model still lies beside its run's record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from govray.errors import GovrayError
from govray.files.place import Place


def run_corpora(model: Place) -> Path | None:
    """The corpora of the run whose folder the model lies in, as its record names them."""
    from govray.governance.formats import canonical_json

    record = model.resolve().parent / "record" / "run.json"
    try:
        summary: Any = canonical_json.parse_canonical(record.read_bytes(), where=str(record))
        folder = Path(summary["experiment"]["data"]["corpora"])
    except (OSError, GovrayError, KeyError, TypeError):
        return None
    return folder if folder.is_dir() else None
