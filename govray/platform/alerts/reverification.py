"""Registered models, verified again: what held when they were registered may not hold today.

A credential ends or is revoked, a key is, a file is changed on the disk. So versions in staging and
production are verified again, with the revocation lists at hand. The outcome is kept, and a change
of it is an event. Nothing in the registry is changed: who promoted a version decides.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine
from sqlmodel import Session, col, select

from govray.errors import GovrayError, Refused
from govray.platform.store.reverifications import newest
from govray.platform.store.tables import Attestation, ModelVersion, Reverification

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
            select(col(Attestation.digest), col(Attestation.folder))
            .join(ModelVersion, col(ModelVersion.attestation) == col(Attestation.digest))
            .where(col(ModelVersion.stage).in_(STAGES))
            .distinct()
            .order_by(col(Attestation.digest))
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
    """Keep an outcome: a new row if it is another than the last. The caller commits."""
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
