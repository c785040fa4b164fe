"""Near copies: which records share a text's word sequences.

Texts are compared as sets of **shingles**: five words in a row, in lower case, whatever stands
between them. The Jaccard similarity of two sets is the share of common shingles among all. The
overlap is their share in the smaller set: 1 if one text is part of the other.

Records are found by MinHash. Each is cut into passages of 128 words. A passage's signature has 128
numbers. Two passages are compared if one of 32 bands of four agrees. The question is cut at every
32nd word, so that a passage of it lies nearly where the record's does. What is found is then
compared exactly, shingle by shingle, with the record's text. Its entry in the manifest must be the
one that is asked about.

Invariants

* An answer's numbers are exact; ``estimated`` is MinHash's estimate. Only what is *not* found
  depends on chance. A passage pair with Jaccard .8 agrees in no band in fewer than one of a million
  cases. A pair with .5 agrees in none in one of eight.
* An index belongs to a Merkle root. It is read back only if root, format and digest are its own;
  otherwise it is built anew.
* Texts and indexes stay where the records are.

Paraphrases, translations, texts shorter than a shingle and records that are not text are not found.

Source: Broder 1997, "On the resemblance and containment of documents"; the signatures are those
of rensa (Rust, no dependencies; datasketch needs scipy).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from govray.data.corpus import part_files, read_part
from govray.errors import GovrayError, UsageError
from govray.files.atomic_file import write_whole
from govray.files.place import Place
from govray.governance.formats import canonical_json
from govray.governance.policy import record_commitment

SHINGLE = 5
PASSAGE = 128
STRIDE = 32
PERMUTATIONS = 128
BANDS = 32
SEED = 17
LEAST = 8
"""Fewest shingles of a text for a comparison to mean anything."""
MAX_BYTES = 4 << 20
"""Largest text that is searched for."""

FOLDER = ".govray-similarity"
_SCHEMA = "govray.dev/similarity/v1"
_BUILD = 4096  # passages whose signatures are made together
_WORD = re.compile(r"\w+")

Signatures = npt.NDArray[np.uint32]


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


def words(content: bytes | memoryview) -> list[str]:
    """The words of a text in lower case; bytes that are no UTF-8 stand for no letters."""
    return _WORD.findall(str(content, "utf-8", "replace").casefold())


def shingles(text: Sequence[str]) -> frozenset[str]:
    """Every five words in a row, joined by spaces; of a shorter text, none."""
    return frozenset(" ".join(text[i : i + SHINGLE]) for i in range(len(text) - SHINGLE + 1))


def passages(text: Sequence[str], stride: int) -> Iterator[frozenset[str]]:
    """The shingles of each ``PASSAGE`` words from every ``stride``-th on; the last is whole."""
    last = max(0, len(text) - PASSAGE)
    for start in (*range(0, last, stride), last):
        if found := shingles(text[start : start + PASSAGE]):
            yield found


def signatures(sets: Sequence[frozenset[str]]) -> Signatures:
    """MinHash signatures ``[sets, PERMUTATIONS]``."""
    if not sets:
        return np.zeros((0, PERMUTATIONS), dtype=np.uint32)
    # Sorted, so that nothing depends on the order of a set.
    made = RMinHash.digests_from_token_sets([sorted(s) for s in sets], PERMUTATIONS, SEED)
    return np.array(made, dtype=np.uint32)


@dataclass(frozen=True)
class PassageIndex:
    """The passages of one corpus: ``signatures[i]`` is of a passage of record ``owners[i]``."""

    owners: npt.NDArray[np.int64]
    signatures: Signatures

    def candidates(self, asked: Signatures) -> dict[int, float]:
        """Record → highest estimated Jaccard similarity of a passage that agrees in a band."""
        found: dict[int, float] = {}
        width = PERMUTATIONS // BANDS
        for signature in asked:
            equal = self.signatures == signature
            agrees = equal.reshape(len(equal), BANDS, width).all(axis=2).any(axis=1)
            for passage in np.flatnonzero(agrees):
                owner = int(self.owners[passage])
                found[owner] = max(found.get(owner, 0.0), float(equal[passage].mean()))
        return found


def build(corpus: Place, secret: bytes | None = None) -> tuple[PassageIndex, str]:
    """Index the records of a corpus; also the Merkle root of what was read, under its secret.

    Raises as ``read_part``.
    """
    entries: list[bytes] = []
    owners: list[int] = []
    made: list[Signatures] = []
    pending: list[frozenset[str]] = []
    for part in part_files(corpus):
        for content in read_part(part):
            for passage in passages(words(content), PASSAGE):
                owners.append(len(entries))
                pending.append(passage)
                if len(pending) == _BUILD:
                    made.append(signatures(pending))
                    pending = []
            record = hashlib.sha256(content).digest()
            entries.append(record_commitment.entry(record, secret))
    made.append(signatures(pending))
    index = PassageIndex(np.array(owners, dtype=np.int64), np.concatenate(made))
    return index, record_commitment.root(entries, committed=secret is not None)


def index_of(corpus: Place, root: str, secret: bytes | None = None) -> PassageIndex:
    """The index of a corpus whose records have this Merkle root: as kept, or built and kept.

    Args:
        corpus: The corpus's folder. The index is kept in ``FOLDER`` beside it, if that can be
            written.
        root: ``sha256:<hex>``, as its credential says.
        secret: What its records are committed under, if they are.

    Raises:
        UsageError: The records on disk have another root.
        Malformed: They cannot be read.
    """
    kept = None
    if isinstance(corpus, Path):  # below a bucket nothing is kept: it is read, never written
        kept = corpus.parent / FOLDER / f"{corpus.name}.index"
    found = _read(kept, root) if kept else None
    if found is None:
        found, built = build(corpus, secret)
        if built != root:
            raise UsageError(
                "these are not the records that the model was trained on",
                where=str(corpus),
                do="Name the corpora that its run read",
            )
        with suppress(OSError):  # only a cache: without it the next search takes as long
            if kept:
                _write(kept, root, found)
    return found


def near(
    text: bytes,
    corpora: Place,
    roots: Mapping[str, str],
    entry_of: Callable[[str, int], str | None],
    secrets: Mapping[str, bytes],
    *,
    least: float,
    limit: int,
) -> list[Near]:
    """The records that share most with a text, the most similar first.

    Args:
        text: What is asked about.
        corpora: The folder of corpora.
        roots: Corpus → Merkle root of its records, for the corpora that are looked at.
        entry_of: Gives the entry (hex) of a corpus's record by its place in Merkle order; None if
            there is none. A record on disk with another content is an error.
        secrets: Corpus → what its records are committed under, for corpora where they are.
        least: Smallest overlap of an answer, in (0, 1].
        limit: Answers at most.

    Raises:
        UsageError: The text is too large, has too few words, or a corpus's records are not those
            that are asked about.
        Malformed: A corpus that cannot be read.
    """

    if len(text) > MAX_BYTES:
        raise UsageError(
            f"the text has {len(text):,} bytes, more than a search takes: {MAX_BYTES:,}",
            where="FILE",
            do="Search for parts of it",
        )
    asked_words = words(text)
    asked = shingles(asked_words)
    if len(asked) < LEAST:
        raise UsageError(
            f"the text has {len(asked_words)} words, too few to find a near copy",
            where="FILE",
            do=f"Search for a text of {LEAST + SHINGLE - 1} words or more",
        )
    cut = signatures(list(passages(asked_words, STRIDE)))
    answers: list[Near] = []
    for corpus, root in sorted(roots.items()):
        secret = secrets.get(corpus)
        found = index_of(corpora / corpus, root, secret).candidates(cut)
        for record, content in _contents(corpora / corpus, sorted(found)):
            digest = hashlib.sha256(content).digest()
            entry = record_commitment.entry(digest, secret).hex()
            if entry != entry_of(corpus, record):
                raise UsageError(
                    f"record {record} is not the one that the model was trained on",
                    where=str(corpora / corpus),
                    do="Restore the corpus's files",
                )
            own = shingles(words(content))
            shared = len(own & asked)
            overlap = shared / max(1, min(len(own), len(asked)))
            if len(own) >= LEAST and overlap >= least:
                jaccard = shared / len(own | asked)
                answers.append(
                    Near(corpus, record, digest.hex(), jaccard, overlap, found[record], shared)
                )
    answers.sort(key=lambda each: (-each.overlap, -each.jaccard, each.corpus, each.record))
    return answers[:limit]


def _contents(corpus: Place, records: Sequence[int]) -> Iterator[tuple[int, memoryview]]:
    """The contents of some records, given in ascending order."""
    wanted = list(records)
    start = 0
    for part in part_files(corpus):
        if not wanted:
            return
        contents = read_part(part)
        while wanted and wanted[0] < start + len(contents):
            record = wanted.pop(0)
            yield record, contents[record - start]
        start += len(contents)


def _write(path: Path, root: str, index: PassageIndex) -> None:
    body = index.owners.astype("<i8").tobytes() + index.signatures.astype("<u4").tobytes()
    header = canonical_json.encode(
        {**_header(root), "passages": len(index.owners), "digest": canonical_json.sha256(body)}
    )
    path.parent.mkdir(exist_ok=True)
    # Made from records, which may be confidential.
    write_whole(path, header + b"\n" + body, mode=0o600)


def _read(path: Path, root: str) -> PassageIndex | None:
    """The index as it was written for this root; None if it was not, or is not whole."""
    try:
        header, _, body = path.read_bytes().partition(b"\n")
        stated = canonical_json.parse_canonical(header, where=str(path))
    except (OSError, GovrayError):
        return None
    if not isinstance(stated, dict):
        return None
    count = stated.get("passages")
    expected = {**_header(root), "passages": count, "digest": canonical_json.sha256(body)}
    if stated != expected or not isinstance(count, int):
        return None
    if len(body) != count * (8 + 4 * PERMUTATIONS):
        return None
    return PassageIndex(
        np.frombuffer(body[: 8 * count], dtype="<i8").astype(np.int64),
        np.frombuffer(body[8 * count :], dtype="<u4").reshape(count, PERMUTATIONS),
    )


def _header(root: str) -> dict[str, str | int]:
    return {
        "schema": _SCHEMA,
        "root": root,
        "algorithm": int(RMinHash.ALGORITHM_VERSION),
        "shingle": SHINGLE,
        "passage": PASSAGE,
        "permutations": PERMUTATIONS,
        "seed": SEED,
    }
