"""Commands in the pages: each one exists, and what is cheap runs in a shell as it stands there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer import Typer
from typer.core import TyperGroup as Group
from typer.main import get_command

from govray.cli import remote, source_files
from govray.cli.app import app
from govray.evidence.exports.export_format import FORMATS, SIGNED_PLACE
from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.policy.credential import CredentialClass
from govray.governance.policy.policy_yaml import read_policy
from govray.train.inputs.experiment_config import parse_experiment
from govray.tune.search_config import ExperimentFile
from tests.support import object_server, page_commands
from tests.support.forked_workers import forked_commands
from tests.support.object_server import Bucket
from tests.support.tree import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for each in ("*.md", "docs/*.md", "benchmarks/*.md")
    for path in ROOT.glob(each)
)


def blocks(page: str) -> list[str]:
    """What a page gives to a shell, each command on a line."""
    return [each.commands.replace("\\\n", " ") for each in page_commands.blocks(page)]


def commands(page: str) -> list[list[str]]:
    """The command lines of a page that start with a tool of ours."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    tools = [
        line for line in lines if re.match(r"(govray [a-z-]|python -m benchmarks|pytest )", line)
    ]
    return [shlex.split(line, comments=True) for line in tools]


def test_verbs_options_modules_and_tests_that_pages_name_are_there() -> None:
    faults = [f"{page}: {fault}" for page in PAGES for fault in faults_of(page)]
    assert not faults, "\n".join(faults)


def test_the_page_of_the_experiment_file_has_each_field_once() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/experiment-file.md").read_text(), re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(ExperimentFile.model_fields)


def faults_of(page: str) -> Iterator[str]:
    for tool, *words in commands(page):
        if tool == "govray":
            yield from verb_faults(words)
        elif tool == "python" and importlib.util.find_spec(words[1]) is None:
            yield f"no module {words[1]}"
    if page != "CHANGELOG.md":  # of each day's names
        named = re.findall(r"\btests/[\w/]+\.py", (ROOT / page).read_text())
        yield from (f"no file {each}" for each in named if not (ROOT / each).exists())


@cache
def verbs(of: Typer) -> Any:
    """Its commands; reading the signatures of all takes half a second."""
    return get_command(of)


def verb_faults(words: list[str]) -> Iterator[str]:
    """What of a command line is no verb or option."""
    there = words[:1] == ["--server"]
    found: Any = verbs(remote.app if there else app)
    left = list(words[2:] if there else words)
    while isinstance(found, Group) and left and left[0] in found.commands:
        found = found.commands[left.pop(0)]
    if isinstance(found, Group) and left[:1] not in (["--help"], []):
        yield f"{words}: no such verb"
    known = {option for each in found.params for option in each.opts} | {"--help", "--json"}
    yield from (f"{words}: {each}" for each in left if each.startswith("--") and each not in known)


@pytest.fixture(scope="module")
def forked_govray() -> Iterator[Path]:
    """Commands of these pages as forks of a process that has imported what they need."""
    with forked_commands() as govray:
        yield govray


@pytest.fixture
def shell(tmp_path: Path, at: str, forked_govray: Path) -> Any:
    """Give a block to bash in the test's folder. Models are checked as of the deployment's time."""
    tools = tmp_path / "bin"
    tools.mkdir()
    govray = tools / "govray"
    govray.write_text(
        f'#!/bin/sh\ncase "$1 $2" in verify*|"model export") set -- "$@" --at {at};; esac\n'
        f'exec {forked_govray} "$@"\n'
    )
    govray.chmod(0o755)
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def shell(block: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return shell


def test_a_model_is_verified_as_the_page_says(
    shell: Any, model: Path, root: Path, tmp_path: Path
) -> None:
    model.rename(tmp_path / "MODEL")
    root.rename(tmp_path / "ROOT")
    verifies, *_ = blocks("docs/verifying.md")
    assert "VERIFIED MODEL" in shell(verifies)
    (tmp_path / "MODEL" / "model.safetensors").write_bytes(b"")
    with pytest.raises(AssertionError, match=r"model\.safetensors"):
        shell(verifies)


@pytest.mark.story
def test_exports_are_written_as_the_page_says(
    shell: Any, model: Path, root: Path, tmp_path: Path
) -> None:
    model.rename(tmp_path / "MODEL")
    root.rename(tmp_path / "ROOT")
    exports = page_commands.section("docs/evidence.md", "Exports")
    told = shell(f"exec 2>&1\n{exports}")
    assert "Verification succeeded" in told
    made = {each.name for each in (tmp_path / "MODEL.exports").iterdir()}
    assert made == {SIGNED_PLACE, *(each.place for each in FORMATS.values())}


def test_a_root_is_pinned_as_the_page_says(
    shell: Any, model: Path, root: Path, tmp_path: Path
) -> None:
    [pins] = [each for each in blocks("docs/keys-and-trust.md") if "--pin" in each]
    [compares] = [each for each in blocks("docs/keys-and-trust.md") if "--also" in each]
    shutil.copyfile(model / "governance" / "ledger.checkpoint", tmp_path / "other.checkpoint")
    with pytest.raises(AssertionError, match="trust root"):
        shell(compares)
    assert shell(pins).count("VERIFIED model") == 2
    assert "VERIFIED model" in shell(compares)


def test_keys_are_made_as_the_page_says(shell: Any, tmp_path: Path) -> None:
    makes, *_ = blocks("docs/keys-and-trust.md")
    shell(makes)
    made = tmp_path / ".config" / "govray"
    assert {path.name for path in made.glob("*.pub")} == {"root-1.pem.pub", "compliance.pem.pub"}


def test_a_deployment_is_begun_as_the_quickstart_says(shell: Any, tmp_path: Path) -> None:
    [begins] = [each for each in blocks("docs/quickstart.md") if each.startswith("govray init")]
    shell(begins)
    assert (tmp_path / "my-deployment" / "jobs" / "train.yaml").is_file()


def test_policies_are_asked_as_the_page_says(shell: Any) -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    seen = re.findall(r"^\| `(\w+)` \|", page.partition("## Profiles")[0], re.M)
    assert seen == list(CredentialClass.model_fields)
    shell("govray init here && cp -r here/policies policies")
    told = shell(blocks("docs/policies.md")[0])
    assert "licences v1: nothing found" in told
    assert re.search(r"^block\.3 +0 +contracts", told, re.M)
    assert "classes are treated differently" in told


@pytest.mark.story
def test_a_mixed_table_becomes_signed_corpora_as_the_page_says(shell: Any, tmp_path: Path) -> None:
    [builds, _, _, plans, splits, signs, compares, _, _, opens, scans, *_] = blocks(
        "docs/corpora.md"
    )
    shell(f"govray keys new ~/govray-keys/data-office.pem\n{builds}")
    told = shell(plans)
    assert "Nothing was written" in told
    for said in ("conflicting values", "CC-BY-SA-4.0", "several licences", "there is no text"):
        assert said in told
    shell(splits)
    told = shell(signs)
    signed = {path.parent.name for path in (tmp_path / "data").rglob("credential.dsse.json")}
    assert signed == {
        "pump-notes", "web_BSD-3-Clause_US", "web_CC-BY-4.0_FR", "web_CC-BY-SA-4.0_GB",
        "web_MIT_US",
    }  # fmt: skip
    assert told.count(" signed") == len(signed)
    assert "None of 430 records" in shell(compares)
    kept = json.loads((tmp_path / "data/corpora/web.quarantine.json").read_text())
    assert kept["quarantined"] == 7
    assert "Opened record 7 of pump-notes" in shell(opens)
    assert json.loads((tmp_path / "note.opening.json").read_bytes())["index"] == "7"
    told = shell(scans)
    assert "Corpus letters: 2 records" in told
    assert "EMAIL_ADDRESS" in told


def test_a_corpus_is_described_as_the_page_says(shell: Any, tmp_path: Path) -> None:
    [builds, describes, *_] = blocks("docs/corpora.md")
    shell(builds)
    assert "Corpus crawled-notes: 200 records" in shell(describes)
    path = tmp_path / "data" / "corpora" / "crawled-notes" / "credential.yaml"
    stated = source_files.read(path).document.to_json()["description"]
    page = (ROOT / "docs" / "corpora.md").read_text().partition("## How a corpus came to be")[2]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.M)))
    assert named[: len(CorpusDescription.model_fields)] == [
        "source", "url", "domains", "collected", "content", "modality", "languages",
        "opt_out_check", "opt_out", "opt_out_measures", "illegal_content_measures",
        "personal_data", "crawlers", "generators", "hours",
    ]  # fmt: skip
    assert set(named) >= CorpusDescription.model_fields.keys()
    assert stated["languages"] == ["en"]
    assert stated["domains"]["sizes"] == {"pumps.example": 180, "valves.example": 20}


def test_what_sites_reserve_is_left_out_as_the_page_says(shell: Any, tmp_path: Path) -> None:
    [_, _, looks_up, *_] = blocks("docs/corpora.md")
    (tmp_path / "sources").mkdir(exist_ok=True)
    shutil.copytree(ROOT / "policies", tmp_path / "policies", dirs_exist_ok=True)
    told = shell(looks_up)
    assert "Corpus looked-up: 2 records" in told
    assert "rights reserved by /.well-known/tdmrep.json of 2026-10-01T08:00:01Z" in told
    path = tmp_path / "data" / "corpora" / "looked-up" / "credential.yaml"
    stated = source_files.read(path).document.to_json()["description"]
    assert stated["optOut"] == "honoured"
    assert stated["optOutCheck"]["agents"] == ["*"]
    assert stated["optOutCheck"]["last"] == "2026-10-01T08:00:02Z"


def test_a_corpus_is_built_from_a_bucket_as_the_page_says(shell: Any, tmp_path: Path) -> None:
    builds, *others = blocks("docs/corpora.md")
    [fetches] = [each for each in others if "s3://" in each]
    shell(builds)
    server = object_server.start()
    try:
        server.bucket("acme-data")
        Bucket(server, "acme-data").take(tmp_path / "sources", "notes/2026")
        given = object_server.CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}"}
        told = shell("".join(f"export {name}={each}\n" for name, each in given.items()) + fetches)
    finally:
        server.stop()
    assert "Corpus pump-notes-2026: 200 records" in told
    corpora = tmp_path / "data/corpora"
    parts = [corpora / name / "records-00000.parquet" for name in ("pump-notes", "pump-notes-2026")]
    assert parts[0].read_bytes() == parts[1].read_bytes()


def test_the_tutorial_s_experiment_reads_what_its_policy_lets_its_corpora_train() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    [source] = re.findall(r"^cat > jobs/first\.yaml <<END\n(.*?)^END$", text, re.M | re.S)
    experiment = parse_experiment(yaml.safe_load(source), where="docs/tutorial.md")
    policy = read_policy((ROOT / "policies" / "licences.yaml").read_text())
    corpora = {"PSF-2.0": "permissive", "LicenseRef-acme": "commercial"}
    labels = set()
    for number, (license, category) in enumerate(corpora.items()):
        assert f"--license {license}" in text
        seen = {"license_category": category, "sensitivity": "public", "use": "commercial"}
        cls = {"corpus": f"c{number}", "license": license, "jurisdiction": "ZZ", **seen}
        labels.add(policy.decide(CredentialClass.from_source(cls)).label)
    assert labels == experiment.data.rows_per_step.keys()
