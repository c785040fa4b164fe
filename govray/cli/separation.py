"""What the account that runs jobs must not reach, and what of it that account does reach.

A job runs its submitter's code. So `govray queue run` and `govray serve` act for one user alone
while such a thing is in reach, and `govray doctor` tells all of them. See `govray.storage.reach`
for what is seen of a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import govray
from govray.cli.listening import owners
from govray.errors import Refused, UsageError
from govray.storage.reach import Account, Reach, reached_below

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from govray.platform.attestor.settings import AttestorSettings
    from govray.platform.queue.settings import Queue
    from govray.platform.service.http.settings import Settings

MOST_BELOW = 10_000
"""Files of one folder that are looked at, of prepared data and models."""


@dataclass(frozen=True)
class Kept:
    """What is kept from jobs. ``secret``: they may not read it either. ``below``: with all files
    of the folder."""

    what: str
    path: Path
    secret: bool = False
    below: bool = False


@dataclass(frozen=True)
class Jobs:
    """The account that runs jobs, and where it was named. Without a name it is this process's."""

    account: Account
    name: str
    named_by: str

    @classmethod
    def read(cls, name: str | None, named_by: str) -> Jobs:
        if name is None:
            return cls(Account.own(), f"UID {os.geteuid()}, this process's own", named_by)
        try:
            return cls(Account.named(name), name, named_by)
        except KeyError:
            raise UsageError(
                f"there is no account {name[:60]!r}",
                where=named_by,
                do="Name the user that Ray runs under, or give UID:GID",
            ) from None

    def reaches(self, kept: Iterable[Kept]) -> Iterator[Refused]:
        """What of it the account can read or write, with the file and what to do."""
        for each in kept:
            barred = Reach.READ | Reach.WRITE if each.secret else Reach.WRITE
            most = MOST_BELOW if each.below else 1
            for path, found in reached_below(each.path, self.account, most):
                if found & barred:
                    yield self._refused(each, path, found & barred)
                    break

    def _refused(self, kept: Kept, path: Path, found: Reach) -> Refused:
        can = " and ".join(str(each.name).lower() for each in found)
        if self.account.uid in (0, os.geteuid()):
            do = f"Run Ray under an account of its own, and name that one: {self.named_by}"
        elif kept.secret:
            do = "Give it mode 0600, and let its owner alone write into the folders above it"
        else:
            do = "Let its owner alone write there, and into the folders above it"
        return Refused(
            f"the account that runs jobs ({self.name}) can {can} {kept.what}",
            where=str(path),
            do=do,
        )


def of_code() -> Iterator[Kept]:
    """What every process of govray runs."""
    yield Kept("govray's code", Path(govray.__file__).parent, below=True)
    yield Kept("the programs of this environment", Path(sys.executable).parent)


def of_store(url: str) -> Iterator[Kept]:
    """The store, and the secret that it is indexed under."""
    from govray.platform.store.database import parse_url, sqlite_file
    from govray.platform.store.store_secret import has_place, key_file

    file = sqlite_file(parse_url(url))
    if file is not None:
        yield Kept("the store", file, secret=True)
    elif (password := _password_file()).exists():
        yield Kept("the store's password", password, secret=True)
    if has_place(url):
        yield Kept("the store's secret", key_file(url), secret=True)


def of_queue(queue: Queue, file: Path) -> Iterator[Kept]:
    """What a queue's file names."""
    from govray.data.records_file import PREPARED
    from govray.storage.place import place

    storage = place(queue.storage)
    yield Kept("the queue's file", file)
    yield from of_store(queue.store)
    if isinstance(storage, Path):
        yield Kept("prepared data", storage / PREPARED, below=True)
    if queue.working_dir is not None:
        yield Kept("the code of runs that bring none", queue.working_dir, below=True)
    if queue.attestor is not None:
        token = Path(queue.attestor.token_file).expanduser()
        yield Kept("the attestor's token", token, secret=True)


def of_attestor(settings: AttestorSettings, file: Path) -> Iterator[Kept]:
    """What an attestor's file names."""
    from govray.platform.store.database import parse_url, sqlite_file

    for key in settings.keys:
        yield from _key(key, "the operator's key")
    if settings.key_password_file is not None:
        yield Kept("the password of the operator's key", settings.key_password_file, secret=True)
    if (register := sqlite_file(parse_url(settings.register_url))) is not None:
        yield Kept("the register", register, secret=True)
    yield Kept("the attestor's token", settings.token_file, secret=True)
    if settings.certificate_key is not None:
        yield Kept("the key of the register's certificate", settings.certificate_key, secret=True)
    yield Kept("the trust root", settings.trust_root)
    for each in settings.revocations:
        yield Kept("a revocation list", each, below=True)
    yield Kept("prepared data", settings.prepared, below=True)
    yield Kept("models", settings.models, below=True)
    yield Kept("the attestor's copies", settings.staging)
    yield Kept("the attestor's file", file)


def of_service(settings: Settings, models: Path | None) -> Iterator[Kept]:
    """What a service is started with."""
    yield from of_store(settings.store)
    if models is not None:
        yield Kept("models", models, below=True)
    if settings.trust_root is not None:
        yield Kept("the trust root", settings.trust_root)
    if settings.oidc is not None and settings.oidc.client_secret_file is not None:
        secret = Path(settings.oidc.client_secret_file)
        yield Kept("the identity provider's secret", secret, secret=True)
    if settings.cases is not None:
        yield from _key(settings.cases.key, "the key that signs answers to cases")
    if settings.attestor is not None:
        token = Path(settings.attestor.token_file).expanduser()
        yield Kept("the attestor's token", token, secret=True)


def _key(reference: str, what: str) -> Iterator[Kept]:
    """A key, where it is a file."""
    from govray.governance.formats.keys import in_file

    if in_file(reference):
        yield Kept(what, Path(reference).expanduser(), secret=True)


def jobs_of(queue: Queue) -> Jobs:
    """The account that runs a queue's jobs."""
    return Jobs.read(queue.jobs_account, "jobs_account in queue.yaml")


def queue_findings(queue: Queue, file: Path, jobs: Jobs) -> Iterator[Refused]:
    """Why a queue acts for one user alone; nothing, if jobs are kept apart from what signs."""
    from govray.platform.attestor.settings import read_settings

    if queue.attestor is None:
        yield Refused(
            "jobs sign with the operator's key, for no attestor is named",
            where=str(file),
            do="Start an attestor, and name it in the section attestor. See docs/attestor.md",
        )
    elif queue.kubernetes is not None:
        return  # jobs run in pods, which have none of this machine's files
    elif queue.attestor.settings_file is not None:
        theirs = Path(queue.attestor.settings_file).expanduser()
        yield from jobs.reaches(of_attestor(read_settings(theirs), theirs))
    elif queue.attestor.is_here:
        yield Refused(
            "what the attestor keeps cannot be looked at",
            where=str(file),
            do="Name its attestor.yaml: attestor.settings_file",
        )
    yield from jobs.reaches([*of_queue(queue, file), *of_code()])
    for uid in owners(queue.address) - {jobs.account.uid}:
        yield Refused(
            f"Ray runs under UID {uid}, not under {jobs.name}",
            where=queue.address,
            do=f"Name its account, or start it under this one: {jobs.named_by}",
        )


def refuse_several(
    engine: Engine,
    settings: Settings,
    models: Path | None,
    jobs_account: str | None,
    named_by: str,
) -> None:
    """Refuse to serve more than one user where the jobs of a queue reach what a service keeps. With
    an identity provider nobody knows how many there are."""
    from datetime import UTC, datetime

    from sqlmodel import Session

    from govray.platform.service.identity import tokens
    from govray.platform.store import pools

    with Session(engine) as session:
        if jobs_account is None and not pools.stated(session):
            return  # no queue has ever worked this store off
        rows = tokens.listed(session, at=datetime.now(UTC))
    acting = {
        each["user"] for each in rows if each["state"] == "good" and each["scopes"] != ["read"]
    }
    if settings.oidc is not None or len(acting) > 1:
        jobs = Jobs.read(jobs_account, named_by)
        for error in jobs.reaches([*of_service(settings, models), *of_code()]):
            raise error


def _password_file() -> Path:
    """Where libpq looks for the password of a database."""
    named = os.environ.get("PGPASSFILE")
    return Path(named) if named else Path.home() / ".pgpass"
