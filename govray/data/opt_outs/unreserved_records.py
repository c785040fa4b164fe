"""The records in which no rights are reserved, by a snapshot of what their sites say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from govray.data.opt_outs.snapshot import NotLookedAt, OptOuts
from govray.data.sources.quarantine import Quarantine
from govray.data.sources.record import SourceRecord


@dataclass
class OptOutFilter:
    """Leaves out records whose rights are reserved, and those of which nothing is known.

    Attributes:
        quarantine: Counts what is left out, by host.
        reserved: How many of them are reserved.
    """

    snapshot: OptOuts
    quarantine: Quarantine
    reserved: int = 0

    def of(self, records: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
        """The other records."""
        for record in records:
            urls = record.stated.get("url", ())
            if not urls:
                self._leave(record, "", "no URL, so nobody can tell whether rights are reserved")
                continue
            for url in urls:
                try:
                    found = self.snapshot.reservation(url)
                except NotLookedAt as error:
                    self._leave(record, _host(url), str(error))
                    break
                if found is not None:
                    self.reserved += 1
                    self._leave(record, _host(url), str(found))
                    break
            else:
                yield record

    def _leave(self, record: SourceRecord, value: str, why: str) -> None:
        self.quarantine.put(record.where, "url", value, why)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
