"""The typed Python client: ``python docs/build_client.py`` writes two modules of
``govray/platform/client``.

They follow from the service's OpenAPI description. `documents` has a class for each answer, and
`operations` a method for each operation, by the name that the description gives it. An operation
with pages becomes an iterator. ``tests/platform/client`` writes them again and compares.

Our own, since a client for everybody needs only what the base install has. The generator
openapi-python-client writes code for httpx and attrs, and joins no pages.
"""

from __future__ import annotations

import json
import keyword
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from build_site import openapi  # noqa: E402 (beside this script)

FOLDER = ROOT / "govray" / "client"
LEFT_OUT = {"stream_log", "stream_metrics"}
"""Streams that do not end by themselves: `get_log` and `list_metrics` have the same."""
UNSENT = {"limit", "cursor", "if-none-match"}
"""Parameters that are the client's own business."""
WIDTH = 96
LONGEST_DEFAULT = 40
WRITTEN = "Written by ``python docs/build_client.py``: do not edit."

Json = dict[str, Any]


def modules(description: Json) -> dict[str, str]:
    """File name → text, formatted."""
    found = {
        "documents.py": "\n".join(documents(description)),
        "operations.py": "\n".join(operations(description)),
    }
    return {name: formatted(text) for name, text in found.items()}


def formatted(text: str) -> str:
    """``text`` as ruff writes it."""
    words = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "client.py", "-"]
    done = subprocess.run(  # noqa: S603 (the words are ours)
        words, input=text, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


def documents(description: Json) -> Iterator[str]:
    """Lines of the module of answers."""
    schemas = description["components"]["schemas"]
    names = sorted(reachable(description))
    yield f'"""What a service answers: a class for each document.\n\n{WRITTEN}\n"""\n'
    yield "from __future__ import annotations\n"
    yield "from typing import Any, Literal, TypeAlias\n"
    yield "from pydantic import Field\n"
    yield "from govray.platform.client.answered import Answered\n"
    for name in names:
        if "enum" in schemas[name]:
            yield f"{name}: TypeAlias = {typed(schemas[name])}"
    for name in names:
        if "enum" not in schemas[name]:
            yield from document(name, schemas[name])


def document(name: str, schema: Json) -> Iterator[str]:
    yield f"\n\nclass {name}(Answered):"
    yield quoted(schema.get("description", name), 4)
    required = schema.get("required", [])
    for field, each in schema.get("properties", {}).items():
        own = python_name(field)
        default = "" if field in required else repr(each.get("default"))
        if len(default) > LONGEST_DEFAULT:
            default = ""  # always sent
        arguments = [f"default={default}"] if default and own != field else []
        if default == "[]":
            arguments, default = ["default_factory=list"], ""
        arguments += [f"alias={json.dumps(field)}"] if own != field else []
        value = f"Field({', '.join(arguments)})" if arguments else default
        kind = typed(each)
        if default == "None" and "None" not in kind and kind != "Any":
            kind += " | None"
        yield f"    {own}: {kind}" + (f" = {value}" if value else "")
        if told := each.get("description"):
            yield quoted(told, 4)


def operations(description: Json) -> Iterator[str]:
    """Lines of the module of operations."""
    yield f'"""What a service can be asked: a method for each operation.\n\n{WRITTEN}\n"""\n'
    yield "from __future__ import annotations\n"
    yield "from collections.abc import Iterator"
    yield "from typing import Any, Literal\n"
    yield "from govray.platform.client import documents"
    yield "from govray.platform.client.connection import Connection, segment\n\n"
    yield "class Operations(Connection):"
    yield '    """The operations of a service, over one connection."""'
    schemas = description["components"]["schemas"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] not in LEFT_OUT:
                yield from function(method.upper(), path, operation, schemas)


def function(method: str, path: str, operation: Json, schemas: Json) -> Iterator[str]:
    """Lines of one method."""
    given = [each for each in operation.get("parameters", []) if each["name"] not in UNSENT]
    sent, raw = body_of(operation, schemas)
    answer, pages = answer_of(operation, schemas)
    needed = [each for each in given if each["required"]]
    signature = [f"{python_name(p['name'])}: {typed(p['schema'], 'documents.')}" for p in needed]
    if raw:
        signature.append("data: bytes")
    free = not sent and not raw and "requestBody" in operation
    if free:
        signature.append("body: dict[str, Any]")
    told = [(python_name(p["name"]), p.get("description", "")) for p in given if p["required"]]
    more = []
    for name, (kind, demanded, words) in sent.items():
        more.append(f"{python_name(name)}: {kind}" + ("" if demanded else " = None"))
        told.append((python_name(name), words))
    for each in given:
        if not each["required"]:
            kind = optional(typed(each["schema"], "documents."))
            more.append(f"{python_name(each['name'])}: {kind} = None")
            told.append((python_name(each["name"]), each.get("description", "")))
    if more:
        signature += ["*", *more]
    result = f"Iterator[{answer}]" if pages else answer
    yield f"\n    def {operation['operationId']}({', '.join(['self', *signature])}) -> {result}:"
    yield quoted(explained(operation["description"], told), 8)
    arguments = [repr(method), address(path)]
    arguments += [f"{answer}"]
    for place in ("query", "header"):
        pairs = [p for p in given if p["in"] == place]
        if pairs:
            values = ", ".join(f'"{p["name"]}": {python_name(p["name"])}' for p in pairs)
            arguments.append(f"{place}={{{values}}}")
    if sent:
        values = ", ".join(f'"{name}": {python_name(name)}' for name in sent)
        arguments.append(f"body={{{values}}}")
    if free:
        arguments.append("body=body")
    if raw:
        arguments += ["data=data", f"kind={raw!r}"]
    verb = "pages" if pages else "ask"
    if pages:
        arguments.pop(0)
    call = f"self.{verb}({chr(44).join(arguments)})"
    if pages:
        yield f"        return {call}"
    elif answer == "None":
        yield f"        {call}"
    else:
        yield f"        answer: {answer} = {call}"
        yield "        return answer"


def body_of(operation: Json, schemas: Json) -> tuple[dict[str, tuple[str, bool, str]], str | None]:
    """The fields of a JSON body with type, need and words; or the kind of other bytes."""
    content = operation.get("requestBody", {}).get("content", {})
    for kind, each in content.items():
        if kind != "application/json":
            return {}, kind
        schema = each["schema"]
        several = schema.get("anyOf", [schema])
        fields: dict[str, tuple[str, bool, str]] = {}
        for one in several:
            if "$ref" not in one:  # an object whose fields the service does not name
                return {}, None
            part = schemas[one["$ref"].rpartition("/")[2]]
            for name, field in part["properties"].items():
                demanded = len(several) == 1 and name in part.get("required", [])
                shown = typed(field, "documents.")
                words = field.get("description", "")
                fields[name] = (shown if demanded else optional(shown), demanded, words)
        return dict(sorted(fields.items(), key=lambda item: not item[1][1])), None
    return {}, None


def answer_of(operation: Json, schemas: Json) -> tuple[str, bool]:
    """The type of an answer, and whether it comes in pages."""
    if "204" in operation["responses"]:
        return "None", False
    kind, each = next(
        (kind, each)
        for status, answer in operation["responses"].items()
        if status in ("200", "201")
        for kind, each in answer["content"].items()
    )
    schema = each.get("schema", {})
    if kind.startswith(("text/plain", "text/csv", "application/yaml")):
        return "str", False
    if kind != "application/json":
        return "bytes", False
    name = schema.get("$ref", "").rpartition("/")[2]
    if name.startswith("Listing_"):
        return typed(schemas[name]["properties"]["items"]["items"], "documents."), True
    return typed(schema, "documents."), False


def reachable(description: Json) -> set[str]:
    """The schemas that answers and parameters are made of."""
    schemas = description["components"]["schemas"]
    found: set[str] = set()

    def walk(part: Any) -> None:
        if isinstance(part, list):
            for each in part:
                walk(each)
        elif isinstance(part, dict):
            name = part.get("$ref", "").rpartition("/")[2] if "$ref" in part else ""
            if name and name not in found:
                found.add(name)
                walk(schemas[name])
            for key, each in part.items():
                if key not in ("examples", "example"):
                    walk(each)

    for methods in description["paths"].values():
        for operation in methods.values():
            good = {s: each for s, each in operation["responses"].items() if s < "400"}
            walk([good, operation.get("parameters", [])])
    return {name for name in found if not name.startswith("Listing_")}


def typed(schema: Json, module: str = "") -> str:
    """The Python type of a schema; classes are in ``module``."""
    if "$ref" in schema:
        return module + str(schema["$ref"].rpartition("/")[2])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(typed(each, module) for each in schema[key]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(repr(each) for each in values)}]"
    match schema.get("type"):
        case "array":
            return f"list[{typed(schema.get('items', {}), module)}]"
        case "object":
            values = schema.get("additionalProperties")
            of = typed(values, module) if isinstance(values, dict) else "Any"
            return f"dict[str, {of}]"
        case "string":
            return "bytes" if schema.get("format") == "binary" else "str"
        case kind:
            named = {"integer": "int", "number": "float", "boolean": "bool", "null": "None"}
            return named.get(str(kind), "Any")


def optional(kind: str) -> str:
    return kind if kind == "Any" or "None" in kind.split(" | ") else f"{kind} | None"


def python_name(name: str) -> str:
    """``forkOf`` → ``fork_of``; a word of Python gets an underscore."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    return f"{text}_" if keyword.iskeyword(text) else text


def address(path: str) -> str:
    """An f-string of the path; what stands for one segment is quoted as one."""
    if "{" not in path:
        return json.dumps(path)

    def put(found: re.Match[str]) -> str:
        name = python_name(found[1])
        more = ", slashes=True" if name == "path" else ""
        return f"{{segment({name}{more})}}"

    return 'f"' + re.sub(r"{(\w+)}", put, path) + '"'


def explained(text: str, parameters: list[tuple[str, str]]) -> str:
    """A docstring: what it does, and what each argument is."""
    told = [f"    {name}: {words}" for name, words in parameters if words]
    return text.strip() + ("\n\nArgs:\n" + "\n".join(told) if told else "")


def quoted(text: str, indent: int) -> str:
    """A docstring of these words, in lines that are not too long."""
    lines: list[str] = []
    # Lines of one paragraph are one, wherever the service broke them.
    whole = re.sub(r"(?<=[^\n:])\n(?=[^\s*|-])", " ", text.strip())
    for line in whole.splitlines():
        margin = len(line) - len(line.lstrip())
        lines += textwrap.wrap(
            line.strip(),
            WIDTH - indent,
            initial_indent=" " * margin,
            subsequent_indent=" " * (margin + 4 if margin else 0),
            break_long_words=False,
        ) or [""]
    space = " " * indent
    whole = "\n".join(f"{space}{line}" if line else "" for line in lines).lstrip()
    raw = "r" if "\\" in whole else ""
    end = f"\n{space}" if len(lines) > 1 else ""
    return f'{space}{raw}"""{whole}{end}"""'


def main() -> None:
    for name, text in modules(openapi()).items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
