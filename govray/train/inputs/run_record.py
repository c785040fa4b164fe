"""What a run stores about itself: enough to attest it again or replay it.

The folder ``record/`` in the run's folder is written before the first step. It has the exact signed
bytes that were verified, and ``run.json``, but no key. The times are the operator's own assertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from govray.errors import Malformed, UsageError
from govray.governance.attestation.environment import EarlierCode, Environment
from govray.governance.attestation.selection_taint import Selection
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.record.ancestry import Ancestor
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.submission.code_archive import check_digest
from govray.governance.submission.submission import Submission
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place
from govray.storage.regular_file import MOST, read_regular
from govray.train.experiment.sections import Ema
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.pretrained_start import Start

RECORD = "record"
"""Folder inside a run's."""
SUMMARY = "run.json"
LOADER_FILES = "loader_files.json"
"""Name → base64 of the model's files that other libraries load it by."""
FILES = (
    "policy.dsse.json",
    "root.json",
    "manifest.dsse.json",
    "credentials.jsonl",
    "delegations.jsonl",
    LOADER_FILES,
    SUMMARY,
)
"""What it holds. The summary is written last: without it there is no record."""

_SCHEMA = "govray.dev/run/v1"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run.

    Attributes:
        started, finished: When the driver began, and when the last step was committed.
        groups: Layer group to FQNs.
        policy, root, manifest: Signed envelopes, as verified.
        credentials: Corpus to its signed envelope, admitted or not.
        config: The training loop's configuration.
        experiment: The experiment file's content, where there is one.
        environment: The driver's, when the run began or went on under other code; with code
            digests and git state.
        start: Existing weights that the run began with, if any.
        loader_files: What other libraries load the model by: canonical JSON, name → base64.
        replay_of: The run that this one repeats, if it is a replay. Replays are not resumed.
        earlier: Code that steps ran under before the run went on under that of ``environment``.
        ancestry: The runs that this one continues, the oldest first.
        selection: The search that the run is a trial of, if any.
        validation: What the run is judged by, if anything: metric, goal, and the digests of the
            validation data's prepare manifest and credentials.
        ended: The step before which the run ended early, once it did so.
        submission: Who submitted it, if it was submitted.
        archive: Digest of its working directory, if that was archived and no submission states it.
        gpus_per_worker: What Ray gives each worker.
        ema: How the base model's weights are averaged; None for not at all. A file's own section
            is not written a second time.
    """

    run_id: str
    started: datetime
    finished: datetime | None
    groups: Mapping[str, tuple[str, ...]]
    plan: BatchPlan
    policy: bytes
    root: bytes
    manifest: bytes
    credentials: Mapping[str, bytes]
    delegations: tuple[bytes, ...]
    config: Mapping[str, Any]
    experiment: Experiment | None
    environment: Environment
    start: Start | None
    loader_files: bytes = b"{}"
    replay_of: str | None = None
    ancestry: tuple[Ancestor, ...] = ()
    earlier: tuple[EarlierCode, ...] = ()
    selection: Selection | None = None
    validation: Mapping[str, Any] | None = None
    ended: int | None = None
    ema: Ema | None = None
    submission: Submission | None = None
    archive: str | None = None
    gpus_per_worker: float = 0

    @property
    def steps(self) -> int:
        """How many steps the finished run has."""
        return self.plan.max_steps if self.ended is None else self.ended

    @property
    def code(self) -> str:
        """Digest of govray's own source."""
        return self.environment.code_digest

    @property
    def code_archive(self) -> str | None:
        """Digest of the archived working directory, if there is one."""
        return (self.submission and self.submission.archive) or self.archive

    def write(self, run_folder: Place) -> None:
        """Write every file under ``run_folder/record``, ``run.json`` last."""
        write_files(
            run_folder,
            {
                "policy.dsse.json": self.policy,
                "root.json": self.root,
                "manifest.dsse.json": self.manifest,
                "credentials.jsonl": _lines(self.credentials.values()),
                "delegations.jsonl": _lines(self.delegations),
                LOADER_FILES: self.loader_files,
                SUMMARY: canonical_json.encode(self._summary()),
            },
        )

    def end(self, run_folder: Place, finished: datetime, *, ended: int | None = None) -> RunRecord:
        """The same run, finished, and recorded so.
        ``ended``: the step before which the run ended, if that was early."""
        done = replace(self, finished=finished, ended=ended)
        done.write_summary(run_folder)
        return done

    def under(self, environment: Environment, run_folder: Place, *, step: int) -> RunRecord:
        """The same run, that goes on in another environment, and recorded so.
        ``step``: the first step that no commit holds."""
        changed = replace(self, environment=environment)
        if step > max((each.step for each in self.earlier), default=0):
            then = EarlierCode(step=step, code_digest=self.code, source=self.environment.source)
            changed = replace(changed, earlier=(*self.earlier, then))
        changed.write_summary(run_folder)
        return changed

    def code_of(self, start: int, stop: int) -> Environment | None:
        """The environment under whose code steps ``start … stop - 1`` ran; None if they had
        several."""
        if not self.earlier or start >= self.earlier[-1].step:
            return self.environment
        then = next(each for each in self.earlier if start < each.step)
        if stop > then.step:
            return None
        return self.environment.model_copy(
            update={"code_digest": then.code_digest, "source": then.source}
        )

    def write_summary(self, run_folder: Place) -> None:
        """Record in the run's folder what of the record may change."""
        write_whole(run_folder / RECORD / SUMMARY, canonical_json.encode(self._summary()))

    def _summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "schema": _SCHEMA,
            "run": self.run_id,
            "started": format_time(self.started),
            "groups": {group: list(fqns) for group, fqns in self.groups.items()},
            "groupOrder": list(self.groups),
            "plan": self.plan.to_json(),
            "corpora": list(self.credentials),
            "config": dict(self.config),
            "environment": self.environment.to_json(),
        }
        if self.finished:
            summary["finished"] = format_time(self.finished)
        if self.experiment:
            summary["experiment"] = self.experiment.model_dump(mode="json")
        if self.start:
            summary["start"] = self.start.to_json()
        if self.replay_of:
            summary["replayOf"] = self.replay_of
        if self.ancestry:
            summary["ancestry"] = [each.to_json() for each in self.ancestry]
        if self.earlier:
            summary["earlierCode"] = [each.to_json() for each in self.earlier]
        if self.selection:
            summary["selection"] = self.selection.to_json()
        if self.validation:
            summary["validation"] = dict(self.validation)
        if self.ended is not None:
            summary["ended"] = self.ended
        if self.submission:
            summary["submission"] = self.submission.to_json()
        if self.archive:
            summary["archive"] = self.archive
        if self.gpus_per_worker:
            summary["gpusPerWorker"] = self.gpus_per_worker
        if self.ema != (self.experiment.ema if self.experiment else None):
            summary["ema"] = self.ema.model_dump(mode="json") if self.ema else None
        return summary


def read_record(run_folder: Place, most: int = MOST) -> RunRecord:
    """Read what `RunRecord.write` wrote, of ``most`` bytes.

    Raises:
        UsageError: The folder is not a run's.
        Malformed: A file was changed into something that does not parse.
        OSError: A file is missing or none, or the storage refuses.
    """
    folder = run_folder / RECORD
    if not (folder / SUMMARY).is_file():
        raise UsageError(
            "this is not the folder of a run",
            where=str(run_folder),
            do="Runs lie under the experiment's storage_path, one folder each",
        )
    files: dict[str, bytes] = {}
    for name in FILES:
        files[name] = read_regular(folder / name, most - sum(map(len, files.values())))
    return parse_record(files, where=str(folder))


def recorded_digests(run_folder: Place) -> set[str]:
    """The digests of what a run reads from its storage, as its record says. These are its archived
    working directory, and the prepared data of training and validation. Nothing else of the record
    is looked at. Raises as `read_record`."""
    where = run_folder / RECORD / SUMMARY
    summary: Any = canonical_json.parse_canonical(read_regular(where), where=str(where))
    try:
        sections = [summary.get(name) or {} for name in ("submission", "plan", "validation")]
        given = [summary.get("archive"), sections[0].get("archive")]
        given += [each.get("manifest") for each in sections[1:]]
        return {check_digest(each) for each in given if each is not None}
    except (AttributeError, TypeError, UsageError):
        raise Malformed("this is not what a run recorded", where=str(where)) from None


def write_files(run_folder: Place, files: Mapping[str, bytes]) -> None:
    """Write the files of a record under ``run_folder/record``, ``run.json`` last."""
    folder = run_folder / RECORD
    make_folder(folder)
    for name in FILES:
        write_whole(folder / name, files[name])


def parse_record(files: Mapping[str, bytes], *, where: str) -> RunRecord:
    """The record that these files hold."""
    place = f"{where}/{SUMMARY}"
    summary: Any = canonical_json.parse_canonical(files[SUMMARY], where=place)
    try:
        for name, kind in _PLAIN.items():
            if not isinstance(summary.get(name), kind | None):
                raise TypeError(f"{name} has another form")
        return _record(summary, files, where)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Malformed(
            f"this is not what a run recorded ({type(error).__name__}: {error})",
            where=place,
            do="Take the files of the record from their source again, unedited",
        ) from None


_PLAIN: dict[str, type] = {
    "run": str,
    "replayOf": str,
    "archive": str,
    "ended": int,
    "config": dict,
}
"""Fields that are taken as they are."""


def _record(summary: Any, files: Mapping[str, bytes], where: str) -> RunRecord:
    experiment = (
        parse_experiment(summary["experiment"], where=where) if "experiment" in summary else None
    )
    stated = summary.get("ema", experiment and experiment.ema)
    return RunRecord(
        run_id=summary["run"],
        started=parse_time(summary["started"]),
        finished=parse_time(summary["finished"]) if "finished" in summary else None,
        groups={group: tuple(summary["groups"][group]) for group in summary["groupOrder"]},
        plan=BatchPlan.from_json(summary["plan"]),
        policy=files["policy.dsse.json"],
        root=files["root.json"],
        manifest=files["manifest.dsse.json"],
        credentials=dict(
            zip(
                summary["corpora"],
                files["credentials.jsonl"].splitlines(),
                strict=True,
            )
        ),
        delegations=tuple(files["delegations.jsonl"].splitlines()),
        config=summary["config"],
        experiment=experiment,
        environment=Environment.from_json(summary["environment"], where=where),
        start=Start.from_json(summary["start"]) if "start" in summary else None,
        loader_files=files[LOADER_FILES],
        replay_of=summary.get("replayOf"),
        ancestry=tuple(
            Ancestor.from_json(each, where=where) for each in summary.get("ancestry", [])
        ),
        earlier=tuple(
            EarlierCode.from_json(each, where=where) for each in summary.get("earlierCode", [])
        ),
        selection=Selection.from_json(summary["selection"], where=where)
        if "selection" in summary
        else None,
        validation=summary.get("validation"),
        ended=summary.get("ended"),
        gpus_per_worker=float(summary.get("gpusPerWorker", 0)),
        ema=Ema.model_validate(stated) if stated else None,
        submission=Submission.from_json(summary["submission"], where=where)
        if "submission" in summary
        else None,
        archive=summary.get("archive"),
    )


def _lines(envelopes: Any) -> bytes:
    return b"".join(envelope.rstrip(b"\n") + b"\n" for envelope in envelopes)
