"""What a run records of the existing weights that it starts from: files, digests, and taint.

Every reader of a run's record needs this. What loads the files, with torch, is
``state/pretrained.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from govray.governance.formats import canonical_json


@dataclass(frozen=True, kw_only=True)
class OptimizerStart:
    """The commit whose optimizer's state a run begins with.

    Attributes:
        folder: Where it lies, absolute.
        commit: Its digest, which the attestation of the weights states.
    """

    folder: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """Existing weights that a run begins with.

    Attributes:
        folder: Where the files lie, absolute.
        files: File name → digest.
        taint: Layer group → what the start brings to it (T0); untainted groups are absent.
        loaded_by_model: The entrypoint reads the files itself when it is built.
        optimizer: What the weights' own run kept of its optimizer, if this one takes it over.
    """

    folder: str
    files: Mapping[str, str]
    taint: Mapping[str, tuple[str, ...]]
    loaded_by_model: bool
    optimizer: OptimizerStart | None = None

    @property
    def digest(self) -> str:
        """One digest over names and content of the files, and over the optimizer's commit."""
        kept = {"optimizer": self.optimizer.commit} if self.optimizer else {}
        return canonical_json.sha256(canonical_json.encode({**self.files, **kept}))

    def to_json(self) -> dict[str, Any]:
        """The JSON form in a run's record."""
        value = {
            "folder": self.folder,
            "files": dict(self.files),
            "taint": {group: list(labels) for group, labels in self.taint.items()},
            "loadedByModel": self.loaded_by_model,
        }
        return value | ({"optimizer": asdict(self.optimizer)} if self.optimizer else {})

    @classmethod
    def from_json(cls, value: Any) -> Start:
        """From what ``to_json`` returned."""
        return cls(
            folder=value["folder"],
            files=value["files"],
            taint={group: tuple(labels) for group, labels in value["taint"].items()},
            loaded_by_model=value["loadedByModel"],
            optimizer=OptimizerStart(**value["optimizer"]) if "optimizer" in value else None,
        )
