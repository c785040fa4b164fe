"""`govray trace` on a run: the record itself, a changed copy, a piece, and what is not there."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import col, select

from govray.cli import main
from govray.cli.store import opened_session
from govray.data.corpus import part_files, read_part
from govray.data.similarity.near_copies import near_records
from govray.extras import EXTRAS, install
from govray.governance.formats import canonical_json
from govray.governance.formats.text_form import TEXT_FORM
from govray.governance.policy.record_commitment import SECRET_FILE
from govray.platform.service.acting.case_desk import read_cases
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.store.tables import Record
from govray.train.attest.write_model import write_model
from govray.train.inputs.recorded_inputs import prepared_folder
from govray.train.inputs.run_record import read_record
from tests.support.deployment import Deployment
from tests.support.solo import run_here

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        yield Deployment(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="module")
def run(here: Deployment) -> Path:
    trainer = here.trainer(max_steps=3, checkpoint={"every_steps": 3})
    found = trainer.train()
    write_model(found, trainer.signer())
    return found


@pytest.fixture(scope="module")
def prepared(run: Path) -> Path:
    return prepared_folder(run, read_record(run))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def ask(command: Command, here: Deployment, run: Path, tmp_path: Path) -> Command:
    def asked(text: bytes, *more: object, model: Path = run / "model") -> tuple[int, str, str]:
        (tmp_path / "text.txt").write_bytes(text)
        words = ["trace", tmp_path / "text.txt", "--model", model, "--trust-root", here.root]
        return command(*words, *more)

    return asked


def content(here: Deployment, corpus: str, record: int) -> bytes:
    [part] = part_files(here.corpora / corpus)
    return bytes(read_part(part)[record])


def test_a_record_is_found_exactly_and_a_changed_copy_nearly(
    here: Deployment, ask: Command
) -> None:
    text = content(here, "acme", 5)
    code, out, err = ask(text, "--json", "--limit", 1)
    assert code == 0, err
    told = json.loads(out)
    assert [(s["corpus"], s["record"]) for s in told["sightings"]] == [("acme", 5)]
    assert told["searched"] == ["acme", "open-one", "open-two", "weak-one"]
    assert told["notSearched"] == {}
    assert told["textForm"] == TEXT_FORM

    code, out, err = ask(text.upper() + b" and a few words more", "--json", "--limit", 1)
    told = json.loads(out)
    assert (code, told["found"], told["sightings"]) == (0, False, []), err
    [near] = told["near"]
    assert (near["corpus"], near["record"], near["overlap"]) == ("acme", 5, 1.0)
    assert 0.5 < near["jaccard"] < 1
    assert set(near["groups"]) <= {"adapter:acme"}
    assert bool(near["groups"]) == bool(near["steps"])


WITHOUT = """
import sys

sys.modules |= dict.fromkeys({missing!r})
from govray.cli import main

sys.exit(main({words!r}))
"""


def test_it_needs_its_extra_and_no_more(here: Deployment, run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(content(here, "acme", 5).upper())
    asked = ["trace", tmp_path / "text.txt", "--model", run / "model", "--trust-root", here.root]
    words = list(map(str, asked))

    def told(*missing: str) -> tuple[int, str]:
        program = WITHOUT.format(missing=missing, words=words)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    code, said = told(*(name for name, extra in EXTRAS.items() if extra != "trace"))
    assert (code, "Near copy in acme, record 5" in said) == (0, True), said
    for name in ("pyarrow", "rensa", "regex"):  # the control
        code, said = told(name)
        assert (code, f"{install('trace')}" in said, "Traceback" in said) == (3, True, False), said


def test_what_keeps_near_copies_from_being_looked_for_is_said(
    here: Deployment, ask: Command, run: Path, prepared: Path, tmp_path: Path
) -> None:
    code, out, err = ask(b"three words only")
    assert (code, "too few" in out) == (0, True), err
    code, _, err = ask(b"three words only", "--corpora", here.corpora)
    assert (code, "too few" in err) == (2, True)
    # Away from its run, a model folder does not know where records lie.
    model = tmp_path / "given" / "model"
    shutil.copytree(run / "model", model)
    text = content(here, "acme", 5) + b"."
    code, _, err = ask(text, model=model)
    assert (code, "the model's records are not here" in err, "--records" in err) == (3, True, True)
    # Beside the folder of its run it does, as the demo leaves it.
    (model.parent / "runs").symlink_to(run.parent)
    code, out, err = ask(text, model=model)
    assert (code, "Near copy in acme, record 5" in out) == (0, True), err
    (model.parent / "runs").unlink()
    away = ("--records", prepared)
    for folder in (prepared, prepared.parent):  # of all prepared folders the model's is taken
        code, out, _ = ask(text, "--records", folder, model=model)
        assert (code, "--corpora" in out, "Near copy in" in out) == (0, True, False)
    code, out, _ = ask(text, "--corpora", here.corpora, *away, model=model)
    assert (code, "Near copy in acme, record 5" in out) == (0, True)
    for folder, says in [(tmp_path, "none of the model's corpora"), (Path("none"), "not a folder")]:
        code, _, err = ask(text, "--corpora", folder, *away, model=model)
        assert (code, says in err) == (2, True), err
    code, _, err = ask(text, "--records", tmp_path, model=model)
    assert (code, "not a prepared folder" in err) == (2, True), err


def test_a_model_alone_tells_nothing_of_a_record_and_an_opening_tells_of_it(
    here: Deployment, ask: Command, command: Command, run: Path, prepared: Path, tmp_path: Path
) -> None:
    model = tmp_path / "given" / "model"
    shutil.copytree(run / "model", model)
    away = ("--records", prepared)
    text = content(here, "acme", 5)
    record, opening = tmp_path / "record", tmp_path / "opening.json"
    record.write_bytes(text)
    # Without secrets the answer for a record is that for any other bytes, and it says so.
    answers = []
    for asked in (text, text + b"?"):
        code, out, err = ask(asked, *away, "--json", model=model)
        assert code == 0, err
        answers.append({k: v for k, v in json.loads(out).items() if k != "record"})
    assert answers[0] == answers[1]
    assert (answers[0]["found"], answers[0]["sightings"]) == (False, [])
    assert list(answers[0]["closed"]) == ["acme", "open-one", "open-two", "weak-one"]
    _, out, _ = ask(text, *away, model=model)
    assert "Not found in the corpora that could be searched" in out
    assert "Not searched: acme" in out
    # No file of the model holds what opens a record.
    secret = (here.corpora / "acme" / SECRET_FILE).read_bytes()
    digest = hashlib.sha256(text).digest()
    kept = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    kept += [path.read_bytes() for path in model.rglob("*") if path.is_file()]
    assert len(kept) > 10
    for value in (secret, digest):
        assert not [each for each in kept if value in each or value.hex().encode() in each]
    # The control: with the secrets, and with the opening.
    code, out, err = ask(text, "--corpora", here.corpora, *away, "--json", model=model)
    assert (code, json.loads(out)["closed"]) == (0, {}), err
    whole = json.loads(out)["sightings"]
    assert [(each["corpus"], each["record"]) for each in whole] == [("acme", 5)]
    code, out, err = command("corpus", "open", here.corpora / "acme", record, "--out", opening)
    assert (code, "Opened record 5 of acme" in out) == (0, True), err
    assert stat.S_IMODE(opening.stat().st_mode) == 0o600
    assert f"Next  govray trace {shlex.quote(str(record))}" in out
    for verb in (("show", opening), ("verify", opening, "--trust-root", here.root)):
        code, _, err = command(*verb)
        assert (code, "--opening OPENING" in err) == (2, True), err
    code, out, err = ask(text, "--opening", opening, *away, "--json", model=model)
    assert (code, json.loads(out)["sightings"]) == (0, whole), err
    _, out, _ = ask(text, "--opening", opening, *away, model=model)
    assert "Found in acme, record 5" in out
    # The model folder alone shows that the record is in the corpus, and not which rows it became.
    code, out, err = ask(text, "--opening", opening, "--json", model=model)
    told = json.loads(out)
    assert (code, told["found"], told["sightings"]) == (0, True, None), err
    assert (told["corpus"], told["index"]) == ("acme", 5)
    assert "not known: name the prepared folder" in ask(text, "--opening", opening, model=model)[1]
    # It opens this record, in this corpus, and no other.
    code, _, err = ask(content(here, "acme", 6), "--opening", opening, *away, model=model)
    assert (code, "it opens another record" in err) == (1, True), err
    code, _, err = ask(text, "--opening", opening, "--corpora", here.corpora, *away, model=model)
    assert (code, "not both" in err) == (2, True), err
    for field, value, says in [
        ("corpus", "mystery", "was not trained on a corpus"),
        ("corpus", "open-one", "another version"),
        ("index", "6", "the proof does not hold"),
        ("opening", "00" * 32, "the proof does not hold"),
    ]:
        changed = tmp_path / "changed.json"
        stated = json.loads(opening.read_bytes()) | {field: value}
        changed.write_bytes(canonical_json.encode(stated))
        code, _, err = ask(text, "--opening", changed, *away, model=model)
        assert (code, says in err, str(changed) in err) == (1, True, True), err


def test_a_rights_holder_gets_as_much_by_a_case(
    here: Deployment, run: Path, command: Command, ask: Command, tmp_path: Path
) -> None:
    """The trained model is indexed, asked about over HTTP, and its adapter removed for the case."""

    def done(*words: object) -> None:
        code, _, err = command(*words)
        assert code == 0, err

    store = ["--store", f"sqlite:///{tmp_path / 'store.db'}"]
    trusted = ["--trust-root", here.root]
    done("store", "upgrade", *store)
    done("store", "index", run.parent, *trusted, *store)
    named = ["--name", "tiny", *trusted, *store]
    done("model", "register", run / "model", "--version", "1.0.0", "--public", *named)
    (tmp_path / "cases.yaml").write_text(f"key: {here.key}\ncorpora: {here.corpora}\n")
    settings = Settings(store=store[1], auth=False, cases=read_cases(tmp_path / "cases.yaml"))
    r = Record
    trained = select(r.record).where(r.corpus == "acme", col(r.step_count) > 0)
    with opened_session(store[1]) as session:
        numbers = session.exec(trained.order_by(col(r.record))).all()
    # The corpora say the same but for their names, which stand at the other end of the sentence.
    # What is found in acme alone is closed by removing its adapter.
    for number in numbers:
        text = content(here, "acme", number).decode().replace("jumps", "hops")
        _, out, _ = ask(text.encode(), "--json", "--limit", 1000)
        traced = json.loads(out)["near"]
        if {each["corpus"] for each in traced} == {"acme"}:
            break
    else:
        pytest.fail("each record of acme is like one of another corpus")
    with TestClient(create_app(settings, near=near_records)) as client:

        def post(path: str, body: object = None) -> dict[str, Any]:
            answer = client.post(f"/v1/cases{path}", json=body)
            assert answer.is_success, answer.text
            told: dict[str, Any] = answer.json()
            return told

        case = post("", {"contact": "me@example.org", "text": text})["case"]
        found = post(f"/{case}:search")["found"]["findings"]
        own = [each for each in found if each["corpus"] == "acme"]
        # What the command finds in the folder, the service finds by its index.
        said = sorted((each["overlap"], each["jaccard"], each["steps"]) for each in own)
        assert said == sorted((e["overlap"], e["jaccard"], e["steps"]) for e in traced)
        assert any(each["groups"] == ["adapter:acme"] for each in own)
        post(f"/{case}:answer", {})
        answer = tmp_path / "answer.dsse.json"
        answer.write_bytes(client.get(f"/v1/cases/{case}/answer").content)
        code, out, _ = command("verify", answer, *trusted, "--json")
        told = json.loads(out)["document"]["result"]["findings"]
        assert (code, len(told), "acme" in out) == (0, len(found), False)

        later = tmp_path / "later" / "model"
        shutil.copytree(run / "model", later)
        post(f"/{case}:decide", {"decision": "removed", "reason": "Its adapter is deleted."})
        done("model", "register", later, "--version", "1.0.1", *named)
        refused = client.post(f"/v1/cases/{case}:link", json={"model": "tiny", "version": "1.0.1"})
        assert (refused.status_code, "found in" in refused.text) == (409, True)
        done("adapter", "remove", later, "acme", "--key", here.key, *trusted)
        done("model", "register", later, "--version", "1.1.0", *named)
        state = post(f"/{case}:link", {"model": "tiny", "version": "1.1.0"})["state"]
        closing = client.get(f"/v1/cases/{case}/answer").content
    assert state == "CLOSED"
    answer.write_bytes(closing)
    code, out, _ = command("verify", answer, *trusted, "--json")
    assert (code, json.loads(out)["document"]["outcome"]["versions"][0]["version"]) == (0, "1.1.0")
