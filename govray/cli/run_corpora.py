"""Where the corpora of a model's run lie, if the model still lies beside its run's record."""

from __future__ import annotations

from typing import Any

from govray.errors import GovrayError
from govray.storage.place import Place, place
from govray.storage.regular_file import read_regular


def run_corpora(model: Place) -> Place | None:
    """The corpora of the run whose folder the model lies in, as its record names them."""
    from govray.governance.formats import canonical_json

    record = model.resolve().parent / "record" / "run.json"
    try:
        summary: Any = canonical_json.parse_canonical(read_regular(record), where=str(record))
        folder = place(summary["experiment"]["data"]["corpora"])
        return folder if folder.is_dir() else None
    except (OSError, GovrayError, KeyError, TypeError, ValueError):
        return None
