"""Near copies: which records share a text's shingles (``shingles.py``).

Records are found by an index of their passages (``passage_index.py``). The question is cut at every
32nd shingle, so that a passage of it lies nearly where the record's does. What is found is then
compared exactly, shingle by shingle, with the record's text. Its entry in the manifest must be the
one that is asked about.

The overlap of two texts is the share of common shingles in the smaller set: 1 if one text is part
of the other.

Invariants

* An answer's numbers are exact; ``estimated`` is MinHash's estimate. Only what is *not* found
  depends on chance (``minhash.py``).
* An index that is not as it was written, or of another form of text, is built anew and never
  believed.
* Texts and indexes stay where the records are.

Paraphrases, translations, texts of few shingles and records that are no text are not found.

Time: a few reads for each passage of the question. Each record that is found is read and compared,
and its part is decompressed for it.

Source: Broder 1997, "On the resemblance and containment of documents".
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from govray.data.corpus import part_files, read_part
from govray.data.similarity.index_build import built_index, index_of
from govray.data.similarity.minhash import Signatures, passage_signatures
from govray.data.similarity.passage_index import PassageIndex, damaged
from govray.data.similarity.shingles import LEAST, SHINGLE, WIDE_SHINGLE, decoded, shingles
from govray.errors import Damaged, UsageError
from govray.governance.policy import record_commitment
from govray.governance.policy.credential import Records
from govray.storage.place import Place

STRIDE = 32
MAX_BYTES = 4 << 20
"""Largest text that is searched for."""

HoldsEntry = Callable[[str, int, str], bool]
"""Whether a corpus's record at a place in Merkle order has this entry (hex)."""


@dataclass(frozen=True)
class Near:
    """A record that shares shingles with a text.

    Attributes:
        corpus, record: Which, by index in Merkle order.
        sha256: Of its content, in hex.
        jaccard, overlap: Exact, in (0, 1].
        estimated: Jaccard similarity of the most similar passages, by MinHash.
        shared: Shingles that both have.
    """

    corpus: str
    record: int
    sha256: str
    jaccard: float
    overlap: float
    estimated: float
    shared: int


def near(
    text: bytes,
    corpora: Place,
    roots: Mapping[str, str],
    holds: HoldsEntry,
    secrets: Mapping[str, bytes],
    *,
    least: float,
    limit: int,
) -> list[Near]:
    """The records that share most with a text, the most similar first.

    Args:
        roots: Corpus → Merkle root of its records, for the corpora that are looked at.
        holds: Confirms the entry of each record that is found. A record on disk with another
            content is an error.
        secrets: Corpus → what its records are committed under.
        least: Smallest overlap of an answer, in (0, 1].
        limit: Answers at most.

    Raises:
        UsageError: The text is too large, too short or not UTF-8, or a corpus's records are not
            those that are asked about.
    """
    if len(text) > MAX_BYTES:
        raise UsageError(
            f"the text has {len(text):,} bytes, more than a search takes: {MAX_BYTES:,}",
            where="FILE",
            do="Search for parts of it",
        )
    asked = Question.of(text)
    answers: list[Near] = []
    for corpus, root in sorted(roots.items()):
        folder, secret = corpora / corpus, secrets[corpus]
        try:
            found = asked.answers(index_of(folder, root, secret), folder, secret, holds)
        except Damaged:
            found = asked.answers(built_index(folder, root, secret), folder, secret, holds)
        answers += [each for each in found if each.overlap >= least]
    answers.sort(key=lambda each: (-each.overlap, -each.jaccard, each.corpus, each.record))
    return answers[:limit]


@dataclass(frozen=True)
class Question:
    """A text that is looked for: its shingles, and the signatures of its passages."""

    shingles: frozenset[str]
    signatures: Signatures

    @classmethod
    def of(cls, text: bytes) -> Question:
        """The question after a text. Raises ``UsageError``: it is not UTF-8, or too short."""
        try:
            decoded(text, "strict")
        except UnicodeDecodeError:
            raise UsageError(
                "near copies are looked for of text in UTF-8, not of these bytes",
                do="Search for the text in it, saved as UTF-8",
            ) from None
        own = shingles(text)
        if len(set(own)) < LEAST:
            raise UsageError(
                f"{len(set(own))} different sequences of {SHINGLE} letters ({WIDE_SHINGLE} in "
                "Chinese, Japanese and Korean) are too few for near copies",
                do=f"Search for a text of {LEAST} sequences or more: 12 words, or 30 letters in a "
                "script without spaces",
            )
        return cls(frozenset(own), passage_signatures([own], STRIDE)[1])

    def answers(
        self,
        index: PassageIndex,
        corpus: Place,
        secret: bytes,
        holds: HoldsEntry,
    ) -> list[Near]:
        """The records that the index finds, compared. Raises as `near`, or ``Damaged``."""
        found = index.candidates(self.signatures)
        answers = []
        for record, content in _contents(index, corpus, sorted(found)):
            digest = hashlib.sha256(content).digest()
            entry = record_commitment.entry(digest, secret).hex()
            if not holds(corpus.name, record, entry):
                raise UsageError(
                    f"record {record} is not the one that the model was trained on",
                    where=str(corpus),
                    do="Restore the corpus's files",
                )
            own = frozenset(shingles(content))
            if len(own) < LEAST:
                continue
            shared = len(own & self.shingles)
            overlap = shared / min(len(own), len(self.shingles))
            jaccard = shared / len(own | self.shingles)
            answers.append(
                Near(corpus.name, record, digest.hex(), jaccard, overlap, found[record], shared)
            )
        return answers


def _contents(
    index: PassageIndex, corpus: Place, records: Sequence[int]
) -> Iterator[tuple[int, memoryview]]:
    """The contents of some records, given in ascending order."""
    files = part_files(corpus)
    if len(files) != len(index.parts):
        raise damaged(index.folder)
    starts = [0, *accumulate(index.parts)]
    for part, some in groupby(records, lambda record: bisect_right(starts, record) - 1):
        contents = read_part(files[part])
        if len(contents) != index.parts[part]:
            raise damaged(index.folder)
        for record in some:
            yield record, contents[record - starts[part]]


# Near copies of a text in one corpus at hand, for a service that has no manifest beside it.
#
# A service knows the entries of records by an index, whose keys are hashed again where a corpus is
# confidential. So it cannot say an entry: it can only say whether one is right.


LEAST_OVERLAP = 0.5
"""Share of the shorter text's shingles from which on a record is a near copy."""
MOST = 100
"""Near copies of one corpus."""

Holds = Callable[[int, str], bool]
"""Whether the index has this entry (hex) at this place of the corpus, in Merkle order."""


def near_records(
    text: bytes, corpora: Place, corpus: str, records: Records, holds: Holds
) -> list[Near]:
    """The records of a corpus that share most with a text, the most similar first.

    Raises:
        UsageError: The text is too large or too short, or the corpus at hand is of other records.
        Refused: Its secret is missing, or differs.
    """
    secret = record_commitment.read_secret(corpora / corpus, records.commitment)
    return near(
        text,
        corpora,
        {corpus: records.root},
        lambda _, number, entry: holds(number, entry),
        {corpus: secret},
        least=LEAST_OVERLAP,
        limit=MOST,
    )
