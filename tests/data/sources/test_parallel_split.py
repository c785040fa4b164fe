"""Corpora by several processes: roots, flaws and errors of one process, whatever runs when."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from govray.data import corpus
from govray.data.corpus import Built, verify_corpus
from govray.data.sources import parallel_split, quarantine
from govray.data.sources import split as serial_split
from govray.data.sources.columns import ColumnMapping
from govray.data.sources.objects import find
from govray.data.sources.parallel_split import secret_of
from govray.data.sources.quarantine import one_corpus
from govray.data.sources.reader import Reading
from govray.data.sources.terms import TermsReader
from govray.errors import GovrayError
from tests.support.source_files import FORMATS

NO_TERMS = ["license=", "jurisdiction=", "sensitivity="]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tasks, one after the other in this process; what travels is pickled all the same."""

    def results(source: Any, task: Any) -> Any:
        for number, bundle in enumerate(parallel_split.bundles(source)):
            items = pa.table({"number": [number], "source": [pickle.dumps(bundle)]})
            [data] = pickle.loads(pickle.dumps(task))(items).column("result").to_pylist()
            yield pickle.loads(data)

    monkeypatch.setattr(parallel_split, "TASK_BYTES", 100)
    monkeypatch.setattr(parallel_split, "_results", results)


def source_of(folder: Path, name: str = "rows.jsonl.gz", count: int = 6) -> Path:
    folder.mkdir()
    for number in range(count):
        FORMATS[name](folder / f"{number}-{name}")
    return folder


def build(folder: Path, source: Path, reading: Reading, *, several: bool) -> Built | str:
    """A corpus with its languages; of an error its text."""
    found, languages = find(str(source)), set[str]()
    selection = reading.filter()
    try:
        if several:
            [made] = parallel_split.split(folder, "c", found, reading, None, selection)
            return made.built
        records = reading.records(found, selection)
        return corpus.build(folder, "c", one_corpus(records, languages))
    except GovrayError as error:
        return str(error)


def contents(folder: Path) -> list[bytes]:
    return [bytes(each) for part in corpus.part_files(folder) for each in corpus.read_part(part)]


def check_equal(tmp_path: Path, source: Path, reading: Reading) -> Built:
    one = build(tmp_path / "one", source, reading, several=False)
    many = build(tmp_path / "many", source, reading, several=True)
    assert isinstance(one, Built), one
    assert isinstance(many, Built), many
    assert (many.count, many.bytes) == (one.count, one.bytes)
    assert contents(many.folder) == contents(one.folder)
    # Each has a secret of its own; with it, its own root holds.
    verify_corpus(many.folder, many.records)
    assert not [path for path in (tmp_path / "many").iterdir() if path.name != "c"]
    return many


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.csv", "rows.parquet", "rows.tar"])
def test_a_corpus_of_several_is_that_of_one(tmp_path: Path, name: str) -> None:
    reading = Reading(ColumnMapping.parse(NO_TERMS))
    built = check_equal(tmp_path, source_of(tmp_path / "in", name), reading)
    assert len(corpus.part_files(built.folder)) > 1


@pytest.mark.usefixtures("here")
def test_flaws_and_damage_are_what_one_process_finds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        lines = [json.dumps({"text": f"{number} {row} " * 90}) for row in range(20)]
        lines[7] = '{"text": 5}'
        path = tmp_path / "in" / f"{number}.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    reading = Reading(ColumnMapping())
    check_equal(tmp_path, tmp_path / "in", reading)
    refusing = Reading(ColumnMapping(), refuse_flaws=True)
    one, many = (
        build(tmp_path / "no", tmp_path / "in", refusing, several=several)
        for several in (False, True)
    )
    assert one == many
    assert "0.jsonl.gz, row 8" in str(many)
    path = tmp_path / "in" / "3.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    one, many = (
        build(tmp_path / "no", tmp_path / "in", reading, several=several)
        for several in (False, True)
    )
    assert one == many
    assert "3.jsonl.gz" in str(many)
    assert not list((tmp_path / "no").iterdir())


@pytest.mark.usefixtures("here")
def test_a_split_of_several_is_that_of_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    licences = ["MIT", "apache-2.0", None, "nobody knows"]
    for number in range(6):
        lines = [
            json.dumps({"text": f"{number} {row} " * 60, "license": licences[(number + row) % 4]})
            for row in range(20)
        ]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
    terms = TermsReader({"jurisdiction": "ZZ", "sensitivity": "public"}, {}, None)
    reading = Reading(ColumnMapping())
    one, many = reading.filter(), reading.filter()
    found = find(str(tmp_path / "in"))
    expected = serial_split.split(
        tmp_path / "one", "s", reading.records(found, one), terms, one.quarantine
    )
    made = parallel_split.split(tmp_path / "many", "s", found, reading, terms, many)
    assert [each.terms for each in made] == [each.terms for each in expected]
    for own, other in zip(made, expected, strict=True):
        assert own.built.name == other.built.name
        assert (own.built.count, own.built.bytes) == (other.built.count, other.built.bytes)
        assert contents(own.folder) == contents(other.folder)
        verify_corpus(own.folder, own.built.records)
    assert many.quarantine.records == one.quarantine.records > 0
    assert quarantine.encode({"v": [v.to_json() for v in many.quarantine.values]}) == (
        quarantine.encode({"v": [v.to_json() for v in one.quarantine.values]})
    )
    secrets = {(each.folder / "records.secret").read_bytes() for each in made}
    assert len(secrets) == len(made)


def test_secrets_differ_by_terms_and_by_build() -> None:
    assert len({secret_of(secret, None) for secret in (bytes(32), b"1" * 32)}) == 2
    assert len(secret_of(bytes(32), None)) == 32


@pytest.mark.usefixtures("cluster")
def test_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_split, "TASK_BYTES", 100)
    source = source_of(tmp_path / "in", count=9)
    check_equal(tmp_path, source, Reading(ColumnMapping.parse(NO_TERMS)))
