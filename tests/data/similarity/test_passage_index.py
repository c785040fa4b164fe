"""The index of passages: candidates of a linear scan, bytes of the records, nothing damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.data import corpus
from govray.data.corpus import Built, build, part_files
from govray.data.similarity import index_build, passage_index
from govray.data.similarity.index_build import FOLDER, build_index, built_index, in_turn, index_of
from govray.data.similarity.minhash import (
    BANDS,
    PERMUTATIONS,
    Signatures,
    passage_signatures,
)
from govray.data.similarity.near_copies import STRIDE, near
from govray.data.similarity.passage_index import (
    DIRECTORY,
    ENTRIES,
    HEADER,
    LEAST_EQUAL,
    PASSAGES,
    ROW,
    CorpusPassages,
    PassageIndex,
    open_index,
    write_index,
)
from govray.data.similarity.shingles import shingles
from govray.errors import Damaged

VOCABULARY = [f"word{number}" for number in range(900)]
SECRET = bytes(range(32))
ROOT = "sha256:" + "7" * 64


def linear_scan(passages: CorpusPassages, asked: Signatures) -> dict[int, float]:
    """The candidates by comparing every passage: what the index has to find, in any time."""
    found: dict[int, float] = {}
    for signature in asked:
        equal = passages.signatures == signature
        agrees = equal.reshape(len(equal), BANDS, PERMUTATIONS // BANDS).all(axis=2).any(axis=1)
        agrees &= equal.sum(axis=1) >= LEAST_EQUAL
        for passage in np.flatnonzero(agrees):
            owner = int(passages.owners[passage])
            found[owner] = max(found.get(owner, 0.0), float(equal[passage].mean()))
    return found


def written(folder: Path, passages: CorpusPassages, root: str = ROOT) -> PassageIndex:
    rows = np.empty(len(passages.owners), ROW)
    rows["record"], rows["signature"] = passages.owners, passages.signatures
    folder.mkdir(parents=True)
    parts = [int(passages.owners.max()) + 1] if len(rows) else []
    write_index(folder, root, parts, iter([rows[:3], rows[3:]]))
    return open_index(folder, root)


# Few values, so that bands agree often; and two of them in one band agree rarely.
values = st.integers(0, 1) | st.sampled_from([2**32 - 1, 2**31])
rows_of_values = st.lists(
    st.lists(values, min_size=BANDS, max_size=BANDS).map(
        lambda each: np.repeat(each, PERMUTATIONS // BANDS)
    ),
    max_size=30,
)


@given(stored=rows_of_values, asked=rows_of_values, collide=st.booleans(), data=st.data())
@settings(max_examples=25)
def test_candidates_are_those_of_a_linear_scan(
    tmp_path_factory: pytest.TempPathFactory,
    stored: list[Any],
    asked: list[Any],
    collide: bool,
    data: st.DataObject,
) -> None:
    owners = sorted(data.draw(st.integers(0, 9)) for _ in stored)
    passages = CorpusPassages(np.array(owners, np.int64), signatures_of(stored))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passage_index, "BLOCK_ENTRIES", 4)
        patch.setattr(passage_index, "BLOCK_ROWS", 3)
        if collide:  # keys say nothing, and what is found is the same
            real = passage_index.band_keys
            patch.setattr(passage_index, "band_keys", lambda *of: real(*of) & np.uint64(1 << 40))
        index = written(tmp_path_factory.mktemp("index") / "x", passages)
        assert index.candidates(signatures_of(asked)) == linear_scan(passages, signatures_of(asked))
        whole = index.passages()
    assert (whole.owners == passages.owners).all()
    assert (whole.signatures == passages.signatures).all()


def signatures_of(rows: Sequence[Any]) -> Signatures:
    return np.array(rows, np.uint32).reshape(len(rows), PERMUTATIONS)


def texts(seed: int, count: int) -> list[list[str]]:
    """Texts of 3 to 400 words, every fifth a changed copy of the one before."""
    draw = random.Random(seed)
    found: list[list[str]] = []
    for number in range(count):
        made = draw.choices(VOCABULARY, k=draw.randrange(3, 400))
        if number % 5 == 4:
            made = [draw.choice(VOCABULARY) if draw.random() < 0.04 else w for w in found[-1]]
        found.append(made)
    return found


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A corpus of 80 records in some eight parts."""
    folder = tmp_path_factory.mktemp("corpora")
    records = ((f"{i:04}", " ".join(each).encode()) for i, each in enumerate(texts(1, 80)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PART_BYTES", 16_000)
        made = build(folder, "several", records, secret=SECRET)
    assert len(part_files(made.folder)) > 5
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def test_the_bytes_follow_from_the_records_alone(
    several: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of the tasks, and the memory that they have."""

    def last_first(parts: Any, secret: bytes | None, folder: Path) -> Any:
        stems = [folder / f"{k}" for k in range(len(parts))]
        pairs = [*zip(parts, stems, strict=True)]
        found = [index_build.write_passages(part, secret, stem) for part, stem in pairs[::-1]]
        return found[::-1]

    made = []
    for name, how, at_once in [("a", in_turn, 1 << 16), ("b", last_first, 13)]:
        (tmp_path / name).mkdir()
        monkeypatch.setattr(index_build, "_AT_ONCE", at_once)
        monkeypatch.setattr(passage_index, "_AT_ONCE", at_once + 1)
        build_index(tmp_path / name, several.folder, several.root, SECRET, how)
        made.append(files(tmp_path / name))
    assert made[0] == made[1]
    assert made[0].keys() == {HEADER, DIRECTORY, PASSAGES, ENTRIES}
    assert all((tmp_path / "a" / name).stat().st_mode & 0o077 == 0 for name in made[0])
    # Parts of another size change the directory only, where they stand.
    other = build(
        tmp_path / "whole", "several",
        [(f"{i:04}", " ".join(each).encode()) for i, each in enumerate(texts(1, 80))],
        secret=SECRET,
    )  # fmt: skip
    (tmp_path / "d").mkdir()
    build_index(tmp_path / "d", other.folder, other.root, SECRET)
    found = files(tmp_path / "d")
    assert (found[PASSAGES], found[ENTRIES]) == (made[0][PASSAGES], made[0][ENTRIES])


def flip(name: str, place: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return damage


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


def header(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / HEADER).read_bytes()
        assert old in data
        (folder / HEADER).write_bytes(data.replace(old, new))

    return damage


DAMAGE: dict[str, Callable[[Path], object]] = {
    **{f"{name} cut": cut(name) for name in (HEADER, DIRECTORY, PASSAGES, ENTRIES)},
    **{f"{name} empty": (lambda f, n=name: (f / n).write_bytes(b"")) for name in (HEADER, ENTRIES)},
    **{f"no {name}": (lambda f, n=name: (f / n).unlink()) for name in (DIRECTORY, PASSAGES)},
    "a list": lambda folder: (folder / HEADER).write_bytes(b"[]"),
    "a long header": lambda folder: (folder / HEADER).write_bytes(b" " * 5000),
    "another version": header(b"similarity/v2", b"similarity/v3"),
    "another algorithm": header(b'"algorithm":', b'"algorithm":1'),
    "another form of text": header(b"compared-text/v1", b"compared-text/v0"),
    "another Unicode": header(b'"unicode":"1', b'"unicode":"2'),
    "another seed": header(b'"seed":17', b'"seed":18'),
    "a huge count": header(b'"passages":', b'"passages":99999'),
    "a count that is no number": header(b'"parts":', b'"parts":"x","q":'),
    "directory changed": flip(DIRECTORY, 11),
    "every entry changed": lambda folder: (folder / ENTRIES).write_bytes(
        bytes(len((folder / ENTRIES).read_bytes()))
    ),
    "every passage changed": lambda folder: (folder / PASSAGES).write_bytes(
        bytes(len((folder / PASSAGES).read_bytes()))
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_not_as_it_was_written_is_built_anew(
    several: Built, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    entries = corpus_entries(several)
    asked = " ".join(texts(1, 80)[43]).encode()

    def ask() -> list[Any]:
        roots, secrets = {"several": several.root}, {"several": SECRET}
        return near(
            asked, several.folder.parent, roots, lambda _, n, found: found == entries[n], secrets,
            least=0.1, limit=9,
        )  # fmt: skip

    first = ask()
    assert [each.record for each in first] == [43, 44]
    kept = several.folder.parent / FOLDER / "several"
    whole = files(kept)
    DAMAGE[name](kept)
    # The control: an index that is believed gives other answers, or none.
    built: list[object] = []
    real = index_build.build_index
    monkeypatch.setattr(index_build, "build_index", lambda *of: built.append(of[0]) or real(*of))
    assert ask() == first
    assert len(built) == 1
    assert files(kept) == whole
    assert ask() == first
    assert len(built) == 1, "a whole one is kept"


def test_control_without_digests_a_changed_index_is_believed(
    several: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = passage_signatures([shingles(" ".join(texts(1, 80)[43]).encode())], STRIDE)[1]
    index = built_index(several.folder, several.root, SECRET)
    assert set(index.candidates(asked)) == {43, 44}
    DAMAGE["every entry changed"](index.folder)
    with pytest.raises(Damaged, match="not as it was written"):
        open_index(index.folder, several.root).candidates(asked)
    monkeypatch.setattr(passage_index, "checked", lambda block, digest, path: block.tobytes())
    assert open_index(index.folder, several.root).candidates(asked) == {}
    monkeypatch.undo()
    built_index(several.folder, several.root, SECRET)


def corpus_entries(made: Built) -> list[str]:
    from govray.governance.policy.record_commitment import entry

    return [entry(each, SECRET).hex() for each in corpus.record_hashes(made.folder)]


def test_a_kill_in_the_middle_leaves_no_half_index(
    several: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that ends anywhere leaves what was there before, and the next build cleans up."""
    records = [(f"{i}", " ".join(each).encode()) for i, each in enumerate(texts(3, 9))]
    made = build(tmp_path, "one", records, secret=SECRET)
    kept = tmp_path / FOLDER / "one"

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    for place in ("_rows", "write_index", "_root"):
        with monkeypatch.context() as patch:
            patch.setattr(f"govray.data.similarity.index_build.{place}", killed)
            with pytest.raises(Killed):
                index_of(made.folder, made.root, SECRET)
        assert not kept.exists()
    leftover = kept.with_name(".one.0123abcd.partial")
    (leftover / "parts").mkdir(parents=True)  # of a process that was killed
    index_of(made.folder, made.root, SECRET)
    whole = files(kept)
    assert [each.name for each in kept.parent.iterdir()] == ["one"]
    # The next one is built beside it.
    with monkeypatch.context() as patch:
        patch.setattr("govray.data.similarity.index_build.write_index", killed)
        with pytest.raises(Killed):
            built_index(made.folder, made.root, SECRET)
    assert files(kept) == whole
