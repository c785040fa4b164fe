"""The entropy profiles that stand in a run's ledger."""

from __future__ import annotations

from sqlmodel import Session

from govray.errors import GovrayError
from govray.governance.formats import canonical_json
from govray.governance.record.entropy_profile import EntropyProfile
from govray.platform.service.routes.ledgers import reader
from govray.platform.store.tables import LedgerRow

MOST_ENTRIES = 20_000
"""A longer ledger is not read for one page."""

_KIND = b'"kind":"entropyProfile"'


def entropy_profiles(session: Session, run: str) -> tuple[EntropyProfile, ...]:
    """The profiles in a run's ledger, from its tiles, each checked against the signed root. Empty
    where the ledger is longer than `MOST_ENTRIES` or its tiles are not within reach."""
    row = session.get(LedgerRow, run)
    if row is None or not row.tiles or row.size > MOST_ENTRIES:
        return ()
    tiles = reader(row)
    try:
        return tuple(
            EntropyProfile.from_json(canonical_json.parse_canonical(line))
            for line in tiles.entries(lambda line: _KIND in line)
        )
    except GovrayError:
        return ()
