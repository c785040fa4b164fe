"""The documentation as a site: ``python docs/build_site.py``, into ``build/docs/site``.

Zensical builds from a copy that has the repository's layout, so links between Markdown files are
the same here and on a code host. Beside the pages that people wrote lie three references that
cannot get old. Typer's own generator writes that of the commands. That of the HTTP API is its
OpenAPI description. For the Python API mkdocstrings reads the sources; nothing of it is imported.

The build is strict: a link to no page, to no heading or to no object of govray ends it with 1.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "deploy", "jobs", "policies", "searchers", "serve"
PAGES = ("*.md", "docs/*.md", "benchmarks/*.md", *(f"{name}/README.md" for name in FOLDERS))
PICTURES = ("docs/*.svg", "docs/pages/*.png")
FACES = {
    "govray.governance.verify.verifier.verify": "verify a model folder; also `govray.verify`",
    "govray.train.worker.run_start.govern": "put a loop's model and optimizer under the order",
    "govray.train.worker.run.Run": "what `govern` returns: batches, step, report",
    "govray.train.worker.shard_model.shard": "shard a model for `aggregator: fsdp2`",
    "govray.train.driver.trainer.GovernedTrainer": "Ray's `TorchTrainer`, governed",
    "govray.train.integrations.huggingface_trainer.GovernCallback": "for the Hugging Face Trainer",
    "govray.train.integrations.lightning_trainer.GovernCallback": "for Lightning",
    "govray.engine.step.GovernedStep": "one step, without Ray",
}
"""What scripts import, and what for."""

Json = dict[str, Any]


def written(root: Path = ROOT, *patterns: str) -> list[Path]:
    """The files that people wrote."""
    return sorted(path for each in patterns or PAGES for path in root.glob(each))


def lost(root: Path = ROOT) -> list[str]:
    """Links of pages to files that are not there: pictures, sources, policies."""
    found = []
    for page in written(root):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, colon, _ = target.partition("#")[0].partition(":")
            if not colon and not (page.parent / file).exists():
                found.append(f"{page.relative_to(root)}: no file {target}")
    return found


def stage(folder: Path, root: Path = ROOT) -> None:
    """Copy what people wrote into ``folder/pages``, and generate the rest beside it."""
    pages = folder / "pages"
    for source in written(root, *PAGES, *PICTURES):
        target = pages / source.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    reference = pages / "docs" / "reference"
    reference.mkdir()
    (reference / "commands.md").write_text(commands())
    (reference / "http.md").write_text("\n".join(http_api(openapi())))
    (reference / "python.md").write_text(public_face())
    rooms = dict(room_pages(root))
    for room, text in rooms.items():
        (reference / f"{room}.md").write_text(text)
    entries = "".join(f'    {{ "{room}" = "docs/reference/{room}.md" }},\n' for room in rooms)
    config = (root / "docs" / "zensical.toml").read_text()
    (folder / "zensical.toml").write_text(
        config.replace("    # rooms\n", entries).replace("SOURCES", str(root))
    )


def commands() -> str:
    """The command line, by Typer's own generator."""
    words = ["govray.cli.app", "utils", "docs", "--name", "govray", "--title", "The command line"]
    done = subprocess.run(  # noqa: S603 (the words are ours)
        [sys.executable, "-m", "typer", *words],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


def openapi() -> Json:
    """The service's description of itself, over an empty store."""
    from govray.platform.service.app import create_app
    from govray.platform.service.http.settings import Settings
    from govray.platform.store.database import open_store

    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/empty.db"
        open_store(store, create=True).dispose()
        return create_app(Settings(store=store)).openapi()


def http_api(description: Json) -> Iterator[str]:
    """Lines of the HTTP API's page."""
    yield f"# The HTTP API\n\n{description['info']['description']}\n"
    yield "[The service](../service.md) says who may ask, and which bounds hold.\n"
    operations = defaultdict(list)
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            operations[operation["tags"][0]].append((f"{method.upper()} {path}", operation))
    yield from _errors([each for found in operations.values() for _, each in found])
    for tag, found in operations.items():
        yield f"## {tag.capitalize()}\n"
        for name, operation in found:
            yield from _operation(name, operation)
    yield "## Documents\n"
    for name, schema in description["components"]["schemas"].items():
        yield from _schema(name, schema)


def _errors(operations: list[Json]) -> Iterator[str]:
    """The problems of all operations, each told once; `_operation` names those of one."""
    yield "## Errors\n\nErrors are problems (RFC 9457).\n\n| status | meaning |\n|---|---|"
    found = {status: told for each in operations for status, told in each["responses"].items()}
    for status in sorted(each for each in found if each >= "400"):
        yield f"| {status} | {_cell(found[status]['description'])} |"
    yield ""


def _operation(name: str, operation: Json) -> Iterator[str]:
    yield f"### `{name}`\n\n{operation.get('description', '')}\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for each in parameters:
            needed = "required. " if each["required"] and each["in"] != "path" else ""
            told = _cell(needed + each.get("description", ""))
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {told} |"
        yield ""
    if body := operation.get("requestBody"):
        yield f"Takes {_content(body)}.\n"
    for status, answer in operation["responses"].items():
        if status < "400":
            headers = ", ".join(f"`{name}`" for name in answer.get("headers", ()))
            told = _content(answer) + (f", with {headers}" if headers else "")
            yield f"Answers {status}: {told}.\n"
    errors = [status for status in operation["responses"] if status >= "400"]
    yield f"Errors: {', '.join(errors)}.\n"


def _content(part: Json) -> str:
    kinds = part.get("content", {}).items()
    told = [f"{_type(each.get('schema', {'type': 'bytes'}))} (`{kind}`)" for kind, each in kinds]
    return ", or ".join(told) or "no body"


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}\n\n{schema.get('description', '')}\n"
    if "enum" in schema:
        yield _type(schema) + "\n"
    if properties := schema.get("properties"):
        yield "| field | type | |\n|---|---|---|"
        for field, each in properties.items():
            yield f"| `{field}` | {_type(each)} | {_cell(each.get('description', ''))} |"
        yield ""


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in several)
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(values := schema.get("additionalProperties"), dict):
        return f"map to {_type(values)}"
    return schema.get("format") or schema.get("type", "any")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def public_face() -> str:
    """The page that names what scripts import."""
    rows = "".join(f"| [`{name}`][{name}] | {use} |\n" for name, use in FACES.items())
    return (
        "# The Python API\n\nScripts need these names. The pages of the rooms have all others.\n\n"
        f"| name | |\n|---|---|\n{rows}"
    )


def room_pages(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """The name and the page of each room: its own words, then its modules."""
    for init in sorted((root / "govray").rglob("__init__.py")):
        folder = init.parent
        parts = folder.relative_to(root).parts
        modules = [p.stem for p in sorted(folder.glob("*.py")) if p.stem not in ("__init__", "app")]
        if not modules or parts[1:2] in (("cli",), ("demo",)) or "migrations" in parts:
            continue
        room = ".".join(parts)
        text = (
            f"# {room}\n\n::: {room}\n    options: {{members: false, show_root_heading: false}}\n"
        )
        for name in modules:
            text += f"\n::: {room}.{name}\n"
        yield room, text


def build(folder: Path) -> int:
    """Build ``folder/pages`` by ``folder/zensical.toml``: 0, or 1 where a link leads nowhere."""
    words = ["build", "--strict", "-f", folder / "zensical.toml"]
    return subprocess.run([sys.executable, "-m", "zensical", *words]).returncode  # noqa: S603


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", metavar="DIR")
    folder = parser.parse_args().out
    if gone := lost():
        print(*gone, sep="\n")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder)
    return build(folder)


if __name__ == "__main__":
    sys.exit(main())
