"""``govray doctor``: what is wrong with this machine's deployment, all at once.

It looks from the account that starts it. What that account may not see, and jobs may, counts as in
their reach.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from govray.cli import separation
from govray.cli.listening import listeners, owners
from govray.cli.output import line, report
from govray.errors import GovrayError
from govray.extras import EXTRAS, install

if TYPE_CHECKING:
    from govray.errors import Refused
    from govray.governance.submission.http_exchange import HttpAnswer
    from govray.platform.attestor.settings import AttestorSettings
    from govray.platform.queue.settings import Queue

OK, WRONG, UNKNOWN, ENDS = "ok", "WRONG", "not seen", "ends soon"

SOON = timedelta(days=14)
"""What ends within that time is said while it still holds. Services ask before they start, so it
doesn't count as wrong."""
LEAST_FREE = 1 << 30  # bytes of a disk
MOST_SKEW_S = 2.0
_NEEDED = {
    "attestor": ("sqlalchemy", "starlette", "uvicorn", "pyarrow"),
    "queue": ("ray", "sqlmodel", "alembic"),
    "service": ("fastapi", "uvicorn", "sqlmodel", "alembic"),
}
_STARTS = ("jobs/train.py", "jobs/tune.py")
_SERVICE_PORT = 8585
_TIME_ERROR = 5


@dataclass(frozen=True)
class Symptom:
    """What one check found. ``state`` is one of the four above."""

    check: str
    state: str
    what: str
    do: str | None = None

    @classmethod
    def wrong(cls, check: str, error: GovrayError) -> Symptom:
        where = f"{error.where}: " if error.where else ""
        return cls(check, WRONG, f"{where}{error.what}", error.do)


def doctor(
    queue: Annotated[
        Path | None, typer.Option("--queue", metavar="FILE", help="The queue's file, queue.yaml.")
    ] = None,
    attestor: Annotated[
        Path | None,
        typer.Option("--attestor", metavar="FILE", help="The attestor's file, attestor.yaml."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The store of the service.")
    ] = None,
    jobs_account: Annotated[
        str | None,
        typer.Option(
            "--jobs-account",
            metavar="NAME",
            help="The account that runs jobs: a name, or UID:GID. Default: as the queue's file.",
        ),
    ] = None,
) -> None:
    """Say what is wrong on this machine, before something starts.

    It looks at accounts, addresses, Ray's token, clock, disks, versions, the trust root and
    what the files name. While jobs reach what is kept from them, queue and service act for
    one user alone. Exit code 1: something is wrong. What ends soon, or can't be seen, is said.
    """
    given = {"queue": queue, "attestor": attestor, "service": store}
    findings = [*_versions(name for name, each in given.items() if each is not None)]
    if findings[0].state == OK:  # or what reads the files is missing
        findings += _findings(queue, attestor, store, jobs_account)
    report({"findings": [vars(each) for each in findings]})
    for each in findings:
        do = f". {each.do}" if each.do and each.state != OK else ""
        line(f"{each.state:<9}  {each.check:<9}  {each.what}{do}")
    if any(each.state == WRONG for each in findings):
        raise typer.Exit(1)


def _findings(
    queue: Path | None, attestor: Path | None, store: str | None, jobs_account: str | None
) -> Iterator[Symptom]:
    asked = theirs = None
    if queue:
        from govray.platform.queue.settings import read_queue

        asked = read_queue(queue)
    if attestor:
        from govray.platform.attestor.settings import read_settings

        theirs = read_settings(attestor)
    if queue or attestor or store:
        jobs = (
            separation.jobs_of(asked)
            if asked and jobs_account is None
            else separation.Jobs.read(jobs_account, "--jobs-account")
        )
        kept = [*separation.of_code()]
        kept += separation.of_attestor(theirs, attestor) if theirs and attestor else []
        kept += separation.of_store(store) if store else []
        reached = [*jobs.reaches(kept)]
        reached += separation.queue_findings(asked, queue, jobs) if asked and queue else []
        yield from _accounts(jobs, reached)
        if asked and asked.kubernetes is None and not owners(asked.address):
            yield Symptom("accounts", UNKNOWN, "Ray does not listen here, so not whose it is")
    if asked and asked.working_dir and asked.kubernetes is None:  # else it is of an image
        yield from _working_dir(asked.working_dir)
    yield from _addresses(asked, theirs)
    yield from _servers(asked, theirs)
    yield from _disks(_places(asked, theirs))
    yield from _trust(Path("policies/root.json"))
    if theirs and theirs.certificate is not None:
        yield from _certificate(theirs.certificate)


def _versions(parts: Iterable[str]) -> Iterator[Symptom]:
    import platform
    from importlib.util import find_spec

    from govray import __version__

    missing = {each for part in parts for each in _NEEDED[part] if find_spec(each) is None}
    for each in sorted(missing):
        yield Symptom("versions", WRONG, f"{each} is not installed", f"Run {install(EXTRAS[each])}")
    if not missing:
        yield Symptom("versions", OK, f"govray {__version__}, Python {platform.python_version()}")


def _accounts(jobs: separation.Jobs, reached: list[Refused]) -> Iterator[Symptom]:
    told = {(each.what, each.where): each for each in reached}  # two files may name one
    yield from (Symptom.wrong("accounts", each) for each in told.values())
    if not reached:
        yield Symptom("accounts", OK, f"{jobs.name} reaches nothing that is kept from jobs")


def _working_dir(folder: Path) -> Iterator[Symptom]:
    """Whether runs that bring no folder find in the queue's what starts them."""
    missing = [name for name in _STARTS if not (folder / name).is_file()]
    for name in missing:
        do = "Name a folder of `govray init` as working_dir in queue.yaml"
        yield Symptom("folder", WRONG, f"{folder} has no {name}, which starts a job", do)
    if not missing:
        yield Symptom("folder", OK, f"{folder} has what starts runs that bring no folder")


def _addresses(queue: Queue | None, attestor: AttestorSettings | None) -> Iterator[Symptom]:
    ports = {_SERVICE_PORT: "the service speaks plain HTTP"}
    if attestor is not None and attestor.certificate is None:
        ports[attestor.port] = "the attestor's register speaks plain HTTP"
    if queue is not None and (port := urlsplit(queue.address).port):
        ports[port] = "Ray's dashboard starts jobs"
    heard = listeners()
    wide = [each.port for each in heard if each.port in ports and not each.loopback]
    for port in sorted({*wide}):
        do = "Let it listen on 127.0.0.1, with a proxy that speaks TLS in front"
        yield Symptom("addresses", WRONG, f"{ports[port]}, and port {port} is open to others", do)
    if not wide:
        shown = ", ".join(map(str, sorted(ports)))
        yield Symptom("addresses", OK, f"of ports {shown} none is open to other machines")


def _servers(queue: Queue | None, attestor: AttestorSettings | None) -> Iterator[Symptom]:
    """What Ray and the register answer to a stranger, and what time they have. Where jobs are
    Kubernetes' there is no Ray to ask; a register with a certificate knows other names."""
    answers = {}
    if queue is not None and queue.kubernetes is None:
        answers["Ray"] = answer = _answer(f"{queue.address}/api/jobs/")
        do = "Start every node with RAY_AUTH_MODE=token"
        if answer is None:
            yield Symptom("token", UNKNOWN, f"Ray does not answer at {queue.address}")
        elif answer.status == 200:
            yield Symptom("token", WRONG, "Ray takes jobs from everyone who reaches it", do)
        else:
            yield Symptom("token", OK, f"Ray answers {answer.status} to who has no token")
    if attestor is not None and attestor.certificate is None:
        answers["the register"] = _answer(f"http://127.0.0.1:{attestor.port}/v1/register")
    yield from _clock({name: each.date for name, each in answers.items() if each})


def _clock(dates: dict[str, str]) -> Iterator[Symptom]:
    """Whether this machine's clock is set by something, and agrees with what others answered."""
    import ctypes
    import sys
    import time
    from email.utils import parsedate_to_datetime

    do = "Let chrony or systemd-timesyncd set the clock of every machine"
    for name, date in dates.items():
        try:
            skew = abs(parsedate_to_datetime(date).timestamp() - time.time())
        except ValueError:
            continue
        if skew > MOST_SKEW_S:
            yield Symptom("clock", WRONG, f"{name} is {skew:.0f} s away from this machine", do)
    unset = sys.platform == "linux" and (
        ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256)) == _TIME_ERROR
    )
    if unset:
        yield Symptom("clock", UNKNOWN, "nothing that the kernel knows of sets the clock", do)
    else:
        yield Symptom("clock", OK, "the kernel's clock is set from elsewhere")


def _places(queue: Queue | None, attestor: AttestorSettings | None) -> Iterator[Path]:
    """Folders that have to have room."""
    from govray.storage.place import place

    named = [place(queue.storage)] if queue else [Path.cwd()]
    named += [attestor.runs, attestor.models, attestor.staging] if attestor else []
    for each in named:
        if isinstance(each, Path):
            above = (each, *each.absolute().parents)
            yield next(path for path in above if os.path.exists(path))  # also where it is shut


def _disks(places: Iterable[Path]) -> Iterator[Symptom]:
    for path in {each.stat().st_dev: each for each in places}.values():
        found = os.statvfs(path)
        free = found.f_bavail * found.f_frsize
        full = free < LEAST_FREE or (found.f_files and not found.f_favail)
        what = f"{free / 1e9:.0f} GB are free at {path}"
        yield Symptom("disk", WRONG if full else OK, what, "Make room" if full else None)


def _trust(root: Path) -> Iterator[Symptom]:
    """Whether the trust root of the deployment that this folder is can be relied on now."""
    from govray.cli import trust
    from govray.governance.formats.document import parse_time

    if root.exists():
        try:
            found = trust.anchor(root).load(at=trust.reference_time(None)).root
        except GovrayError as error:
            yield Symptom.wrong("trust", error)
        else:
            what = f"{root}: {found.name} v{found.version}, until {found.expires}"
            yield _until("trust", what, parse_time(found.expires), "Sign its next version")
            held = [
                (f"{each.role} authority {each.name!r}", parse_time(each.expires))
                for each in found.authorities
            ]
            held += [
                (
                    f"a certificate of timestamp authority {each.name!r}",
                    one.x509.not_valid_after_utc,
                )
                for each in found.timestamp_authorities or ()
                for one in each.certificates
            ]
            for name, ends in held:
                each = _until("trust", f"{root}: {name}", ends, "Sign the root with its successor")
                if each.state == ENDS:  # one that has ended may stay, beside its successor
                    yield each


def _certificate(file: Path) -> Iterator[Symptom]:
    """Whether jobs and queue will reach the register tomorrow too."""
    from govray.cli import user_files
    from govray.governance.formats.certificate import Certificate

    try:
        ends = Certificate.from_pem(user_files.read(file)).x509.not_valid_after_utc
    except GovrayError as error:
        yield Symptom.wrong("register", error)
    else:
        what = f"the certificate {file}, until {ends:%Y-%m-%dT%H:%M:%SZ}"
        yield _until("register", what, ends, "Put a new one in its place, with its key")


def _until(check: str, what: str, ends: datetime, do: str) -> Symptom:
    from govray.cli.trust import reference_time

    left = ends - reference_time(None)
    if left >= SOON:
        return Symptom(check, OK, what)
    if left <= timedelta():
        return Symptom(check, WRONG, f"{what}, has ended", do)
    return Symptom(check, ENDS, f"{what}, in {left / timedelta(days=1):.1f} days", do)


def _answer(url: str) -> HttpAnswer | None:
    from govray.governance.submission.http_exchange import get

    try:
        return get(url, where=url)
    except GovrayError:
        return None
