"""What reaches a terminal: nothing that it obeys, no line that looks like ours, and no key."""

from __future__ import annotations

import ast
import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import govray
from govray import cli
from govray.cli import process
from govray.errors import GovrayError
from govray.evidence.views.attestation_facts import names_of
from govray.evidence.views.audience import Audience
from govray.evidence.views.disclosure import disclosed_facts, sign_disclosure
from govray.evidence.views.view import View
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import verify
from govray.printable import json_text, paragraph, printable
from tests.support.command import Done
from tests.support.prepared_folder import write_prepared
from tests.support.runs_on_storage import begin_search, finished_run
from tests.support.tree import ROOT
from tests.support.world import POLICY, World

HOSTILE = (
    "x\x1b[2J\x1b[H\x9b31m\x07\u202e\u2066\r\n"
    "VERIFIED model   4 files, root sha256:00000000\u2026, signer operator\n"
    "  policy     licences v1, signed by compliance\u2028\u200b\x7f\u3164\x1b]0;x\x07"
)

PLACES = {
    "init": ("{folder}",),
    "sign": ("{file} --key key.pem", "policy.yaml --key {word}"),
    "model cosign": ("{model} --key key.pem", "{file} --key key.pem", "model --key {word}"),
    "show": ("{file}", "{model}", "{word}"),
    "verify": (
        "{file} --trust-root root.json",
        "{model} --trust-root root.json",
        "{corpus} --trust-root root.json",
        "model --trust-root {file}",
        "policy.dsse.json --trust-root root.json --delegation {file}",
        "model --trust-root root.json --revocations {file}",
        "model --trust-root root.json --replay {file}",
        "model --trust-root root.json --at {word}",
    ),
    "view verify": ("{file} --trust-root root.json", "{word}", "view.json --trust-root {file}"),
    "train": ("{file}", "{word}", "experiment.yaml --address {word}"),
    "attest": ("{run} --key key.pem", "runs/tiny-1 --key {word}"),
    "trace": (
        "{file} --model model --records prepared --trust-root root.json",
        "root.json --model {model} --trust-root root.json",
        "root.json --model model --corpora {folder} --trust-root root.json",
    ),
    "keys public": ("{file}", "{word}", "pkcs11:object={word}", "command:{word}"),
    "corpus ls": ("{folder}", "{corpora}", "{word}"),
    "policy lint": ("{file}", "policy.yaml --previous {file}", "policy.yaml --model {model}"),
    "policy diff": ("{file} policy.yaml", "policy.yaml {file}"),
    "runs ls": ("{runs}", "{word}"),
    "runs show": ("{run}", "{word}"),
    "report annex-xi": (
        "{model} --out {folder}/a.json --trust-root root.json",
        "model --out {folder}/a.json --provider {file} --trust-root root.json",
        "model --out {word} --count-flops --trust-root root.json",
    ),
    "adapter remove": (
        "{model} acme --key key.pem --trust-root root.json",
        "model acme --key {word} --trust-root root.json",
        "model {word} --key key.pem --trust-root root.json",
    ),
    "checkpoint ls": ("{run}", "{word}"),
    "model register": (
        "{model} --name m --version 1.0.0 --trust-root root.json",
        "model --name {word} --version 1.0.0 --trust-root {file}",
        "model --name m --version {word} --trust-root root.json --label {word} --notes {word}",
    ),
    "token new": ("--user {word}", "--user a --supplier {word} --role supplier --scope {word}"),
}
"""Verb → command lines; what stands in braces is hostile. One verb of each way to print: all others
print by the same functions, as the last test of this part holds them to."""


def changed(value: Any, leaf: int, how: Callable[[str], str], at: list[int]) -> Any:
    """``value`` with the text of number ``leaf``, counting names of fields too, changed."""
    if isinstance(value, str):
        at[0] += 1
        return how(value) if at[0] - 1 == leaf else value
    if isinstance(value, list):
        return [changed(each, leaf, how, at) for each in value]
    if isinstance(value, dict):
        return {changed(k, leaf, how, at): changed(v, leaf, how, at) for k, v in value.items()}
    return value


def tampered(data: bytes, most: int) -> Iterator[bytes]:
    """A JSON document, or an envelope of one, with one text after the other made hostile."""
    value = json.loads(data)
    yield from (json.dumps(each).encode() for each in spread(value, most))
    if isinstance(value, dict) and "payload" in value:
        payload = json.loads(base64.b64decode(value["payload"]))
        for each in spread(payload, most):
            inner = base64.b64encode(json.dumps(each, separators=(",", ":")).encode()).decode()
            yield json.dumps(value | {"payload": inner}).encode()


def spread(value: Any, most: int) -> Iterator[Any]:
    count = [0]
    changed(value, -1, str, count)
    step = max(1, count[0] // most)
    for leaf in range(0, count[0], step):
        yield changed(value, leaf, lambda text: text + HOSTILE, [0])


class Stage:
    """A deployment, and copies of its parts with something hostile in them, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.world = world = World()
        self.folder = folder
        (folder / "root.json").write_bytes(world.root)
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "policy.dsse.json").write_bytes(world.policy)
        (folder / "delegation.json").write_bytes(world.delegations[0])
        (folder / "experiment.yaml").write_text("name: x\n")
        (folder / "key.pem").write_bytes(world.keys.operator.to_pem())
        (folder / "key.pem").chmod(0o600)
        self.run = finished_run(folder / "runs", "tiny-1", world)
        begin_search(folder / "runs" / "search-1")
        shutil.copytree(self.run / "model", folder / "model")
        write_prepared(world, folder / "model", folder / "prepared")
        self.view()

    def view(self) -> None:
        """What shows an audience a part of the model's attestation."""
        (self.folder / "a.yaml").write_text("fields: [run]\n")
        (self.folder / "secret").write_bytes(bytes(32))
        (self.folder / "secret").chmod(0o600)
        model = verify(self.folder / "model", trust_root=TrustAnchor(self.world.root))
        signed = sign_disclosure(model, bytes(32), self.world.keys.operator)
        (self.folder / "disclosure.dsse.json").write_bytes(signed)
        facts = disclosed_facts(model, bytes(32))
        names = names_of(model.attestation)
        chosen = Audience(fields=("run",)).choose(facts, names, where="a.yaml")
        made = View.make(facts, chosen, signed, ())
        (self.folder / "view.json").write_bytes(made.encode())

    def files(self, most: int) -> list[Path]:
        """Documents and sources of every kind, each with hostile text in another place."""
        texts = [
            *tampered(self.world.root, most),
            *tampered(self.world.policy, most),
            *tampered(self.world.delegations[0], most),
            *tampered(self.world.credentials["acme"], most),
            *tampered((self.run / "model/governance/attestation.dsse.json").read_bytes(), most),
            *tampered((self.folder / "view.json").read_bytes(), most),
            *(POLICY.replace(*pair).encode() for pair in self._slips()),
            json.dumps({HOSTILE: HOSTILE}).encode(),
            f"name: [{HOSTILE}".encode(),
            HOSTILE.encode(),
            b"\xff" + HOSTILE.encode(),
        ]
        made = []
        for number, data in enumerate(texts):
            yaml = data.lstrip().startswith((b"schema", b"name"))
            path = self.folder / f"hostile-{number}.{'yaml' if yaml else 'json'}"
            path.write_bytes(data)
            made.append(path)
        named = self.folder / f"{HOSTILE.replace('/', '')}.json"
        named.write_bytes(self.world.policy)
        return [*made, named]

    def _slips(self) -> Iterator[tuple[str, str]]:
        quoted = json.dumps(HOSTILE)
        yield "licences", quoted
        yield "everything: {", f"{quoted}: {{"
        yield "permissive", quoted
        yield "on_expiry: stop", f"on_expiry: {quoted}"
        yield "2027-11-01", quoted
        yield "schema:", f"{quoted}: x\nschema:"

    def folders(self, of: Path, most: int) -> list[Path]:
        """Copies of ``of``: hostile text in one file of each, or a hostile name."""
        made: list[Path] = []

        def copy() -> Path:
            made.append(self.folder / f"{of.name}-{len(list(self.folder.iterdir()))}")
            shutil.copytree(of, made[-1])
            return made[-1]

        for file in sorted(p.relative_to(of) for p in of.rglob("*") if p.is_file()):
            data = (of / file).read_bytes()
            try:
                versions = list(tampered(data, most))
            except ValueError:
                first, *rest = data.split(b"\n")
                versions = [b"\n".join([first + HOSTILE.encode(), *rest])]
                if data.startswith(b'{"'):  # lines of JSON
                    versions += [b"\n".join([each, *rest]) for each in tampered(first, most)]
            for version in versions:
                (copy() / file).write_bytes(version)
        (copy() / HOSTILE.replace("/", "")).write_bytes(b"")
        return made

    def corpus(self) -> Path:
        folder = self.folder / "corpora" / HOSTILE.replace("/", "")
        folder.mkdir(parents=True)
        (folder / "credential.dsse.json").write_bytes(self.world.credentials["acme"])
        (folder / "credential.yaml").write_text(HOSTILE)
        for number, data in enumerate(tampered(self.world.credentials["acme"], 3)):
            other = self.folder / "corpora" / f"acme-{number}"
            other.mkdir()
            (other / "credential.dsse.json").write_bytes(data)
        return folder


def call(capsys: pytest.CaptureFixture[str], words: list[str]) -> Done:
    capsys.readouterr()
    code = cli.main(words)
    return Done(code, *capsys.readouterr())


def lines_of(line: str, most: int, **given: list[str]) -> Iterator[list[str]]:
    """The command line with ``most`` of what is given for its first brace."""
    slots = [name for name in given if f"{{{name}}}" in line]
    values = given[slots[0]]
    for value in values[:: -(-len(values) // most)]:
        others = {name: values[0] for name, values in given.items()} | {slots[0]: value}
        yield [word.format(**others) for word in line.split()]


def check_quiet(done: Done, words: list[str]) -> None:
    """Nothing that a terminal obeys, no line that looks like a verdict, no bug."""
    for text in (done.out, done.err):
        bad = {c for c in text if not c.isprintable() and c != "\n"} | ({"\u3164"} & set(text))
        assert not bad, (words, bad, text)
        assert not any(
            each.startswith(("VERIFIED model  ", "  policy     licences v1, signed by compliance"))
            for each in text.split("\n")
        ), (words, text)
    if "--json" in words and done.out:
        json.loads(done.out)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def hostile(stage: Stage) -> dict[str, list[str]]:
    runs = stage.folders(stage.run, 1)
    storage = stage.folder / "hostile-runs"
    storage.mkdir()
    for run in runs:
        (storage / run.name).symlink_to(run)
    corpus = stage.corpus()
    return {
        "word": [HOSTILE.replace("/", "")],
        "file": [str(path) for path in stage.files(4)],
        "model": [str(path) for path in stage.folders(stage.folder / "model", 2)],
        "run": [str(path) for path in runs],
        "runs": [str(storage)],
        "folder": [str(corpus)],
        "corpus": [str(path) for path in corpus.parent.iterdir()],
        "corpora": [str(corpus.parent)],
    }


@pytest.fixture(autouse=True)
def on_stage(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stage.folder)
    for name in ("GOVRAY_STORE", "GOVRAY_STORE_KEY"):
        monkeypatch.delenv(name, raising=False)

    def nowhere(*_: object, **__: object) -> None:
        raise GovrayError("nothing is started here")

    for name in ("govray.train.driver.ray_cluster.start_ray", "govray.cli.serve._run"):
        monkeypatch.setattr(name, nowhere)


def test_no_verb_prints_what_a_terminal_obeys(
    hostile: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, lines in PLACES.items():
        most = 6 if verb in ("show", "verify") else 3
        for line in lines:
            for number, words in enumerate(lines_of(f"{verb} {line}", most, **hostile)):
                for extra in ([], ["--json", "--debug"])[: 1 + (number == 0)]:
                    check_quiet(call(capsys, [*words, *extra]), words + extra)


def test_without_the_filter_the_same_words_do_it(
    hostile: dict[str, list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("govray.printable._shown", lambda c: True)
    absent = f"{hostile['word'][0]} absent"  # other tests made a folder of the word itself
    for words in (["show", absent], ["verify", absent], ["show", absent, "--json"]):
        with pytest.raises(AssertionError):
            check_quiet(call(capsys, words), words)


def test_the_filter_keeps_text_and_shows_the_rest() -> None:
    assert printable("Ünïcode – 漢字 🎉 a  b") == "Ünïcode – 漢字 🎉 a  b"
    assert printable("a\tb\r\n\u2028\udc80") == "a\\tb\\r\\n\\u2028\\udc80"
    assert printable("a" + " " * 300 + "VERIFIED") == "a [300 blanks] VERIFIED"
    assert paragraph("two\n  lines \x1b") == "two lines \\x1b"
    value = {"a\u202e": ["\x9b", "é\n", 1, None, {"b": "\U000e0001\ud800"}]}
    assert json.loads(json_text(value)) == value
    assert json_text(value).isprintable()


def test_verbs_print_by_the_functions_of_output_alone() -> None:
    """Whatever is written to a terminal goes through one of few doors."""
    package = Path(govray.__file__).parent
    doors = {package / "cli" / name for name in ("output.py", "error_report.py", "__init__.py")}
    for path in (package / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or path in doors:
                continue
            called = ast.unparse(node.func)
            allowed = path.name == "app.py" and called == "typer.echo"  # of our own versions
            assert allowed or called not in {
                "print", "typer.echo", "typer.secho", "out.print", "err.print", "Console",
                "sys.stdout.write", "sys.stderr.write", "json.dumps",
            }, f"{path.name}:{node.lineno}"  # fmt: skip
    for path in (package.parent / "jobs").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
                for inner in ast.walk(node.args[0]):
                    filtered = "printable(" in ast.unparse(node) or "error" in ast.unparse(node)
                    assert (
                        filtered
                        or not isinstance(inner, ast.FormattedValue)
                        or (
                            ast.unparse(inner.value).startswith(("step", "experiment.max_steps"))
                            or "loss" in ast.unparse(inner.value)
                        )
                    ), f"{path.name}:{node.lineno}"


class Planted:
    """One private key in the spellings in which people paste it."""

    def __init__(self, signer: LocalSigner) -> None:
        self.pem = signer.to_pem().decode()
        body = "".join(self.pem.splitlines()[1:-1])
        der = base64.b64decode(body)
        self.spellings = [
            self.pem,
            self.pem.replace("\n", " "),
            self.pem.replace("\n", "\\n"),
            "\n" + self.pem,
            body,
            "\n".join(self.pem.splitlines()[1:-1]),
            der.hex(),
            base64.b64encode(self.pem.encode()).decode(),
            base64.urlsafe_b64encode(der).decode(),
        ]
        secret = der[16:] if len(der) < 64 else der[36:68]
        whole = [*self.spellings, base64.b64encode(secret).decode(), secret.hex()]
        start = {text: text.find(body[24:40]) for text in whole}
        self.pieces = {
            text[i : i + 16]
            for text in whole
            for i in range(max(start[text], 24 if len(text) > 64 else 0), len(text) - 16)
            if "-----" not in text[i : i + 16]
        } - {"(a private key, "}

    def check(self, done: Done, words: list[str]) -> None:
        said = (done.out + done.err).replace("\\n", "").replace(" ", "")
        for text in (said, done.out, done.err):
            found = next((each for each in self.pieces if each in text), None)
            assert found is None, (words[0], found, text)


@pytest.fixture(scope="module")
def planted() -> list[Planted]:
    return [Planted(LocalSigner.generate()), Planted(LocalSigner.generate("ecdsa-p256"))]


def test_no_verb_prints_a_key_that_it_is_given_for_something_else(
    stage: Stage, planted: list[Planted], capsys: pytest.CaptureFixture[str]
) -> None:
    for each in planted:
        file = stage.folder / f"given-{len(each.pem)}.pem"
        file.write_text(each.pem)
        file.chmod(0o600)
        for line in (f"{verb} {line}" for verb, lines in PLACES.items() for line in lines):
            if "--key {word}" not in line and each is planted[0]:
                continue  # one algorithm is enough where no key is expected
            keys = each.spellings if "--key {word}" in line else each.spellings[:5:4]
            for given in [*keys, str(file)]:
                slots = dict.fromkeys(
                    ("word", "file", "model", "run", "runs", "folder", "corpus", "corpora"), given
                )
                words = [word.format(**slots) for word in line.split()]
                each.check(call(capsys, [*words, "--json"]), words)


def test_a_key_in_a_variable_a_file_or_a_split_word_is_not_printed(
    stage: Stage,
    planted: list[Planted],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for each in planted:
        for spelling in each.spellings[:6]:
            monkeypatch.setenv("GOVRAY_KEY", spelling)
            monkeypatch.setenv("GOVRAY_STORE_KEY", spelling.replace("/", "_"))
            for words in (
                ["sign", "policy.yaml", "--force"],
                ["sign", "policy.yaml", "--key", f"env:{spelling}"],
                ["sign", "policy.yaml", "--key", *spelling.split()],
                ["sign", "policy.yaml", *spelling.split()],
                ["attest", "runs/tiny-1"],
                ["store", "index", "runs", "--trust-root", "root.json"],
            ):
                each.check(call(capsys, [*words, "--debug", "--json"]), words)
        monkeypatch.delenv("GOVRAY_STORE_KEY")
        known = (ROOT / "jobs" / "train.yaml").read_text()
        reference = "attestation_key: env:GOVRAY_KEY "
        assert reference in known
        for text in (
            known.replace(reference, f"attestation_key: {json.dumps(each.pem)} "),
            known.replace(reference, f"attestation_key: {each.spellings[4]} "),
            known.replace(reference, f"attestation_key: {each.pem} "),
            known.replace(reference, f"{json.dumps(each.pem)}: x "),
            known + each.pem,
            f"{known}\n  : [{each.pem}",
        ):
            Path("key-inside.yaml").write_text(text)
            for verb in ("train", "tune", "sign", "show"):
                done = call(capsys, [verb, "key-inside.yaml", "--json"])
                each.check(done, [verb])
                assert done.code != 0


def test_an_experiment_that_holds_a_key_is_refused_before_anything_is_recorded(
    planted: list[Planted], capsys: pytest.CaptureFixture[str]
) -> None:
    known = (ROOT / "jobs" / "train.yaml").read_text()
    for each in planted:
        for spelling in each.spellings[:-1]:
            Path("key-inside.yaml").write_text(
                known.replace("env:GOVRAY_KEY ", f"{json.dumps(spelling)} ")
            )
            done = call(capsys, ["train", "key-inside.yaml"])
            assert "attestation_key: give env:NAME or the path of a key file" in done.err
            each.check(done, ["train"])


def test_an_account_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 64_109)
    assert process.account_name() == "64109"
