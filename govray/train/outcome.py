"""What a replay found, as it stands in the replay's folder and in an attestation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from govray.errors import Malformed
from govray.governance import attestation, canonical
from govray.governance.environment import Environment
from govray.train.comparison import LeafDifference, TensorDifference

FOLDER = "replays"
"""Folder in a run's folder for its replays: each a run folder of its own."""

FILE = "outcome.json"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a replay found.

    Attributes:
        of: The run that was replayed.
        run: The replay's own run.
        without: The corpus that was left out, if one was.
        start, stop: Steps ``start … stop-1`` ran, from a state that both have.
        max_steps: Steps of the whole plan.
        plan: Digest of the replay's plan.
        checkpoints: Steps whose commits were compared; where there is none, only leaves were.
        leaf: The first ledger leaf that differs.
        tensor: The first tensor that differs.
        original, replayed: File to digest, in the last compared commits.
        environment: Where the replay ran: rank 0's, from its last commit.
        differences: In what that differs from where the run ran; for people.
    """

    of: str
    run: str
    without: str | None
    start: int
    stop: int
    max_steps: int
    plan: str
    checkpoints: tuple[int, ...]
    leaf: LeafDifference | None
    tensor: TensorDifference | None
    original: dict[str, str]
    replayed: dict[str, str]
    environment: Environment
    differences: tuple[str, ...]

    @property
    def identical(self) -> bool | None:
        """None if leaves are equal and the weights after the last step could not be compared."""
        if self.leaf or self.tensor:
            return False
        return True if self.stop in self.checkpoints else None

    @property
    def whole(self) -> bool:
        """Whether every step of the plan ran, and the final state was compared."""
        return (self.start, self.stop) == (0, self.max_steps) and self.stop in self.checkpoints

    def to_json(self) -> dict[str, Any]:
        """What is absent is left out; ``identical`` is always there, ``null`` if not known."""
        value = _present(vars(self)) | {"environment": self.environment.to_json()}
        for key in ("leaf", "tensor"):
            if key in value:
                value[key] = _present(asdict(value[key]))
        return {"identical": self.identical} | value

    def write(self, folder: Path) -> None:
        """Write the outcome into the replay's folder."""
        temporary = folder / f".{FILE}.tmp"
        temporary.write_bytes(canonical.encode(self.to_json()))
        temporary.replace(folder / FILE)


def read_outcomes(run: Path) -> tuple[Outcome, ...]:
    """The outcomes of the replays in a run's folder, oldest first.

    Raises:
        Malformed: A file is no outcome.
    """
    return tuple(_read(path) for path in sorted((run / FOLDER).glob(f"*/{FILE}")))


def evidence(run: Path, party: str) -> tuple[attestation.Replay, ...]:
    """The identical whole replays of a run without a corpus, as its attestation states them.

    Args:
        party: Who ran them.
    """
    return tuple(_newest(run, party))


def _newest(run: Path, party: str) -> Iterator[attestation.Replay]:
    by_corpus = {each.without: each for each in read_outcomes(run) if each.whole}
    for corpus, each in by_corpus.items():
        if corpus is not None and each.identical:
            yield attestation.Replay(
                corpus=corpus,
                party=party,
                plan=each.plan,
                files=each.replayed,
                environment=each.environment,
            )


def _read(path: Path) -> Outcome:
    value: Any = canonical.parse_canonical(path.read_bytes(), where=str(path))
    try:
        value.pop("identical")
        leaf, tensor = value.pop("leaf", None), value.pop("tensor", None)
        return Outcome(
            **{"without": None}
            | value
            | {
                "checkpoints": tuple(value["checkpoints"]),
                "leaf": LeafDifference(**leaf | {"fields": tuple(leaf["fields"])})
                if leaf
                else None,
                "tensor": TensorDifference(**{"tensor": None, "max_abs": None} | tensor)
                if tensor
                else None,
                "environment": Environment.from_json(value["environment"], where=str(path)),
                "differences": tuple(value["differences"]),
            }
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise Malformed("not the outcome of a replay", where=str(path)) from error


def _present(value: dict[str, Any]) -> dict[str, Any]:
    return {key: found for key, found in value.items() if found is not None}
