"""``govray replay``: run a run again, and say whether it gives the same bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import signing_key, trust, user_files
from govray.cli.error_report import describe
from govray.cli.option_group import run_of
from govray.cli.output import (
    PasswordFile,
    RevocationLists,
    StageBar,
    TrustRoot,
    field,
    line,
    note,
    report,
)
from govray.errors import CouldNotCheck, UsageError

if TYPE_CHECKING:
    from govray.governance.attestation.environment import Difference
    from govray.governance.formats.keys import Signer
    from govray.governance.trust.anchor import TrustAnchor
    from govray.governance.trust.trust_state import TrustState
    from govray.train.inputs.run_record import RunRecord
    from govray.train.replay.replay_outcome import ReplayFinding


def replay(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run's folder, below storage_path; or its id, in runs."
        ),
    ],
    without: Annotated[
        str | None, typer.Option("--without", metavar="CORPUS", help="Leave this corpus out.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="A:B", help="Steps A to B-1 only, from a kept checkpoint."),
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(
            "--storage", metavar="DIR", help="Where the replay goes. Default: RUN/replays."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Run nothing if this machine differs in anything.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Sign the outcome: a PEM file, or env:NAME."),
    ] = None,
    password_file: PasswordFile = None,
    party: Annotated[
        str | None,
        typer.Option(
            "--party", metavar="NAME", help="With --key: also sign a match as a second party."
        ),
    ] = None,
    trust_root: TrustRoot = None,
    revocations: RevocationLists = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the signed statement goes."),
    ] = None,
) -> None:
    """Train a run again by its record, and compare every byte.

    Ledger and checkpoints are compared. With --key, an operator or a witness signs the outcome;
    govray attest accepts only signed outcomes. With --party too, a second party first verifies
    RUN/model. If all is the same, it signs a statement, beside the attestation or as FILE.

    Exit code 0: identical. 1: something differs; the first step and tensor are named. 3: it could
    not be checked, because code or data changed or no checkpoint is left to compare.
    """
    from govray.train.inputs.run_record import read_record

    # Before torch is imported: a wrong folder is told at once.
    run = run_of(run)
    record = read_record(run)

    from govray.train.driver.ray_cluster import ray_running
    from govray.train.replay.replay_outcome import FOLDER, SIGNED
    from govray.train.replay.replayed_run import replay as replay_run
    from govray.train.replay.segments import parse_steps

    if record.code_archive:
        unpacks = f"govray runs code {quote(str(run))} OUT"
        note(f"code   archived as {record.code_archive}; {unpacks} unpacks it")
    signer, root = _signer(key, password_file, trust_root, revocations, record)
    witness = None
    if party is not None:
        if key is None or signer is None or steps or without:
            raise UsageError(
                "a second party signs a whole replay, under its name and with its key",
                where="--key, --party",
                do="Give both, and neither --steps nor --without",
            )
        anchor = trust.anchor(trust_root, revocations)
        witness = _Witness(run / "model", signer, party, anchor, to)
        root = witness.trust
    wanted = parse_steps(steps) if steps else None
    total = wanted[1] if wanted else record.plan.max_steps
    name = f"replay{f' without {without}' if without else ''}"
    with StageBar(name, total) as bar, ray_running():
        outcome = replay_run(
            run,
            without=without,
            steps=wanted,
            storage=storage,
            strict=strict,
            signer=signer,
            trust=root,
            on_differences=_tell_differences,
            on_step=lambda step, _: bar.update(step + 1, total),
        )
    told = outcome.to_json() | ({"archive": record.code_archive} if record.code_archive else {})
    folder = (storage or run / FOLDER) / outcome.run
    if signer:
        told["signed"] = str(folder / SIGNED)
    if witness and outcome.identical:
        told["statement"] = str(witness.sign(folder, outcome))
    report(told)
    _tell(run, outcome, told.get("signed"))
    if witness and outcome.identical:
        field("statement", told["statement"])
    if outcome.identical is None:
        incomplete = CouldNotCheck(
            f"the ledger is the same, but no checkpoint of step {outcome.stop} is kept, so "
            "weights could not be compared",
            where=str(run),
            do="End --steps at a step whose checkpoint is kept",
        )
        # Printed here: with --json, what was found is the one document.
        describe(incomplete).print(as_json=False)
        raise typer.Exit(incomplete.exit_code)
    if not outcome.identical:
        raise typer.Exit(1)


def _signer(
    key: str | None,
    password_file: Path | None,
    root: Path | None,
    lists: list[Path] | None,
    record: RunRecord,
) -> tuple[Signer | None, TrustState | None]:
    """The signer of the outcome, and the trust that names the key; before Ray starts."""
    from govray.train.inputs import operator_key

    if key is None:
        return None, None
    signer = signing_key.load(key, password_file)
    operator_key.take(key)
    if root is None:
        return signer, None
    anchor = trust.anchor(root, lists)
    return signer, anchor.load(at=trust.reference_time(None), delegations=record.delegations)


class _Witness:
    """A second party's verified model and key; made before anything runs."""

    def __init__(
        self, model: Path, signer: Signer, party: str, anchor: TrustAnchor, to: Path | None
    ) -> None:
        from govray.governance.attestation import model_folder
        from govray.governance.verify.verifier import verify
        from govray.train.inputs.run_record import read_record
        from govray.train.replay.witness import require_witness

        self._party = party
        self._to = to or model / model_folder.replay_file(party)
        if to is None and model_folder.replay_party(model_folder.replay_file(party)) is None:
            raise UsageError(
                f"{party!r} is not a name", where="--party", do="Use letters, digits, '.', '_', '-'"
            )
        if not os.access(self._to.parent, os.W_OK):
            raise UsageError(
                "the statement can't be written there", where=str(self._to), do="Give --out FILE"
            )
        now = trust.reference_time(None)
        self._model = verify(model, trust_root=anchor, at=now)
        self._signer = signer
        self.trust = self._model.trust_root
        require_witness(self._model, read_record(model.parent), self._signer.public_key, at=now)

    def sign(self, replayed: Path, outcome: ReplayFinding) -> Path:
        """Sign the outcome; returns where the statement is."""
        from govray.train.replay.witness import sign_replay

        envelope = sign_replay(
            self._model,
            replayed,
            outcome,
            signer=self._signer,
            party=self._party,
            at=trust.reference_time(None).replace(microsecond=0),
        )
        user_files.write(self._to, envelope)
        return self._to


def _tell_differences(found: Sequence[Difference]) -> None:
    for each in found:
        note(f"differs here  {each}")


def _tell(run: Path, outcome: ReplayFinding, signed: str | None) -> None:
    verdict = {True: "IDENTICAL", False: "DIFFERENT", None: "LEDGER IDENTICAL"}[outcome.identical]
    without = f", without {outcome.without}" if outcome.without else ""
    line(f"{verdict}  steps {outcome.start} to {outcome.stop - 1}{without}", style="bold")
    checkpoints = ", ".join(map(str, outcome.checkpoints)) or "none is kept"
    field("compared", f"ledger leaves, and the checkpoints of steps {checkpoints}")
    for name, digest in outcome.original.items():
        field(name, digest)
        if (other := outcome.replayed.get(name, "absent")) != digest:
            field("replayed", other)
    if outcome.leaf:
        field("first leaf", f"of {outcome.leaf}")
    if outcome.tensor:
        field("first tensor", str(outcome.tensor))
        field("arose in", f"steps {outcome.tensor.after} to {outcome.tensor.step - 1}")
    for each in outcome.differences:
        field("differed", each)
    field("replay", outcome.run)
    field("signed", signed or "by nobody: govray attest accepts only what --key signs")
    if signed and outcome.identical and outcome.whole and outcome.without:
        line(f"Next  govray attest {quote(str(run))}   states it in the attestation")
