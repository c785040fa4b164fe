"""``govray runs``: list and control runs in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import remote_runs, trust, user_files
from govray.cli.option_group import Run, Storage
from govray.cli.output import RevocationLists, TrustRoot, field, line, print_table, report, table
from govray.cli.process import account_name
from govray.cli.remote_runs import EveryLog, Lines
from govray.cli.train import drive
from govray.errors import CouldNotCheck, GovrayError, Refused, UsageError
from govray.storage.place import Place

if TYPE_CHECKING:
    from govray.governance.submission.submission import Submission
    from govray.train.inputs import run_listing
    from govray.train.inputs.experiment_config import Experiment

app = typer.Typer(help="List runs, look into one, stop it, kill it or resume it.")

Case = Annotated[
    str, typer.Option("--for", metavar="CASE", help="The case that it is held for, a line of text.")
]

ASKED = ("metrics", "compare", "download")
"""Verbs that ask a service always: no folder answers them."""

_SAID = ("description", "labels", "notes")
_DEFAULT = Path("runs")
_POLL_S = 0.2
_TAIL_BYTES = 1 << 16


@app.command("ls")
def list_all(
    storage: Storage = _DEFAULT,
) -> None:
    """List the runs below a storage path, and their states."""
    from govray.train.inputs import run_listing

    # The default need not be there yet. A folder that was typed and is not there is a slip.
    if storage != _DEFAULT and isinstance(storage, Path) and not storage.is_dir():
        raise UsageError(
            "there is no such folder",
            where=str(storage),
            do="Give the storage_path of the experiments, or start a run: govray train FILE",
        )
    found, damaged = [], {}
    for folder in run_listing.list_runs(storage):
        try:
            found.append(run_listing.inspect(folder))
        except (GovrayError, OSError) as error:  # one that cannot be read hides no other
            damaged[folder] = str(error)
    report(
        [_to_json(each) for each in found]
        + [
            {"run": folder.name, "folder": str(folder), "state": "damaged", "why": why}
            for folder, why in damaged.items()
        ]
    )
    if not found and not damaged:
        line(f"No run lies below {_shown(storage)}. Start one: govray train FILE")
        return
    grid = table("run", "state", "step", "loss", "age", right=("step", "loss", "age"))
    for each in found:
        loss = "" if each.loss is None else f"{each.loss:.3f}"
        grid.row(
            each.folder.name, each.state, f"{each.step}/{each.max_steps}", loss, _age(each.started)
        )
    print_table(grid)
    for folder, why in damaged.items():
        field("damaged", f"{folder.name}: {why}")


@app.command("show")
def show(run: Run) -> None:
    """Show the state of a run, and what happened to it."""
    from govray.train.checkpoint.holds import read_holds
    from govray.train.inputs import run_listing
    from govray.train.inputs.run_record import read_record
    from govray.train.run_folder import events

    found, log, record = run_listing.inspect(run), events.read(run), read_record(run)
    held = read_holds(run)
    told: dict[str, Any] = {"holds": held} if held else {}
    if record.submission:
        told["submission"] = record.submission.to_json()
    if record.code_archive:
        told["archive"] = record.code_archive
    file = record.experiment
    said = {name: getattr(file, name) for name in _SAID if file and getattr(file, name)}
    told |= said
    report({**_to_json(found), **told, "events": [event.to_json() for event in log]})
    line(f"{found.folder.name}  {found.state}")
    for name, value in said.items():
        for text in value.splitlines() if isinstance(value, str) else [", ".join(value)]:
            field(name, text)
    if record.submission:
        field("who", record.submission)
    if record.code_archive:
        field("code", f"{record.code_archive}, unpacked by govray runs code")
    field("step", f"{found.step} of {found.max_steps}")
    if found.loss is not None:
        field("loss", f"{found.loss:.3f}")
    field("attempts", found.attempts)
    if found.world_size is not None:
        field("workers", found.world_size)
    if found.why:
        field("why", found.why)
    for case, placed in sorted(held.items()):
        field("held", f"for {case}, since {placed['at']}, by {placed['by']}")
    for event in log:
        line(f"{event.at}  {event.text}")
    if found.state in ("stopped", "finished", "failed", "killed", "interrupted"):
        line(f"Next  govray runs resume {quote(str(run))}")


@app.command("logs")
def logs(
    run: Run,
    lines: Lines = 20,
    every: EveryLog = False,
) -> None:
    """Show the end of each worker's output: as the run's folder keeps it, or from this machine."""
    from govray.platform.store import run_logs
    from govray.train.inputs import run_listing
    from govray.train.run_folder.shipped_log import worker_log

    workers = run_listing.workers(run)
    kept = [each.name for each in run_logs.listed(str(run))]
    of_last = {worker_log(each.rank, each.attempt): each for each in workers}
    shown: list[dict[str, Any]] = []
    for name in dict.fromkeys([*(kept if every else ()), *of_last]):
        part = run_logs.read(str(run), name, start=None, most=lines)
        worker = of_last.get(name)
        tail = [each.text for each in part.lines] if part is not None else None
        if tail is None and worker is not None:
            tail = _tail(worker.log, lines)
        said: dict[str, Any] = {"name": name, "kept": part is not None, "tail": tail}
        if worker is not None:
            said |= {
                "rank": worker.rank,
                "host": worker.host,
                "pid": worker.pid,
                "log": worker.log,
            }
        shown.append(said)
    report(shown)
    for said in shown:
        who = (
            f"rank {said['rank']}  process {said['pid']} on {said['host']}" if "pid" in said else ""
        )
        line(f"{said['name']}  {who}".rstrip())
        if said["tail"] is None:
            line("  neither kept nor on this machine; the Ray dashboard of its cluster may have it")
        for each in said["tail"] or ():
            line(f"  {each}")


@app.command("stop")
def stop(run: Run) -> None:
    """Stop a run after its current step and a commit; wait until it has stopped."""
    import time

    from govray.train.run_folder import run_lock, stop_request

    _require_driven(run)
    stop_request.request(run, "govray runs stop")
    while run_lock.driving(run):
        time.sleep(_POLL_S)
    _tell_state(run)


@app.command("kill")
def kill(run: Run) -> None:
    """End a run at once; steps since its last checkpoint are lost."""
    import os
    import signal
    import time

    from govray.train.run_folder import clock, events, run_lock

    _require_driven(run)
    holder = run_lock.holder(run)
    events.append(run, events.Killed(at=clock.now(), by="govray runs kill"))
    run_lock.take_over(run)  # its workers, wherever they are, may not write any more
    if holder is not None and holder.here:
        os.kill(holder.pid, signal.SIGKILL)
        while run_lock.driving(run):
            time.sleep(_POLL_S)
    else:
        where = holder.host if holder else "another machine"
        line(f"The driver is on {where}; its workers end at their next step.")
    _tell_state(run)


@app.command("hold")
def hold(run: Run, case: Case) -> None:
    """Keep all that a run has: nothing deletes its checkpoints or its model's adapters."""
    from govray.train.checkpoint import holds
    from govray.train.run_folder import clock

    found = holds.hold(_on_a_disk(run), case, by=account_name(), at=clock.now())
    _tell_holds(run, found)


@app.command("release")
def release(run: Run, case: Case) -> None:
    """Release the hold of a case. Others stay."""
    from govray.train.checkpoint import holds

    _tell_holds(run, holds.release(_on_a_disk(run), case))


@app.command("code")
def code(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write, a new one.")],
) -> None:
    """Unpack the working directory that a run's job had, if it was archived.

    Its digest is checked first. Nothing of it is executed.
    """
    from govray.governance.submission.code_archive import open_archive
    from govray.train.inputs.recorded_inputs import code_storage
    from govray.train.inputs.run_record import read_record

    archive = read_record(run).code_archive
    if archive is None:
        raise CouldNotCheck(
            "the run recorded no archive of its working directory",
            where=str(run),
            do="Its code's digests and commit are in record/run.json, under environment",
        )
    open_archive(code_storage(run, archive), archive, out)
    report({"archive": archive, "folder": str(out)})
    line(f"Unpacked {archive} in {out}")


@app.command("resume")
def resume(
    run: Run,
    submission: Annotated[
        Path | None,
        typer.Option(
            "--submission",
            metavar="FILE",
            help="The submission's file, where the run was submitted.",
        ),
    ] = None,
    carried: Annotated[
        bool,
        typer.Option(
            "--carried",
            help="Go on with the policy and credentials that its checkpoint carries. The trust "
            "root that is given or pinned decides about them.",
        ),
    ] = False,
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    other_code: Annotated[
        bool,
        typer.Option(
            "--other-code",
            help="Go on although govray's code, or the model's, is not what the run began with. "
            "The model will say so.",
        ),
    ] = False,
) -> None:
    """Continue a run, or attest a finished one."""
    from govray.governance.submission.submission import read_submission
    from govray.train.driver.trainer import GovernedTrainer
    from govray.train.inputs.run_record import read_record

    experiment = read_record(run).experiment
    if experiment is None:
        raise UsageError(
            "the run was started from a script, so there is no experiment to continue",
            where=str(run),
            do="Run the script with GovernedTrainer(experiment, resume=RUN)",
        )
    if (run / "model").is_dir():
        raise UsageError("the run is finished and attested", where=str(run))
    of = read_submission(submission) if submission else None
    if carried:
        _resume_carried(run, experiment, trust_root, revocations or (), of, other_code)
        return
    if trust_root or revocations:
        raise UsageError(
            "the experiment names the trust root and the lists of this run",
            where="--trust-root" if trust_root else "--revocations",
            do="Give them with --carried",
        )
    drive(
        experiment,
        lambda **more: GovernedTrainer(
            experiment, resume=run, submission=of, other_code=other_code, **more
        ),
    )


def _resume_carried(
    run: Place,
    experiment: Experiment,
    trust_root: Path | None,
    revocations: Sequence[Path],
    submission: Submission | None,
    other_code: bool,
) -> None:
    """Go on with what the newest checkpoint carries, under a trust root from elsewhere."""
    from dataclasses import replace

    from govray.train.checkpoint.storage import recorded_url
    from govray.train.driver.trainer import GovernedTrainer
    from govray.train.inputs.run_listing import OTHER_CODE
    from govray.train.inputs.run_record import read_record
    from govray.train.state.carried_inputs import carried_inputs
    from govray.train.validation.validation_data import carried_validation

    path = trust.root_path(trust_root)
    if isinstance(run, Path) and path.resolve().is_relative_to(run.resolve()):
        raise Refused(
            "the trust root lies inside the run that it would vouch for",
            where=str(path),
            do="Get the root from its owner, not with the run",
        )
    shared = carried_inputs(
        run,
        user_files.read(path),
        revocations,
        submission=submission,
        allowed=OTHER_CODE if other_code else frozenset(),
    )
    record = read_record(run)
    if experiment.validation is not None:
        shared = replace(
            shared, validation=carried_validation(experiment.validation, run, record, shared.inputs)
        )
    # The rows are packed: no tokenizer is read, and the loop gets what it got before.
    parts = {
        "data": experiment.data.model_copy(update={"tokenizer": "bytes"}),
        "checkpoint": experiment.checkpoint.model_copy(update={"storage": recorded_url(run)}),
    }
    drive(
        experiment,
        lambda **more: GovernedTrainer(
            experiment.model_copy(update=parts),
            resume=run,
            shared=shared,
            train_loop_config=record.config,
            other_code=other_code,
            **more,
        ),
    )


def _require_driven(run: Place) -> None:
    from govray.train.inputs import run_listing
    from govray.train.run_folder import run_lock

    found = run_listing.inspect(run)
    if not run_lock.driving(run):
        raise UsageError(f"the run is {found.state}, nobody drives it", where=str(run))


def _tell_state(run: Place) -> None:
    from govray.train.inputs import run_listing

    found = run_listing.inspect(run)
    report(_to_json(found))
    line(f"{found.folder.name}  {found.state} at step {found.step} of {found.max_steps}")


def _shown(storage: Place) -> str:
    return "this folder" if str(storage) == "." else str(storage)


def _to_json(found: run_listing.ListedRun) -> dict[str, Any]:
    value = {
        "run": found.folder.name,
        "folder": str(found.folder),
        "state": found.state,
        "why": found.why,
        "step": found.step,
        "maxSteps": found.max_steps,
        "loss": found.loss,
        "workers": found.world_size,
        "attempts": found.attempts,
        "started": found.started,
    }
    return {name: each for name, each in value.items() if each is not None}


def _age(started: str) -> str:
    from govray.governance.formats.document import parse_time
    from govray.train.run_folder.clock import instant

    age = instant() - parse_time(started)
    for unit, length in (("d", timedelta(days=1)), ("h", timedelta(hours=1))):
        if age >= length:
            return f"{age // length} {unit}"
    return f"{age // timedelta(minutes=1)} min"


def _tail(log: str | None, lines: int) -> list[str] | None:
    if log is None:
        return None
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, Path(log).stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").expandtabs(4).splitlines()[-lines:]
    except OSError:
        return None


def _on_a_disk(run: Place) -> Path:
    """The folder of a run, which can be locked."""
    if not isinstance(run, Path):
        raise UsageError(
            "a run's folder lies on a disk",
            where=str(run),
            do="Below a URL the store's own holds count, such as S3 Object Lock",
        )
    if not run.is_dir():
        raise UsageError("there is no such folder", where=str(run), do="Name the folder of a run")
    return run


def _tell_holds(run: Place, held: dict[str, dict[str, str]]) -> None:
    report({"run": str(run), "holds": held})
    cases = f"held for {len(held)} case{'s' * (len(held) > 1)}"
    line(f"{run.name}  {cases if held else 'is not held'}")


app.registered_commands += [
    each for each in remote_runs.app.registered_commands if each.name in ASKED
]
