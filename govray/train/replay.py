"""Run a recorded run again without one corpus, and compare what it did not train, byte for byte.

The replay reads the same prepared rows under the same plan, in which the
corpus's positions are tombstones. Equal digests confirm non-interference for
that corpus in this environment, by whoever ran the replay; they say nothing
about other environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.engine import checkpoint
from govray.errors import Refused, UsageError
from govray.governance import attestation, bundle, canonical
from govray.train.artifact import environment, final_checkpoint
from govray.train.pretrained import check_unchanged
from govray.train.progress import StepCallback
from govray.train.record import RunRecord, read_record
from govray.train.trainer import from_experiment

_FOLDER = "replays"


@dataclass(frozen=True)
class Replay:
    """What a replay found.

    Attributes:
        without: The corpus that was left out.
        run: The replay's own run.
        plan: Digest of its plan.
        original, replayed: Model file to digest, for the base weights and every
            adapter that both runs have.
        differs: The first tensor that differs, or None if all bytes are equal.
    """

    without: str
    run: str
    plan: str
    original: dict[str, str]
    replayed: dict[str, str]
    differs: str | None

    @property
    def identical(self) -> bool:
        return self.original == self.replayed


def replay_without(run: Path, corpus: str, *, on_step: StepCallback | None = None) -> Replay:
    """Replay ``run`` without ``corpus`` and record the outcome in ``run/replays``.

    Raises:
        UsageError: The run has no experiment file, or never read the corpus.
        CouldNotCheck: The run has no whole final checkpoint.
        Refused: The prepared data, the code or the weights that the run started from are no
            longer what it used.
    """
    record = read_record(run)
    if record.experiment is None:
        raise UsageError(
            "the run was started from a script, so there is no experiment to run again",
            where=str(run),
            do="Call the script's trainer with exclude=[corpus] and compare the weights",
        )
    if corpus not in record.plan.corpora or corpus in record.plan.excluded:
        raise UsageError(
            f"the run did not use a corpus {corpus!r}",
            where=str(run),
            do=f"It used {', '.join(sorted(set(record.plan.corpora) - set(record.plan.excluded)))}",
        )
    if record.start:
        check_unchanged(record.start)
    original = final_checkpoint(run, record)
    experiment = record.experiment
    data = experiment.data.model_copy(update={"exclude": (*experiment.data.exclude, corpus)})
    arguments: dict[str, Any] = {"on_step": on_step} if on_step else {}
    trainer = from_experiment(experiment.model_copy(update={"data": data}), **arguments)
    folder = trainer.train()
    repeated = read_record(folder)
    for name, before, after in (
        ("prepared data", record.plan.manifest, repeated.plan.manifest),
        ("code", record.environment.code_digest, repeated.environment.code_digest),
        ("pretrained start", _start(record), _start(repeated)),
    ):
        if before != after:
            raise Refused(
                f"the {name} changed since the run, so equality would show nothing",
                where=str(run),
                do="Restore it, or compare two new runs",
            )
    replayed = final_checkpoint(folder, repeated)
    shared = _weights(original) & _weights(replayed)
    compared = sorted(shared, key=lambda name: (name != bundle.WEIGHTS, name))
    outcome = Replay(
        without=corpus,
        run=repeated.run_id,
        plan=repeated.plan.digest,
        original={name: canonical.sha256(original.files[name]) for name in compared},
        replayed={name: canonical.sha256(replayed.files[name]) for name in compared},
        differs=next(filter(None, (_difference(original, replayed, n) for n in compared)), None),
    )
    _store(run, outcome)
    return outcome


def read_replays(run: Path) -> tuple[Replay, ...]:
    """The outcomes recorded in a run's folder, by corpus."""
    values: list[Any] = [
        canonical.parse_canonical(path.read_bytes())
        for path in sorted((run / _FOLDER).glob("*.json"))
    ]
    return tuple(Replay(**{"differs": None} | value) for value in values)


def evidence(run: Path, party: str) -> tuple[attestation.Replay, ...]:
    """The identical replays of a run, as its attestation states them.

    Args:
        party: Who ran them.
    """
    found = []
    for outcome in read_replays(run):
        folder = run.parent / outcome.run
        if outcome.identical:
            record = read_record(folder)
            found.append(
                attestation.Replay(
                    corpus=outcome.without,
                    party=party,
                    plan=outcome.plan,
                    files=outcome.replayed,
                    environment=environment(final_checkpoint(folder, record)),
                )
            )
    return tuple(found)


def _start(record: RunRecord) -> str | None:
    return record.start.digest if record.start else None


def _weights(committed: checkpoint.Committed) -> set[str]:
    return {
        name
        for name in committed.files
        if name == bundle.WEIGHTS or name.endswith(bundle.ADAPTER_WEIGHTS)
    }


def _difference(
    original: checkpoint.Committed, replayed: checkpoint.Committed, name: str
) -> str | None:
    """``file: tensor`` of the first tensor whose bytes differ."""
    if original.files[name] == replayed.files[name]:
        return None
    ones, others = original.tensors(name), replayed.tensors(name)
    for tensor in sorted(ones.keys() | others.keys()):
        if tensor not in ones or tensor not in others:
            return f"{name}: {tensor}"
        one, other = ones[tensor], others[tensor]
        if one.shape != other.shape or one.numpy().tobytes() != other.numpy().tobytes():
            return f"{name}: {tensor}"
    return f"{name}: header"


def _store(run: Path, outcome: Replay) -> None:
    folder = run / _FOLDER
    folder.mkdir(exist_ok=True)
    value = {key: found for key, found in vars(outcome).items() if found is not None}
    temporary = folder / f".{outcome.without}.tmp"
    temporary.write_bytes(canonical.encode(value))
    temporary.replace(folder / f"{outcome.without}.json")
