"""A run that has ended, and an attestor over the runs of a deployment."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.submission.register_forms import AcceptanceForm, AttemptForm, PostForm
from govray.governance.trust.trust_state import TrustState
from govray.platform.attestor.attestor import Attestor
from govray.platform.attestor.confinement import ParserLimits
from govray.platform.attestor.parser import answer, confined, taken
from govray.platform.attestor.register import Register
from govray.platform.attestor.register_tables import RunOutcome
from govray.platform.attestor.settings import AttestorSettings
from govray.platform.attestor.tasks import TASKS
from govray.train.checkpoint import commit_folder
from govray.train.inputs.run_record import read_record
from govray.train.run_folder.clock import instant
from tests.support.deployment import Deployment


def root_digest(here: Deployment) -> str:
    """Of the deployment's trust root."""
    return TrustState.load(here.root.read_bytes(), at=instant()).digest


def attestor_of(here: Deployment, register: Register, storage: Path, folder: Path) -> Attestor:
    """With the deployment's key and root; its models go below ``folder``."""
    settings = AttestorSettings.model_validate(
        {
            "register": "unused",
            "token_file": "token",
            "storage": str(storage),
            "prepared": str(storage / "prepared"),
            "models": "models",
            "staging": "staging",
            "keys": [str(here.key)],
            "trust_root": str(here.root),
        },
        context={"folder": folder},
    )
    return Attestor(
        settings=settings,
        register=register,
        signers=(here.signers["operator"],),
        parser=confined(ParserLimits(memory=2 << 30, seconds=120)),
        clock=instant,
    )


SUBMISSION = "s-20261127-120000-00a1b2c3"
SECRET = "an attempt's secret"


@dataclass(frozen=True)
class Room:
    """Where a run lies that has ended, and the attestor that is to sign it."""

    run: Path
    attestor: Attestor
    deployment: Deployment

    @property
    def model(self) -> Path:
        return self.attestor.settings.models / self.run.name

    def attest(self) -> RunOutcome:
        return self.attestor.attest(SUBMISSION, self.run.name)

    def with_parser(self, parser: Callable[..., Any]) -> Room:
        return replace(self, attestor=replace(self.attestor, parser=parser))


def forms(run: Path, at: str) -> Iterator[PostForm]:
    """What the job of a run posts that commits once. Of its commit nothing is believed."""
    folder = max(run.glob("checkpoint_*"))
    digest = canonical_json.sha256((folder / commit_folder.MANIFEST).read_bytes())
    signed = run / "model" / "governance" / "attestation.dsse.json"
    if signed.is_file():
        head = json.loads(signed.read_bytes())
        ledger = canonical_json.parse(base64.b64decode(head["payload"]))["predicate"]["ledger"]
    else:
        ledger = json.loads((folder / "state.json").read_bytes())["ledger"]
    here = {
        "branch": 0,
        "step": int(folder.name.rpartition("_")[2]),
        "commit": digest,
        "ledger_size": int(ledger["size"]),
        "ledger_root": ledger["root"],
    }
    yield PostForm(run=run.name, sequence=0, kind="started")
    yield PostForm(run=run.name, sequence=1, kind="committed", **here)
    for sequence, kind in ((2, "finished"), (3, "ended")):
        yield PostForm(run=run.name, sequence=sequence, kind=kind, previous=digest, **here)


def first_attempt(accepted: AcceptanceForm) -> AttemptForm:
    secret = f"sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}"
    return AttemptForm(number=1, secret=secret, facts=accepted.facts_digest)


def here(task: str, *, read: tuple[Path, ...], write: Path, within: float, **given: Any) -> Any:
    """The parser in this process, which costs no start of another."""
    return taken(json.loads(json.dumps(answer(partial(TASKS[task], **given)))))


@contextmanager
def ended(
    alone: Path,
    deployment: Deployment,
    folder: Path,
    change: Callable[[Path], object] = lambda run: None,
    *,
    search: str | None = None,
) -> Iterator[Room]:
    """A copy of a finished run, registered as a job would, and its attestor, whose parser's tasks
    run in this process. ``change``: what the job does to its folder before it posts. ``search``:
    whose trial the run is."""
    storage = folder / "attested-runs"
    shutil.copytree(alone.parent / "prepared", storage / "prepared")
    run = Path(shutil.copytree(alone, storage / (search or "") / alone.name))
    record = read_record(run)
    register = Register(f"sqlite:///{folder / 'register.db'}")
    registered = format_time(record.started - timedelta(seconds=5))
    accepted = AcceptanceForm(
        submission=SUBMISSION,
        run=search or run.name,
        kind="tune" if search else "train",
        user="ada",
        project="research",
        submitted=format_time(record.started - timedelta(seconds=9)),
        config=canonical_json.sha256(b"file"),
        isolation="sharedCluster",
    )
    register.accept(accepted, root=root_digest(deployment), at=registered)
    register.open(SUBMISSION, first_attempt(accepted), at=registered)
    change(run)
    for form in forms(run, registered):
        register.post(SUBMISSION, SECRET, form, at=format_time(instant()))
    shutil.rmtree(run / "model", ignore_errors=True)
    attestor = attestor_of(deployment, register, storage, folder)
    yield Room(run, replace(attestor, parser=here), deployment)
    register.close()
