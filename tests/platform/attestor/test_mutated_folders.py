"""Random mutations of a finished run's folder: none is signed.

Whoever writes the storage changes a run's folder after its job has posted its last commit. In half
of the mutations the commit's manifest fits the change, and so does what the commit names beside it.
An attestation to the letter that of the untouched folder is no attack: nothing that is attested was
changed.

A job may post what it mutated: then its own statements change, and no others.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from govray.errors import CouldNotCheck, GovrayError, InfrastructureFailed
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.formats.dsse import Envelope
from govray.governance.record.ledger import Ledger
from govray.platform.attestor.register_tables import Posted, RunOutcome
from govray.train.checkpoint.commit_folder import MANIFEST
from govray.train.checkpoint.storage import folder_name
from govray.train.run_folder import ledger_tree
from govray.train.run_folder.clock import instant
from tests.support.attesting import SUBMISSION, Room, ended
from tests.support.deployment import Deployment
from tests.support.mutations import (
    Files,
    change_json,
    delete_file,
    edit_envelope,
    edit_tensors,
    flip_bits,
    insert,
    pick,
    swap_files,
    truncate,
)
from tests.support.solo import run_here
from tests.support.world import write

STEPS = 12
COMMIT = folder_name(STEPS)
STATE, LEDGER = f"{COMMIT}/state.json", f"{COMMIT}/ledger.jsonl"
BROKEN = (KeyError, TypeError, ValueError, AttributeError, RecursionError, GovrayError)
FEW, MANY = 39, 5_000
NOT_THE_JOB_S = (
    *("policy", "trustRoot", "manifest", "plan", "corpora", "quarantine", "levels", "taint"),
    *("domains", "pretrained", "replays", "removals", "assuranceLevel", "disclaimer"),
)

story = [pytest.mark.story, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Folders:
    """What is mutated, and where a mutation may take other bytes from.

    Attributes:
        untouched: The files of the run that the attestor copies, by name.
        others: Files of an older commit of the run, and of another run, by name.
    """

    room: Room
    untouched: Files
    others: Files
    payload: bytes

    def attested(self, files: Files) -> bytes | None:
        """The statement that the attestor signs of a folder of these files, if it signs one."""
        run, model = self.room.run, self.room.model
        for name in {*self.untouched} - {*files}:
            (run / name).unlink()
        changed = {name for name in files if self.untouched.get(name) != files[name]}
        for name in changed:
            write(run / name, files[name])
        try:
            self.room.attest()
            return _statement(model) if model.exists() else None
        except (CouldNotCheck, InfrastructureFailed):  # tried again, it ends like this each time
            return None
        finally:
            shutil.rmtree(model, ignore_errors=True)
            for name in changed - {*self.untouched}:
                (run / name).unlink()
            for name in (changed | {*self.untouched} - {*files}) & {*self.untouched}:
                write(run / name, self.untouched[name])

    def posted(self, files: Files) -> Folders:
        """The same, where the job has posted these files as its last commit."""
        register = self.room.attestor.register
        try:
            ledger = _ledger(json.loads(files[STATE]), files)
            size, root = ledger.size, f"sha256:{ledger.root.hex()}"
        except BROKEN:
            size, root = register.last.ledger_size, register.last.ledger_root
        changed = {
            "commit": canonical_json.sha256(files.get(f"{COMMIT}/{MANIFEST}", b"")),
            "ledger_size": size,
            "ledger_root": root,
        }
        told = replace(register, last=register.last.model_copy(update=changed))
        room = replace(self.room, attestor=replace(self.room.attestor, register=told))
        return replace(self, room=room)


def _statement(model: Path) -> bytes:
    return Envelope.parse((model / model_folder.ATTESTATION).read_bytes()).payload


@dataclass(frozen=True)
class Forgetful:
    """A register that forgets what it decided, so that a run can be attested once more.
    ``last``: the last post of the run."""

    register: Any
    last: Posted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.register, name)

    def ended(self, submission: str, run: str) -> Posted:
        return self.last

    def settle(self, new: RunOutcome, *, before: RunOutcome | None) -> bool:
        return True


@pytest.fixture(scope="module")
def folders(
    alone: Path, deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Folders]:
    checkpoint = {"every_steps": 5, "save_trial_latest": 3}
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        patch.setattr(ledger_tree, "TILE", 4)
        several = deployment.trainer(name="several", checkpoint=checkpoint)
        run = Path(str(several.train(attest=True)))
    older = {name: data for name, data in _files(run).items() if not _copied(name) and "/" in name}
    with ended(run, deployment, tmp_path_factory.mktemp("mutated")) as room:
        now = instant()
        last = room.attestor.register.ended(SUBMISSION, room.run.name)
        assert last is not None
        register: Any = Forgetful(room.attestor.register, last)
        attestor = replace(room.attestor, register=register, clock=lambda: now)
        room = replace(room, attestor=attestor)
        untouched = {name: data for name, data in _files(run).items() if _copied(name)}
        assert room.attest().state == "ATTESTED"
        payload = _statement(room.model)
        shutil.rmtree(room.model)
        yield Folders(room, untouched, older | _files(alone), payload)


def _files(run: Path) -> Files:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and "model" not in path.relative_to(run).parts[:1]
    }


def _copied(name: str) -> bool:
    return name.startswith(("record/", f"{COMMIT}/", "governance/"))


Mutation = Callable[[random.Random, Files, Files], None]


def from_elsewhere(rng: random.Random, files: Files, others: Files) -> None:
    """A file of an older commit, or of another run, most often the one of the same name."""
    name = pick(rng, files)
    of_its_name = [each for each in sorted(others) if each.endswith(name.rpartition("/")[2])]
    files[name] = others[rng.choice(of_its_name or sorted(others))]


def record_from_elsewhere(rng: random.Random, files: Files, others: Files) -> None:
    for name in others:
        if name.startswith("record/") and rng.random() < 0.7:
            files[name] = others[name]


def add_file(rng: random.Random, files: Files, others: Files) -> None:
    place = rng.choice(
        [
            *(f"{COMMIT}/extra", f"{COMMIT}/ema/model.safetensors", f"{COMMIT}/gates.jsonl"),
            *(f"{COMMIT}/adapters/x/adapter_model.safetensors", "record/extra", "record/a/b"),
            *("governance/root.json", "governance/revocations/x.dsse.json"),
            *(f"{COMMIT}/Manifest.json", f"{COMMIT}/model.safetensors.partial"),
        ]
    )
    files[place] = files[pick(rng, files)]


def _documents(files: Files) -> list[str]:
    return [
        each for each in sorted(files) if files[each][:1] in (b"{", b"[") and files[each] != b"{}"
    ]


def _lines(files: Files) -> list[str]:
    return [each for each in sorted(files) if files[each].count(b"\n") > 1]


def edit_document(rng: random.Random, files: Files, others: Files) -> None:
    """A field of a document, or of what an envelope signs, in canonical form again."""
    name = rng.choice(_documents(files))
    lines = files[name].split(b"\n")
    at = rng.choice([each for each, line in enumerate(lines) if line])
    lines[at] = edit_envelope(rng, lines[at])
    files[name] = b"\n".join(lines)


def edit_summary(rng: random.Random, files: Files, others: Files) -> None:
    """What a run says of itself: its times, plan, groups, start, end and search."""
    value = json.loads(files["record/run.json"])
    field = rng.choice([*sorted(value), "ended", "start", "ancestry", "selection", "validation"])
    match field:
        case "started" | "finished":
            began = parse_time(value["started"])
            value[field] = format_time(began + timedelta(seconds=rng.randrange(-9, 99)))
        case _ if isinstance(value.get(field), dict | list):
            change_json(rng, value[field])
        case _:
            value[field] = rng.choice([1, STEPS, STEPS + 1, None, "x", "", [], {}, {"a": "b"}])
    files["record/run.json"] = canonical_json.encode(value)


def edit_leaves(rng: random.Random, files: Files, others: Files) -> None:
    """The ledger's leaves: replaced, dropped, doubled, in another order, or with other counts. They
    lie in tiles, and behind the last one in the commit."""
    tiles = json.loads(files[STATE])["ledger"]["tiles"]
    name = rng.choice([*(_object(each) for each in tiles), LEDGER])
    lines = files[name].splitlines(keepends=True)
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            rng.shuffle(lines)
        case 2:
            lines.insert(at, rng.choice(lines))
        case 3:
            lines[at] = rng.choice(lines)
        case _:
            value = json.loads(lines[at])
            change_json(rng, value)
            lines[at] = canonical_json.encode(value) + b"\n"
    files[name] = b"".join(lines)


def encode_otherwise(rng: random.Random, files: Files, others: Files) -> None:
    """The same text in another form: another encoding, other numbers, a key twice, spaces."""
    name = rng.choice(_documents(files))
    data = files[name]
    text = data.decode()
    key = data[1 : data.find(b":")] if data[:1] == b"{" else b""
    digits = [each for each in range(len(text)) if text[each].isdigit()]
    at = rng.choice(digits)
    files[name] = rng.choice(
        [
            *(text.encode(each) for each in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")),
            *(f"{text[: at + 1]}{tail}{text[at + 1 :]}".encode() for tail in (".0", "e0", "E+0")),
            data[:1] + key + b":0," + data[1:],
            data[:1] + key + b":" + data[data.find(b":") + 1 : -1] + b"," + data[1:],
            *(data.replace(b":", b": ", 1), data + b"\n", b" " + data, data + b"\0"),
            text.replace("a", "\\u0061", 1).encode(),
            text.replace("e", "e\u0301", 1).encode(),
            text.replace("o", "\N{CYRILLIC SMALL LETTER O}", 1).encode(),
        ]
    )


MUTATIONS: list[Mutation] = [
    *(flip_bits, truncate, insert, swap_files, from_elsewhere, record_from_elsewhere),
    *(delete_file, add_file, edit_document, edit_summary, edit_leaves, edit_tensors),
    encode_otherwise,
]


def fit(files: Files, before: Files) -> None:
    """Rewrite what names the changed files by digest: beside the commit, in it, in its manifest."""
    try:
        state = json.loads(files[STATE])
        for name in [each for each in sorted(files) if each.startswith("record/")]:
            if files[name] != before.get(name) and name in state["governance"]:
                state["governance"][name] = _entry(files[name])
                files[_object(state["governance"][name])] = files[name]
        tiles = [files[_object(each)] for each in state["ledger"]["tiles"]]
        entries = [_entry(each) for each in tiles]
        if (entries, files[LEDGER]) != (state["ledger"]["tiles"], before[LEDGER]):
            state["ledger"]["tiles"] = entries
            files |= {_object(_entry(each)): each for each in tiles}
            ledger = _ledger(state, files)
            state["ledger"] |= {"size": ledger.size, "root": f"sha256:{ledger.root.hex()}"}
        if state != json.loads(before[STATE]):
            files[STATE] = canonical_json.encode(state)
        names = {
            each.removeprefix(f"{COMMIT}/"): _entry(files[each])
            for each in sorted(files)
            if each.startswith(f"{COMMIT}/") and each != f"{COMMIT}/{MANIFEST}"
        }
        manifest = json.loads(files[f"{COMMIT}/{MANIFEST}"])
        files[f"{COMMIT}/{MANIFEST}"] = canonical_json.encode(manifest | {"files": names})
    except BROKEN:
        pass  # it is broken beyond fitting


def _ledger(state: Any, files: Files) -> Ledger:
    """The whole ledger that a state names."""
    tiles = [files[_object(each)] for each in state["ledger"]["tiles"]]
    return Ledger.read("", b"".join(tiles) + files[LEDGER])


def _object(entry: Any) -> str:
    return "governance/" + entry["digest"].removeprefix("sha256:")


def _entry(data: bytes) -> dict[str, Any]:
    return {"digest": canonical_json.sha256(data), "size": len(data)}


def mutated(folders: Folders, seed: int) -> tuple[str, Files]:
    """The mutation of a number: its name, and the files."""
    rng = random.Random(seed)
    files = dict(folders.untouched)
    while files == folders.untouched:
        chosen = MUTATIONS[seed % len(MUTATIONS)]
        chosen(rng, files, folders.others)
    if rng.random() < 0.5:
        fit(files, folders.untouched)
    return chosen.__name__, files


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=story)])
def test_no_mutation_of_a_finished_folder_is_signed(folders: Folders, count: int) -> None:
    ends: Counter[str] = Counter()
    signed = []
    for seed in range(count):
        name, files = mutated(folders, seed)
        statement = folders.attested(files)
        end = {None: "refused", folders.payload: "the same"}.get(statement, "signed")
        if end == "signed":
            signed.append((seed, name))
        ends[f"{name}: {end}"] += 1
    print(*(f"{many:5} {end}" for end, many in sorted(ends.items())), sep="\n")
    assert not signed
    refused = sum(many for end, many in ends.items() if end.endswith("refused"))
    assert refused > 0.8 * count  # and so hardly any mutation changed nothing that counts


def test_an_older_commit_in_the_newest_s_place_is_not_signed(folders: Folders) -> None:
    older = f"{folder_name(STEPS - 2)}/"
    restored = {
        name.replace(older, f"{COMMIT}/"): data
        for name, data in folders.others.items()
        if name.startswith(older)
    }
    assert f"{COMMIT}/{MANIFEST}" in restored
    kept = {name: data for name, data in folders.untouched.items() if not name.startswith(COMMIT)}

    assert folders.attested(kept | restored) is None
    assert folders.attested(folders.untouched) == folders.payload  # the control


LIES: list[Mutation] = [
    *(edit_document, edit_summary, edit_leaves, edit_tensors, add_file, delete_file),
    *(record_from_elsewhere, from_elsewhere),
]


@pytest.mark.parametrize("count", [2 * len(LIES), pytest.param(1_000, marks=story)])
def test_a_job_that_posts_what_it_mutated_changes_its_own_statements_alone(
    folders: Folders, count: int
) -> None:
    """Its weights and gradient norms, for instance. What root, policy, manifest and register say
    stays, and so do counts."""
    honest, signed = json.loads(folders.payload), 0
    for seed in range(count):
        rng, files = random.Random(seed), dict(folders.untouched)
        while files == folders.untouched:
            LIES[seed % len(LIES)](rng, files, folders.others)
        fit(files, folders.untouched)
        statement = folders.posted(files).attested(files)
        if statement is not None:
            signed += 1
            assert _not_the_job_s(json.loads(statement)) == _not_the_job_s(honest), seed
    assert signed > count / 10


def _not_the_job_s(statement: Any) -> Any:
    stated = statement["predicate"]
    run, execution = dict(stated["run"]), dict(stated["execution"])
    del run["started"], execution["commit"]
    kept = {name: stated[name] for name in NOT_THE_JOB_S}
    counts = [  # which follow from the plan; norms are the job's word
        {name: value for name, value in each.items() if name != "gradientNormShare"}
        for each in stated["coverage"]
    ]
    return kept | {"run": run, "execution": execution, "counts": counts}
