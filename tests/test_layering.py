"""Imports point down only: the layer table of docs/architecture.md, read from the syntax trees.

Imports inside functions and under ``TYPE_CHECKING`` count like any other: a lazy import is a
dependency all the same. Only ``cli``, the topmost layer, may reach for everything lazily.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import govray

PACKAGE = Path(govray.__file__).parent

# A layer may import itself and the layers named here.
BELOW: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "errors": frozenset({"printable"}),
    "governance": frozenset({"errors", "printable"}),
    "engine": frozenset({"errors", "governance"}),
    "data": frozenset({"errors", "governance"}),
    "store": frozenset({"errors", "governance"}),
    "service": frozenset({"errors", "governance", "store"}),
    "train": frozenset({"errors", "governance", "engine", "data", "store"}),
    "tune": frozenset({"errors", "governance", "engine", "data", "store", "train"}),
    "demo": frozenset({"errors", "governance", "engine", "data", "store", "train", "tune"}),
    "cli": frozenset(
        {"errors", "printable", "governance", "engine", "data", "store", "service"}
        | {"train", "tune", "demo"}
    ),
    # `import govray`: the package itself, whose names resolve lazily.
    "govray": frozenset({"governance"}),
}

# Third-party packages a layer may import. Nothing else is allowed, so a new
# dependency is a decision made here and in pyproject.toml.
BASE = frozenset(
    {"pydantic", "pydantic_core", "cryptography", "rfc8785", "license_expression", "yaml"}
)
THIRD_PARTY: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "errors": frozenset(),
    "govray": frozenset(),
    "governance": BASE,
    "engine": BASE | {"torch", "numpy", "safetensors", "transformers"},
    "data": BASE | {"ray", "pyarrow", "numpy", "tokenizers", "rensa"},
    "store": BASE | {"sqlmodel", "sqlalchemy", "alembic", "pyarrow"},
    "service": BASE
    | {"sqlmodel", "sqlalchemy", "fastapi", "starlette", "uvicorn", "jinja2", "prometheus_client"}
    | {"jwt", "anyio"},
    "train": BASE
    | {"sqlmodel", "sqlalchemy"}  # in `indexing`
    | {"ray", "torch", "pyarrow", "numpy", "safetensors", "tokenizers"}
    | {"transformers", "lightning"},  # each in the module that bears its name
    "tune": BASE | {"ray"},
    "demo": BASE | {"ray", "torch", "pyarrow", "numpy", "safetensors", "rich"},
    "cli": BASE
    | {"typer", "rich", "ray", "torch", "pyarrow", "numpy", "safetensors"}
    | {"sqlmodel", "sqlalchemy", "fastapi", "uvicorn"},
}

# What a module of `cli` may import at its top: every verb's module is imported
# at every start, on the base install too.
CLI_TOP = frozenset({"typer", "rich"})
CLI_TOP_LAYERS = frozenset({"errors", "printable", "cli", "govray"})

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


@dataclass(frozen=True)
class Import:
    module: str  # dotted, absolute
    line: int
    deferred: bool  # inside a function or under TYPE_CHECKING: not when the module loads


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import of the module; ``from a import b`` counts as ``a.b``."""
    deferred = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING")
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno, id(node) in deferred)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write absolute imports"
            for name in node.names:
                yield Import(f"{node.module}.{name.name}", node.lineno, id(node) in deferred)


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "govray" if parts == ("__init__",) else parts[0]


def violations(layer: str, tree: ast.Module) -> list[str]:
    """What ``tree``, a module of ``layer``, imports and may not."""
    found = []
    for each in imports(tree):
        top, _, rest = each.module.partition(".")
        if top == "govray":
            target = rest.partition(".")[0]
            target = target if target in BELOW else "govray"  # `from govray import __version__`
            allowed = target in BELOW[layer] | {layer, "govray"}
            if layer == "govray":
                allowed = allowed and each.deferred
            if layer == "cli" and not each.deferred:
                allowed = allowed and target in CLI_TOP_LAYERS
        elif top in sys.stdlib_module_names:
            continue
        else:
            allowed = top in THIRD_PARTY[layer]
            if layer == "cli" and not each.deferred:
                allowed = allowed and top in CLI_TOP
        if not allowed:
            found.append(f"line {each.line}: {layer} imports {each.module}")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down_only(path: Path) -> None:
    assert violations(layer_of(path), ast.parse(path.read_bytes())) == []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("governance", "import torch"),
        ("governance", "def f():\n    import numpy.linalg"),
        ("governance", "from govray.data import corpus"),
        ("governance", "import requests"),
        ("engine", "import ray"),
        ("engine", "from govray import data"),
        (
            "data",
            "if TYPE_CHECKING:\n    from govray.engine.model.layer_groups import layer_groups",
        ),
        ("train", "from govray.cli.output import line"),
        ("train", "from govray.tune import config"),
        ("store", "from govray.engine import gpt"),
        ("service", "from govray.train import runs"),
        ("service", "import ray"),
        ("tune", "import optuna"),
        ("demo", "import govray.cli"),
        ("errors", "import pydantic"),
        ("cli", "from govray.governance import keys"),
        ("cli", "import pyarrow"),
        ("govray", "from govray.governance.verify.verifier import verify"),
        ("govray", "import ray"),
    ],
)
def test_the_check_sees_a_violation(layer: str, source: str) -> None:
    assert len(violations(layer, ast.parse(source))) == 1


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_module_is_in_a_known_layer_and_has_a_telling_name(path: Path) -> None:
    assert layer_of(path) in BELOW
    assert path.stem not in VAGUE


def loaded_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after ``statement``."""
    program = f"{statement}\nimport sys, json\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


HEAVY = {"ray", "torch", "pyarrow", "numpy", "pandas", "fastapi", "sqlmodel"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import govray", HEAVY | {"pydantic", "typer"}),
        ("import govray.cli.app", HEAVY | {"pydantic", "cryptography"}),
        ("import govray; govray.verify", HEAVY),
        ("import govray.engine", HEAVY - {"torch", "numpy"}),
        ("import govray.tune.search_config", HEAVY),
    ],
)
def test_what_an_import_does_not_load(statement: str, absent: set[str]) -> None:
    assert loaded_after(statement) & absent == set()


def test_the_page_shows_the_same_layers() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    table = page.partition("## Layers")[2].split("```")[1]
    assert set(BELOW) - {"govray"} <= set(table.split())
