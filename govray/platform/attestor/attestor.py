"""From a finished run to a signed model, in eight steps, none of which the submitter can take.

1. Nobody else attests the run, and it has not been attested.
2. Its newest attempt has finished and ended, and no second process posted as that attempt.
3. Its folder is opened once, and copied once (`staging.py`). It is never opened again.
4. The last registered commit is there, and all that is read of it has its digest.
5. Registered, started, finished, now: in this order, by the attestor's clock, root and lists.
   Finished is when the register was told so.
6. Everything that `verify` does, at full depth, on the copy.
7. The signer compares with the register, and signs. It compares before step 6, and signs the
   ledger's head there; the attestation it signs behind it.
8. Ordinary `verify` on the copy. Then it is renamed into a storage where no job writes, and the
   register says so, by compare-and-set.

A process that reads without a key does steps 4 and 6 and the first half of 8 (`parser.py`).

A kill between any two steps leaves a copy that the next pass throws away, or a model that it finds
under its final name. So a run is attested once. What is refused ends as NOT_ATTESTED with the step
and the reason. What could not be checked is tried again, while the parser has time for the run.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from govray.errors import CouldNotCheck, GovrayError, InfrastructureFailed, Refused
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.attestation.signing import UnsignedModel, sign_head
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import Signer
from govray.governance.formats.statement import read
from govray.governance.record.prepare_manifest import MANIFEST_FILE
from govray.governance.trust.trust_state import TrustState
from govray.governance.verify.envelope_steps import check_execution
from govray.platform.attestor.comparison import compare, execution
from govray.platform.attestor.parser import MORE
from govray.platform.attestor.register import Register
from govray.platform.attestor.register_tables import Accepted, Posted, RunOutcome
from govray.platform.attestor.settings import AttestorSettings
from govray.platform.attestor.staging import copy_once, printable_name
from govray.storage.atomic_file import make_folder, sync_folder
from govray.storage.folder_lock import folder_lock
from govray.storage.regular_file import read_regular
from govray.storage.staged_folder import sync_all
from govray.train.checkpoint.pins import folder_name

RUN, MADE, MODEL = "run", "made", "model"
"""In staging: the copy of the run's folder; what the parser makes of it; and a copy of that."""

MOST_TRIES = 8
_LONGEST_WHY = 480
FIRST_TRY_S, LONGEST_TRY_S = 10.0, 3600.0


@dataclass(frozen=True)
class Tries:
    """How often a run could not be checked, when it is due again, and what its parsers took."""

    count: int = 0
    due: datetime | None = None
    seconds: float = 0.0

    def again(self, now: datetime) -> Tries:
        """After one more."""
        wait = min(FIRST_TRY_S * 4**self.count, LONGEST_TRY_S)
        return replace(self, count=self.count + 1, due=now + timedelta(seconds=wait))


_log = logging.getLogger(__name__)


class Parser(Protocol):
    """What reads hostile files, within so many seconds; see `parser.py`."""

    def __call__(
        self, task: str, *, read: tuple[Path, ...], write: Path, within: float, **given: Any
    ) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Attestor:
    """Attests what the register has as finished. See the module.

    Attributes:
        signers: All sign; the first one signs the ledger's head alone.
        clock: The only time that counts.
    """

    settings: AttestorSettings
    register: Register
    signers: tuple[Signer, ...]
    parser: Parser
    clock: Callable[[], datetime]
    tries: dict[str, Tries] = field(default_factory=dict)

    def once(self, stopping: Callable[[], bool] = lambda: False) -> Iterator[RunOutcome]:
        """Attest what waits for it and is due; what was decided of each.

        ``stopping`` is asked before each run, and ends the pass. What could not be checked is tried
        again, later each time, behind what was tried less often. After `MOST_TRIES` it is
        NOT_ATTESTED.
        """
        waiting = self.register.waiting()
        for submission, run in sorted(waiting, key=lambda each: self._tries(each[1]).count):
            if stopping():
                return
            due = self._tries(run).due
            if due is not None and self.clock() < due:
                continue
            try:
                found = self.attest(submission, run)
            except Exception as error:  # of this run: the others have their turn
                _log.warning("%s could not be attested: %s", run, error)
                tried = self.tries[run] = self._tries(run).again(self.clock())
                if tried.count < MOST_TRIES:
                    continue
                said = error.what if isinstance(error, GovrayError) else type(error).__name__
                why = f"{tried.count} tries did not end: {_with_step(error, said)}"
                found = self._settled(submission, run, why=why)
            self.tries.pop(run, None)
            yield found

    def _tries(self, run: str) -> Tries:
        return self.tries.get(run, Tries())

    def attest(self, submission: str, run: str) -> RunOutcome:
        """Attest one run.

        Returns:
            What the register then has of it: ATTESTED with the digest of its attestation, or
            NOT_ATTESTED with the reason.

        Raises:
            Refused: It is decided already.
            CouldNotCheck, InfrastructureFailed: Nothing is decided, and another try may go well.
        """
        staging = self.settings.staging
        with folder_lock(staging / printable_name(run)):  # 1
            for left in staging.glob(f"{printable_name(run)}.*.copy"):
                shutil.rmtree(left, ignore_errors=True)  # of a pass that was killed
            work = staging / f"{printable_name(run)}.{secrets.token_hex(8)}.copy"
            if (found := self.register.attested(submission, run)) is not None:
                raise Refused(
                    f"it is {found.state} already",
                    where=f"run {run}",
                    do="Attesting it again is a verb of its own: govray attest RUN",
                )
            try:
                digest = self._attested(submission, run, work)
                found = self._settled(submission, run, digest=digest)
            except (CouldNotCheck, InfrastructureFailed):
                raise
            except GovrayError as error:
                why = _with_step(error, str(error).replace(f"{work / RUN}/", ""))
                found = self._settled(submission, run, why=why)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            return found

    def _attested(self, submission: str, run: str, work: Path) -> str:
        """Steps 2 to 8 but the last: the digest of the attestation, whose model is in its place."""
        step = 2
        try:
            accepted = self.register.accepted(submission)
            target = self.settings.models / printable_name(run)
            last = self.register.ended(submission, run)
            if last is None:
                raise CouldNotCheck("its newest attempt has not ended", where=f"run {run}")
            if last.commit is None:
                raise Refused("it has registered no commit", where=f"run {run}")
            attempt = self.register.attempts(submission)[-1]
            if target.exists():  # an earlier pass ended behind the rename
                step = 8
                return self._published(target, accepted, last)
            step = 3
            make_folder(work / MADE / MODEL)
            # The folder of a trial lies in its search's.
            names = [run] if run == accepted.run else [accepted.run, run]
            bounds = self.settings.bounds
            copy_once(self.settings.runs, names, work / RUN, _wanted(last), bounds)
            step = 4
            prepared = self._prepared(accepted)
            told = self._ask(
                run,
                "read",
                read=(work / RUN, *prepared),
                write=work / MADE,
                run=str(work / RUN),
                model=str(work / MADE / MODEL),
                prepared=[str(each) for each in prepared],
                commit=last.commit,
                ended=None if run == accepted.run else last.at,
            )
            found = UnsignedModel.from_json(told, where="parser")
            found = _finished(found, self.register.finished(submission, run))
            step = 5
            now = self.clock()
            stated = execution(accepted, attempt, last, at=now)
            check_execution(found.claims, stated, now)
            step = 7  # its first half: the ledger's head is signed next
            compare(found, accepted, last)
            headed = sign_head(found, stated, self.signers[0])
            step = 6
            # From here on it lies where no parser writes, or ever wrote.
            copy_once(work, [MADE, MODEL], work / MODEL, lambda name: True, bounds)
            _put(work, model_folder.CHECKPOINT, headed.checkpoint)
            self._check(
                run,
                "check",
                work,
                run=str(work / RUN),
                payload=headed.payload.decode(),
                key=self.signers[0].public_key.to_pem().decode(),
                prepared=[str(each) for each in prepared],
                more=prepared,
            )
            step = 7
            signed = headed.signed(self.signers)[model_folder.ATTESTATION]
            _put(work, model_folder.ATTESTATION, signed)
            self._cosign_manifest(work / MODEL / model_folder.MANIFEST)
            digest = canonical_json.sha256(headed.payload)
            step = 8
            if self._check(run, "verified", work) != digest:
                raise Refused("what verifies is another statement", where=f"run {run}")
            _publish(work / MODEL, target)
            return digest
        except Exception as error:
            error.add_note(f"step {step}")
            raise

    def _prepared(self, accepted: Accepted) -> tuple[Path, ...]:
        """The prepared data that the parser may read: all, unless the project names some."""
        found = sorted(self.settings.prepared.glob(f"[!.]*/{MANIFEST_FILE}"))
        return tuple(
            each.parent
            for each in found
            if not accepted.manifests
            or _manifest(each, each.stat().st_ctime_ns) in accepted.manifests
        )

    def _cosign_manifest(self, path: Path) -> None:
        """Sign the manifest by the keys that have not: one of ours signed it at preparation."""
        envelope = _envelope(path)
        keys = {each.public_key: each for each in self.signers}
        signed = {key for key in keys if envelope.signed_by([key])}
        if signed and (missing := [keys[key] for key in keys if key not in signed]):
            path.write_bytes(envelope.cosign(missing))

    def _published(self, target: Path, accepted: Accepted, last: Posted) -> str:
        """The digest of the attestation of a model that is in its place. It verified before it was
        moved there; here it has to be ours, of this submission, run and commit."""
        envelope = _envelope(target / model_folder.ATTESTATION)
        found = read(Attestation, envelope, where="attestation")
        stated = found.document.execution
        signed = envelope.signed_by([self.signers[0].public_key])
        named = (stated.submission, found.document.run.id, stated.commit)
        if not signed or named != (accepted.submission, last.run, last.commit):
            raise Refused("another model lies in its place", where=f"run {last.run}")
        return found.digest

    def _check(
        self, run: str, task: str, work: Path, /, more: tuple[Path, ...] = (), **given: Any
    ) -> Any:
        """Ask the parser for a verdict by the attestor's own root, lists and time."""
        settings = self.settings
        given = {
            "model": str(work / MODEL),
            "trust_root": str(settings.trust_root),
            "revocations": [str(each) for each in settings.revocations],
            "at": format_time(self.clock()),
        } | given
        answers = work / f"{task}.answers"
        answers.mkdir(mode=0o700, parents=True)
        anchors = (settings.trust_root, *settings.revocations)
        folders = (work / RUN, work / MODEL, *anchors, *more)
        return self._ask(run, task, read=folders, write=answers, **given)

    def _ask(self, run: str, task: str, /, **given: Any) -> Any:
        """The parser's answer, within what is left of the run's time by the clock.

        A parser that was taken over could sleep, in every try, and keep other runs waiting.
        """
        tried, began = self._tries(run), monotonic()
        left = self.settings.confinement.of_a_run - tried.seconds
        if left <= 0:
            raise Refused(
                "reading it took all the time that its parsers have together",
                where=f"run {run}",
                do=MORE,
            )
        try:
            return self.parser(task, within=left, **given)
        finally:
            self.tries[run] = replace(tried, seconds=tried.seconds + monotonic() - began)

    def _settled(
        self, submission: str, run: str, *, digest: str | None = None, why: str | None = None
    ) -> RunOutcome:
        new = RunOutcome(
            submission=submission,
            run=run,
            state="ATTESTED" if digest else "NOT_ATTESTED",
            digest=digest,
            why=why and why[:_LONGEST_WHY],
            at=format_time(self.clock()),
        )
        if not self.register.settle(new, before=None):
            raise Refused("another process decided it meanwhile", where=f"run {run}")
        return new


def _wanted(last: Posted) -> Callable[[str], bool]:
    """What of a run's folder is copied: its record, the last commit, and what commits share."""
    folders = ("record/", f"{folder_name(last.step)}/", f"{model_folder.GOVERNANCE}/")

    def wanted(name: str) -> bool:
        return name.startswith(folders) or any(each.startswith(name) for each in folders)

    return wanted


def _with_step(error: Exception, said: str) -> str:
    """What is said of an error, behind the step that it was raised in."""
    return ": ".join([*getattr(error, "__notes__", ()), said])


def _finished(found: UnsignedModel, at: str) -> UnsignedModel:
    """The same of a run that finished when the register was told so. No commit holds its end, and
    one that lay too early would hide that a credential expired before."""
    claims = found.claims
    run = claims.run.model_copy(update={"finished": at})
    return found.model_copy(update={"claims": claims.model_copy(update={"run": run})})


def _envelope(path: Path) -> Envelope:
    data = read_regular(path, model_folder.MAX_ENVELOPE)
    return Envelope.parse(data, where=path.name)


@lru_cache(maxsize=4096)
def _manifest(path: Path, _changed: int) -> str:
    """The digest of a manifest, read once however many runs are attested."""
    return canonical_json.sha256(_envelope(path).payload)


def check_keys(trust: TrustState, signers: Sequence[Signer]) -> None:
    """Return if what these keys sign together counts as an operator's. Raises `Refused`."""
    keys = {each.public_key for each in signers}
    operators = [each for each in trust.authorities if each.role == "operator"]
    if not any(len(keys & {*each.keys}) >= each.threshold for each in operators):
        needed = ", ".join(f"{each.name} ({each.threshold})" for each in operators)
        raise Refused(
            f"these {len(keys)} keys are too few of any operator of the trust root",
            where="keys",
            do=f"Name as many keys of one operator as have to sign: {needed or 'it names nobody'}",
        )


def _put(work: Path, name: str, data: bytes) -> None:
    """Add a signed file to the model."""
    try:
        with open(work / MODEL / name, "xb") as file:
            file.write(data)
    except FileExistsError:
        raise Refused("the parser made a file that is the signer's", where=name) from None


def _publish(model: Path, target: Path) -> None:
    """Make a verified model appear, whole, and durably."""
    make_folder(target.parent)
    for each in (model, *model.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    sync_all(model)
    os.rename(model, target)
    sync_folder(target.parent)
