"""What the options of opt-outs ask for: records are looked up, and the description says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.data.opt_outs.snapshot import OptOuts
    from govray.data.opt_outs.unreserved_records import OptOutFilter
    from govray.data.sources.quarantine import RecordFilter
    from govray.data.sources.record import SourceRecord
    from govray.governance.policy.corpus_description import CorpusDescription


@dataclass
class OptOutLookup:
    """A snapshot, and what looks records up in it once they are read."""

    snapshot: OptOuts
    filter: OptOutFilter | None = None

    def stated(self) -> dict[str, Any]:
        reserved = self.filter.reserved if self.filter else 0
        return {
            "opt_out": "honoured" if reserved else "none_found",
            "opt_out_check": {
                "snapshot": self.snapshot.digest,
                "first": self.snapshot.first,
                "last": self.snapshot.last,
                "agents": self.snapshot.agents,
            },
        }


def opt_out_lookup(
    file: Path | None, agents: Sequence[str] | None, description: CorpusDescription | None
) -> OptOutLookup | None:
    """What was asked for; None if nothing was."""
    if file is None:
        if agents:
            raise UsageError(
                "an agent is looked up in a snapshot",
                where="--opt-out-agent",
                do="Give --opt-outs FILE too.",
            )
        return None
    if description is None:
        raise UsageError(
            "the credential's description says that opt-outs were looked up",
            where="--opt-outs",
            do="Give --description FILE too; `source: crawled` is enough.",
        )
    if description.opt_out is not None or description.opt_out_check is not None:
        raise UsageError(
            "the description states opt-outs itself, and the snapshot says what holds",
            where="--description",
            do="Leave optOut out of it.",
        )
    from govray.data.opt_outs.snapshot import EVERYBODY, read_opt_outs

    return OptOutLookup(read_opt_outs(file, agents or EVERYBODY))


def unreserved(
    records: Iterator[SourceRecord], lookup: OptOutLookup | None, selection: RecordFilter
) -> Iterator[SourceRecord]:
    """The records in which no rights are reserved, if that was asked for; else all."""
    if lookup is None:
        return records
    from govray.data.opt_outs.unreserved_records import OptOutFilter

    lookup.filter = OptOutFilter(lookup.snapshot, selection.quarantine)
    return lookup.filter.of(records)
