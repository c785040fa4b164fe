"""One corpus per combination of licence, jurisdiction and sensitivity that a source's records have.

Invariants

* A corpus of the split is written whole or not at all. They appear one after the other, after the
  source was read to its end. A kill in between leaves some of them, each whole.
* Records keep the source's order. Each corpus has a secret of its own.
* Names follow from the combination alone: ``<name>_<licence>``, then the jurisdiction and the
  sensitivity where they differ from the defaults.
* What is pending of all corpora together is bounded, so many combinations need no more memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from pathlib import Path

from govray.data.corpus import Built, PartsWriter, check_name, check_vacant, disk_errors, new_secret
from govray.data.sources.quarantine import Quarantine
from govray.data.sources.record import SourceRecord
from govray.data.sources.terms import RecordTerms, TermsReader, Unclear
from govray.errors import UsageError
from govray.storage.staged_folder import staged_folder

MOST_CORPORA = 400
PENDING_BYTES = 256 * 1024 * 1024

_MOST_NAME = 100  # characters of a corpus's name before it is shortened


@dataclass
class SplitCorpus:
    """One corpus of a split: what was written, under which terms, in which languages.
    ``terms``: None where all records of a source are to be one corpus."""

    terms: RecordTerms | None
    parts: PartsWriter
    folder: Path
    languages: set[str] = field(default_factory=set)

    @property
    def built(self) -> Built:
        return self.parts.built(self.folder)


Check = Callable[[str, RecordTerms], object]
"""Called with name and terms of each corpus before its first record is written."""


@dataclass
class NewCorpora:
    """Corpora that appear together below ``out``, when ``staged`` ends without an exception.

    Attributes:
        name: What their names begin with.
        defaults: What the terms of most records are (`TermsReader.defaults`).
    """

    out: Path
    name: str
    defaults: Mapping[str, str]
    check: Check
    staged: ExitStack
    corpora: dict[RecordTerms | None, SplitCorpus] = field(default_factory=dict)

    def begin(self, terms: RecordTerms | None, secret: bytes) -> SplitCorpus:
        """The corpus of these terms, which is the first of them."""
        target = self.out / self.name
        if terms is not None:
            if len(self.corpora) == MOST_CORPORA:
                raise UsageError(
                    f"more than {MOST_CORPORA} combinations of licence, jurisdiction and "
                    "sensitivity",
                    where=self.name,
                    do="Check the columns, or give one value for several words in --values.",
                )
            target = self.out / corpus_name(self.name, terms, self.defaults)
            self.check(target.name, terms)
        check_vacant(target)
        folder = self.staged.enter_context(staged_folder(target))
        made = SplitCorpus(terms, PartsWriter(folder, target.name, secret), target)
        self.corpora[terms] = made
        return made

    def sorted(self, quarantine: Quarantine) -> tuple[SplitCorpus, ...]:
        """All of them, by terms. Raises ``UsageError``: no record is left."""
        if not self.corpora:
            raise nothing_left(self.name, quarantine)
        made = self.corpora.values()
        return tuple(sorted(made, key=lambda each: astuple(each.terms) if each.terms else ()))


def split(
    out: Path,
    name: str,
    records: Iterable[SourceRecord],
    terms: TermsReader,
    quarantine: Quarantine,
    *,
    check: Check = lambda corpus, terms: None,
) -> tuple[SplitCorpus, ...]:
    """Write the corpora below ``out``, sorted by terms.

    Args:
        name: What their names begin with.
        records: In ascending order of names.

    Raises:
        UsageError: A name is bad or taken, no record is left, or there are more than 400
            combinations. The disk refuses, or ``check`` does.
    """
    check_name(name)
    with ExitStack() as staged, disk_errors(out):
        new = NewCorpora(out, name, terms.defaults, check, staged)
        write_records(
            clear(records, terms, quarantine), lambda found: new.begin(found, new_secret())
        )
        return new.sorted(quarantine)


def write_records(
    records: Iterable[tuple[SourceRecord, RecordTerms | None]],
    begin: Callable[[RecordTerms | None], SplitCorpus],
) -> dict[RecordTerms | None, SplitCorpus]:
    """Write each record into the corpus of its terms, which ``begin`` makes.
    What is pending of all of them is bounded."""
    corpora: dict[RecordTerms | None, SplitCorpus] = {}
    pending = 0
    for record, terms in records:
        if (corpus := corpora.get(terms)) is None:
            corpus = corpora[terms] = begin(terms)
        before = corpus.parts.pending
        corpus.parts.add(record.name, record.content)
        corpus.languages.update(record.stated.get("language", ()))
        pending += corpus.parts.pending - before
        if pending > PENDING_BYTES:
            largest = max(corpora.values(), key=lambda each: each.parts.pending)
            pending -= largest.parts.pending
            largest.parts.flush()
    for corpus in corpora.values():
        corpus.parts.flush()
    return corpora


def count_terms(
    records: Iterable[SourceRecord], terms: TermsReader, quarantine: Quarantine
) -> dict[RecordTerms, tuple[int, int]]:
    """What `split` would write: terms → records and bytes, sorted by terms."""
    counts: dict[RecordTerms, tuple[int, int]] = {}
    for record, found in clear(records, terms, quarantine):
        count, size = counts.get(found, (0, 0))
        counts[found] = count + 1, size + len(record.content)
    return dict(sorted(counts.items()))


def clear(
    records: Iterable[SourceRecord], terms: TermsReader, quarantine: Quarantine
) -> Iterator[tuple[SourceRecord, RecordTerms]]:
    """The records whose terms are clear, with them; the others are counted in ``quarantine``."""
    for record in records:
        found = terms.read(record.stated)
        if isinstance(found, Unclear):
            quarantine.put(record.where, found.attribute, found.value, found.why, found.suggestion)
        else:
            yield record, found


def corpus_name(name: str, terms: RecordTerms, defaults: Mapping[str, str]) -> str:
    """The name of a combination's corpus. Different combinations have different names.

    A licence whose text cannot stand in a name is shortened, and a digest of it follows. SPDX
    identifiers hold no underscore, so the parts of a name cannot be mistaken.
    """
    license = re.sub(r"[^A-Za-z0-9.-]+", "-", terms.license).strip("-")[:_MOST_NAME]
    if license != terms.license:
        license += "-" + hashlib.sha256(terms.license.encode()).hexdigest()[:8]
    others = [("jurisdiction", terms.jurisdiction), ("sensitivity", terms.sensitivity)]
    told = [value for attribute, value in others if value != defaults.get(attribute)]
    return "_".join([name, license, *told])


def nothing_left(name: str, quarantine: Quarantine) -> UsageError:
    """The error of a split or build whose records are all in quarantine, or that has none."""
    if not quarantine.values:
        return UsageError(
            "no records, so there is nothing to sign", where=name, do="Give at least one record."
        )
    first = quarantine.values[0]
    said = f"{first.attribute} {first.value!r}: {first.why}" if first.value else first.why
    do = f"It may be {first.suggestion}. " if first.suggestion else ""
    return UsageError(
        f"every record is in quarantine, most for {said}",
        where=first.examples[0],
        do=f"{do}Say what words mean with --values, or give defaults.",
    )
