"""The rounds of a process for alerts: notice, send, and now and then verify models again.

Several processes may run on one store. Noticing and verifying are each done by the one that has a
lease; all of them send. A process that ends loses nothing: the lease ends, and so does its hold on
what it was sending.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from govray.errors import GovrayError, Refused
from govray.governance.formats.document import format_time
from govray.platform.alerts.delivery import Deliverer
from govray.platform.alerts.noticing import notice
from govray.platform.store import leases
from govray.platform.store.reverifications import newest
from govray.platform.store.tables import AttestationRow, ModelVersion, Reverification

# Registered models, verified again: what held when they were registered may not hold today.
#
# A credential ends or is revoked, a key is, a file is changed on the disk. So versions in staging
# and production are verified again, with the revocation lists at hand. The outcome is kept, and a
# change of it is an event. Nothing in the registry is changed: who promoted a version decides.


VERIFIED, FAILED, COULD_NOT_CHECK = "verified", "failed", "could not check"
STAGES = ("staging", "production")
LONGEST_WHY = 1000

Verify = Callable[[str], str]
"""Verifies the model in a folder, and gives its attestation's digest. Raises as the verifier."""


def reverify(engine: Engine, verify: Verify, now: Callable[[], str]) -> dict[str, str]:
    """Verify every model that is in staging or production once more.

    Args:
        now: The time, asked after each model: verifying takes long.

    Returns:
        Attestation → outcome.
    """
    with Session(engine) as session:
        rows = session.execute(
            select(col(AttestationRow.digest), col(AttestationRow.folder))
            .join(ModelVersion, col(ModelVersion.attestation) == col(AttestationRow.digest))
            .where(col(ModelVersion.stage).in_(STAGES))
            .distinct()
            .order_by(col(AttestationRow.digest))
        ).all()
    found = {}
    for digest, folder in rows:
        outcome, why = _verified(verify, digest, folder)
        with Session(engine) as session:
            note(session, digest, outcome, why, at=now())
            session.commit()
        found[digest] = outcome
    return found


def _verified(verify: Verify, digest: str, folder: str | None) -> tuple[str, str | None]:
    if folder is None:
        return COULD_NOT_CHECK, "the store does not know where the model lies"
    try:
        there = verify(folder)
    except Refused as error:
        return FAILED, str(error)[:LONGEST_WHY]
    except GovrayError as error:
        return COULD_NOT_CHECK, str(error)[:LONGEST_WHY]
    except OSError as error:
        return COULD_NOT_CHECK, f"the model cannot be read ({error.strerror})"
    if there != digest:
        return FAILED, "another model lies in its folder now"
    return VERIFIED, None


def note(session: Session, attestation: str, outcome: str, why: str | None, *, at: str) -> None:
    """Keep an outcome: a new row if it differs from the last. The caller commits."""
    last = newest(session, [attestation]).get(attestation)
    if last is not None and last.outcome == outcome:
        last.checked, last.why = at, why
        session.add(last)
        return
    number = 0 if last is None else last.number + 1
    session.add(
        Reverification(
            attestation=attestation,
            number=number,
            outcome=outcome,
            why=why,
            since=at,
            checked=at,
        )
    )


log = logging.getLogger("govray.platform.alerts")

POLL_S = 2.0
_LEASE = timedelta(seconds=60)
_NOTICING, _VERIFYING = "alerts", "reverification"


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What a process does in one store.

    Attributes:
        ahead: How long before its end a credential is an event.
        verify: Verifies a model folder; none: models are not verified again.
        every: How often they are. Verifying may take no longer.
    """

    engine: Engine
    deliverer: Deliverer
    holder: str
    clock: Callable[[], datetime]
    ahead: timedelta = timedelta(days=30)
    verify: Verify | None = None
    every: timedelta = timedelta(days=1)

    def notice(self) -> int:
        """Notice all that is new, unless another process does so; how many events that are."""
        number = 0
        while self._take(_NOTICING, _LEASE):
            with Session(self.engine) as session:
                try:
                    found = notice(session, at=format_time(self.clock()), ahead=self.ahead)
                except IntegrityError:  # the lease ended under another's eyes, who noticed it too
                    session.rollback()
                    break
            number += found
            if not found:
                break
        return number

    def reverify(self) -> dict[str, str]:
        """Verify registered models, if no process has for as long as ``every``."""
        # The lease is held on: its end is the next time. So not even this process has it by then.
        nobody = f"{self.holder}-{secrets.token_hex(4)}"
        if self.verify is None or not self._take(_VERIFYING, self.every, nobody):
            return {}
        return reverify(self.engine, self.verify, lambda: format_time(self.clock()))

    def once(self) -> int:
        """Do everything that is due, and wait for it; how many events were new."""
        self.reverify()
        number = self.notice()
        self.deliverer.finish()
        return number

    def run(self, stop: threading.Event) -> None:
        """Go round until ``stop``. An error is logged, and everything is tried again."""
        verifying: threading.Thread | None = None
        while not stop.is_set():
            began = time.monotonic()
            if self.verify is not None and (verifying is None or not verifying.is_alive()):
                # Beside the rest: it may take minutes, and events do not wait for it.
                verifying = threading.Thread(target=self._guarded, args=(self.reverify,))
                verifying.daemon = True
                verifying.start()
            self._guarded(self.notice)
            self._guarded(self.deliverer.start_due)
            stop.wait(max(0.0, POLL_S - (time.monotonic() - began)))
        self.deliverer.close()

    def _guarded(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception:
            log.exception("a round failed and is tried again")

    def _take(self, name: str, lasting: timedelta, holder: str = "") -> bool:
        at = self.clock()
        until = format_time(at + lasting)
        with Session(self.engine) as session:
            return leases.take(
                session, name, holder or self.holder, at=format_time(at), until=until
            )
