"""`corpus build` and `corpus ls`."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from govray.cli import source_files
from govray.errors import GovrayError
from govray.governance.formats import merkle
from govray.governance.formats.canonical_json import sha256
from govray.governance.policy.record_commitment import SECRET_FILE, entry
from tests.support.command import Run

LICENSE = ("--license", "MIT", "--issuer", "archive", "--jurisdiction", "DE")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, text in {"b.txt": "two", "a.txt": "one"}.items():
        (folder / name).write_text(text)
    return folder


def test_the_root_is_over_the_files_in_order_of_their_names(run: Run, source: Path) -> None:
    told = run("corpus", "build", source, "--name", "notes", *LICENSE, "--json").json
    secret = (Path(told["folder"]) / SECRET_FILE).read_bytes()
    leaves = [entry(bytes.fromhex(sha256(text)[7:]), secret) for text in (b"one", b"two")]
    assert told["root"] == f"sha256:{merkle.root_of(leaves).hex()}"
    assert told["records"] == 2
    stated = Path(told["credential"]).read_text()
    assert "sensitivity: restricted\n" in stated  # nobody said otherwise


def test_ls_tells_signed_unsigned_and_missing_apart(run: Run, source: Path, tmp_path: Path) -> None:
    run("keys", "new", "key.pem")
    for name in ("a", "b", "c"):
        run("corpus", "build", source, "--name", name, *LICENSE, "--out", "corpora")
    run("sign", "corpora/a/credential.yaml", "--key", "key.pem")
    (tmp_path / "corpora" / "c" / "credential.yaml").unlink()
    told = run("corpus", "ls", "corpora", "--json").json
    assert told["verified"] is False
    states = {row["corpus"]: row["state"] for row in told["corpora"]}
    assert states == {"a": "signed", "b": "unsigned", "c": "missing"}
    out = run("corpus", "ls", "corpora").out
    assert "permissive" in out
    assert "unsigned" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "no/slash"], "not a corpus name"),
        (["--license", "BSD License"], "SPDX"),
        (["--license", "LicenseRef-x"], "licence category"),
        (["--license-category", "copyleft"], "licenseCategory"),
        (["--jurisdiction", "XX"], "XX"),
        (["--sensitivity", "secret"], "confidential"),
        (["--valid-from", "now"], "--valid-from"),
        (["--valid-from", "2026-01-01T00:00:00Z", "--valid-until", "2025-01-01T00:00:00Z"], "from"),
        (["--out", "/dev/null/corpora"], "/dev/null"),
    ],
)
def test_a_wrong_option_is_usage_and_leaves_nothing(
    run: Run, source: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    base = ["--name", "notes", *LICENSE, "--out", "corpora"]
    done = run("corpus", "build", source, *base, *words, code=2)
    assert said in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


ROWS = [
    {"text": "one", "license": "MIT License", "lang": "en"},
    {"text": "two", "license": "BSD License", "lang": "en"},
    {"text": "three", "license": "mit", "lang": "de"},
    {"text": "four", "license": ["MIT", "GPL-3.0-only"], "lang": "en"},
    {"text": "five", "license": "CC BY-SA 4.0", "lang": "en"},
    {"text": "six", "license": "GPL-3.0-or-later", "lang": "en"},
    {"text": "seven", "lang": "en"},
    {"text": 8, "license": "MIT"},
]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_a_source_is_split_by_what_its_records_state(run: Run, mixed: Path) -> None:
    words = (
        "corpus",
        "split",
        mixed,
        "--name",
        "web",
        "--issuer",
        "archive",
        "--jurisdiction",
        "DE",
        "--sensitivity",
        "public",
    )
    planned = run(*words, "--dry-run", "--json").json
    assert not Path("data").exists()
    out = run(*words).out
    assert "web_GPL-3.0-or-later" in out
    assert "Quarantine: 5 records" in out
    assert "CC-BY-SA-4.0" in out
    run("keys", "new", "key.pem")
    rows = run("corpus", "ls", "data/corpora", "--json").json["corpora"]
    counts = {row["corpus"]: row["credential"]["records"]["count"] for row in rows}
    assert counts == {"web_GPL-3.0-or-later": "1", "web_MIT": "2"}
    assert {row["corpus"]: str(row["records"]) for row in planned["corpora"]} == counts
    assert planned["quarantined"] == 5
    assert [row["credential"]["licenseCategory"] for row in rows] == ["copyleft", "permissive"]
    for row in rows:
        run("sign", f"data/corpora/{row['corpus']}/credential.yaml", "--key", "key.pem")
    whys = json.loads(Path("data/corpora/web.quarantine.json").read_text())["quarantine"]
    assert {(each["attribute"], each["value"]) for each in whys} == {
        ("license", "BSD License"),
        ("license", "GPL-3.0-only | MIT"),
        ("license", "CC BY-SA 4.0"),
        ("license", ""),
        ("record", ""),
    }


def test_indexes_are_built_ahead_and_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "corpora"
    for name, count in (("a", 3), ("b", 2)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number} " * 70)
        words = ("--license", "MIT", "--issuer", "a", "--jurisdiction", "DE", "--out", str(out))
        assert run("corpus", "build", str(tmp_path / name), "--name", name, *words).code == 0

    def told(*more: str) -> list[tuple[str, int, int, str]]:
        rows = json.loads(run("corpus", "index", str(out), *more, "--json").out)["corpora"]
        kept = out / ".govray-similarity"
        sizes = {row["corpus"]: row["bytes"] for row in rows}
        assert sizes == {
            name: sum(each.stat().st_size for each in (kept / name).iterdir()) for name in sizes
        }
        keys = ("corpus", "records", "passages", "index")
        return [tuple(row[key] for key in keys) for row in rows]

    assert told() == [("a", 3, 3, "built"), ("b", 2, 2, "built")]
    before = (out / ".govray-similarity" / "a" / "bands").read_bytes()
    assert told() == [("a", 3, 3, "kept"), ("b", 2, 2, "kept")]
    # A changed byte is found even in a block that no question has asked for.
    changed = before[:-1] + bytes([before[-1] ^ 1])
    (out / ".govray-similarity" / "a" / "bands").write_bytes(changed)
    # With Ray Data, whose tasks run here one after the other; what travels is pickled.
    monkeypatch.setattr("govray.data.similarity.parallel_index.run_work", work_here)
    monkeypatch.setattr("govray.train.driver.ray_cluster.ray_running", nullcontext)
    assert told("--parallel") == [("a", 3, 3, "built"), ("b", 2, 2, "kept")]
    assert (out / ".govray-similarity" / "a" / "bands").read_bytes() == before
    text = run("corpus", "index", str(out)).out
    shown = [line.split() for line in text.splitlines() if "kept" in line]
    assert [row[:3] for row in shown] == [["a", "3", "3"], ["b", "2", "2"]]
    part = out / "a" / "records-00000.parquet"
    part.write_bytes((out / "b" / "records-00000.parquet").read_bytes())
    shutil.rmtree(out / ".govray-similarity")
    assert "not the records" in run("corpus", "index", str(out), code=2).err
    part.write_bytes(b"PAR1")
    for words in ([], ["--parallel"]):
        assert "Parquet" in run("corpus", "index", str(out), *words, code=1).err
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        assert str(folder) in run("corpus", "index", str(folder), code=2).err


def work_here(work: Any, items: Any, on_part: Any) -> None:
    """As `packing.run_work`, in this process and in another order."""
    errors = []
    for item in reversed(items):
        table = pa.table({"items": [pickle.dumps([item])]})
        [data] = pickle.loads(pickle.dumps(work))(table).column("result").to_pylist()
        item, result = pickle.loads(data)
        if isinstance(result, GovrayError):
            errors.append(result)
        else:
            on_part(item, result)
    if errors:
        raise errors[-1]


def jsonl(*rows: object) -> Path:
    path = Path("source.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


PERSONAL = [
    {"text": "The pump runs.", "license": "MIT"},
    {"text": "Write to jane.doe@example.org.", "license": "MIT"},
    {"text": "Version 1.2.3 of the pump.", "license": "MIT"},
    {"text": "Card 4111 1111 1111 1111 of joe@example.org", "license": "MIT"},
]


@pytest.mark.story
def test_records_with_personal_data_go_into_quarantine(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "mail.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in PERSONAL))
    words = ("corpus", "build", source, "--name", "mail", *LICENSE, "--column", "license=", "--pii")
    done = run(*words, code=2)
    assert "mail.jsonl, row 2: the record holds personal data, EMAIL_ADDRESS" in done.err
    assert not Path("data/corpora/mail").exists()
    told = run(*words, "--on-flaw", "quarantine", "--json").json
    assert (told["records"], told["quarantined"]) == (2, 2)
    stated = source_files.read(Path(told["credential"])).document.to_json()["piiScan"]
    assert stated["analyzer"].startswith("presidio-analyzer 2.2.")
    assert (len(stated["entities"]), stated["score"]) == (8, 0.5)
    kept = Path(told["file"]).read_text()
    assert json.loads(kept)["piiScan"] == stated == told["piiScan"]
    assert {each["value"]: each["examples"] for each in json.loads(kept)["quarantine"]} == {
        "CREDIT_CARD, EMAIL_ADDRESS": ["mail.jsonl, row 4"],
        "EMAIL_ADDRESS": ["mail.jsonl, row 2"],
    }
    split = ("corpus", "split", source, "--name", "web", "--issuer", "archive", "--sensitivity")
    some = run(*split, "public", "--pii", "--pii-entity", "CREDIT_CARD", "--pii-score", "0.9").out
    assert "Quarantine: 1 records" in some
    text = Path("data/corpora/web_MIT/credential.yaml").read_text()
    assert "score: 0.9" in text
    assert "EMAIL_ADDRESS" not in text
    left = [path.read_bytes() for path in Path("data").rglob("*.json*")]
    left += [path.read_bytes() for path in Path("data").rglob("*.yaml")]
    assert not any(b"example.org" in each or b"4111" in each for each in left)
    assert "example.org" not in some + kept + done.err


def test_opt_outs_are_looked_up_and_the_description_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "described.yaml").write_text("source: crawled\n")
    rows = [
        '{"text": "a", "url": "https://a.example/1"}',
        '{"text": "b", "url": "https://a.example/no/2"}',
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    file = {"host": "a.example", "path": "/robots.txt", "fetched": "2026-10-01T08:00:00Z"}
    for name, body, state, count in (
        ("free", "", "none_found", 2),
        ("some", "User-agent: *\nDisallow: /no/", "honoured", 1),
        ("mine", "User-agent: mine\nDisallow: /no/", "honoured", 1),
    ):
        (tmp_path / "o.jsonl").write_text(json.dumps(file | {"status": 200, "body": body}))
        words = ("--description", "described.yaml", "--opt-outs", "o.jsonl")
        agents = ("--opt-out-agent", "mine") if name == "mine" else ()
        run("corpus", "build", "rows.jsonl", *LICENSE, "--name", name, *words, *agents)
        path = tmp_path / f"data/corpora/{name}/credential.yaml"
        stated = source_files.read(path).document.to_json()
        assert stated["records"]["count"] == str(count)
        assert stated["description"]["optOut"] == state
        assert stated["description"]["optOutCheck"]["agents"] == list(agents[1:] or ("*",))
    build = ("corpus", "build", "rows.jsonl", *LICENSE, "--name", "x")
    assert "--description FILE too" in run(*build, "--opt-outs", "o.jsonl", code=2).err
    assert "--opt-outs FILE too" in run(*build, "--opt-out-agent", "a", code=2).err
    (tmp_path / "described.yaml").write_text("source: crawled\nopt_out: honoured\n")
    assert "states opt-outs itself" in run(*build, *words, code=2).err
    assert not (tmp_path / "data/corpora/x").exists()
