"""Imports point down only: the layer table of docs/architecture.md, read from the syntax trees.

Imports inside functions and under ``TYPE_CHECKING`` count like any other: a lazy import is a
dependency all the same. Only ``cli``, the topmost layer, may reach for everything lazily.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import govray

PACKAGE = Path(govray.__file__).parent
TESTS = Path(__file__).parent

# A layer may import itself and the layers named here.
BELOW: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "files": frozenset(),
    "errors": frozenset({"printable"}),
    "governance": frozenset({"errors", "files", "printable"}),
    # What a step takes, counts and gives, whatever computes its gradients.
    "steps": frozenset({"errors", "governance"}),
    "engine": frozenset({"errors", "governance", "steps"}),
    "jax": frozenset({"errors", "governance", "steps"}),
    "traces": frozenset(),
    "pins": frozenset({"errors", "files", "governance"}),
    "holds": frozenset({"errors", "files", "governance", "pins"}),
    "checkpoint": frozenset({"errors", "files", "governance", "pins"}),
    "data": frozenset({"errors", "files", "governance"}),
    "store": frozenset({"errors", "files", "governance"}),
    "alerts": frozenset({"errors", "governance", "store"}),
    "tasks": frozenset({"errors", "printable", "files", "governance"}),
    "evidence": frozenset({"errors", "files", "governance"}),
    "service": frozenset(
        {"errors", "files", "governance", "pins", "store", "tasks"} | {"traces"} | {"views"}
    ),
    # A verified model in other formats: the base install.
    "exports": frozenset({"errors", "governance", "printable"}),
    # What one audience is shown of an attestation: the base install.
    "views": frozenset({"errors", "files", "governance"}),
    # Drafts from verified documents: the base install, but for the form that is DOCX.
    "reports": frozenset({"errors", "printable", "governance"}),
    # For everybody: the base install, and nothing of the service but its description.
    "client": frozenset({"errors", "files"}),
    "inference": frozenset(
        {"errors", "files", "governance", "engine", "data", "store", "service"}
        | {"tasks", "steps", "jax"}
    ),
    # Outsiders over HTTP: what they sign is governance's.
    "notaries": frozenset({"errors", "files", "governance"}),
    "reconciler": frozenset(
        {"errors", "printable", "files", "governance", "store", "tasks"} | {"traces"}
    ),
    "train": frozenset(
        {"errors", "printable", "files", "governance", "engine", "checkpoint", "data", "store"}
        | {"pins", "holds", "traces", "steps", "jax"}
    ),
    "tune": frozenset(
        {"errors", "files", "governance", "engine", "checkpoint", "data", "store", "train"}
    ),
    "demo": frozenset(
        {"errors", "files", "governance", "engine", "checkpoint", "data", "store", "service"}
        | {"train", "tune"}
    ),
    "cli": frozenset(
        {"errors", "printable", "files", "governance", "engine", "checkpoint", "data", "store"}
        | {"service", "client", "tasks", "train", "tune", "demo", "reconciler", "alerts", "pins"}
        | {"holds", "evidence", "exports", "reports", "notaries", "views"}
    ),
    # `import govray`: the package itself, whose names resolve lazily.
    "govray": frozenset({"governance"}),
}

# A layer's rooms, from the top floor down: a room imports rooms of lower floors only. Rooms of one
# floor do not know each other.
FLOORS: dict[str, tuple[frozenset[str], ...]] = {
    "governance": tuple(
        frozenset({room})
        for room in (
            "verify",
            "attestation",
            "record",
            "policy",
            "notary",
            "trust",
            "submission",
            "signers",
            "formats",
        )
    ),
    "engine": (
        frozenset({"step"}),
        frozenset({"influence"}),
        frozenset({"memorization", "startup"}),
        frozenset({"collective"}),
        frozenset({"graphs"}),
        frozenset({"gradients", "gpt", "huggingface", "vit"}),
        frozenset({"model"}),
        frozenset({"batch"}),
    ),
    "train": (
        frozenset({"replay", "influence"}),
        frozenset({"driver", "huggingface", "lightning"}),
        frozenset({"attest", "integrations"}),
        frozenset({"loop"}),
        frozenset({"jax"}),
        frozenset({"worker"}),
        frozenset({"validation", "watching"}),
        frozenset({"state", "index"}),
        frozenset({"inputs"}),
        frozenset({"experiment"}),
        frozenset({"run_folder"}),
    ),
}

# Third-party packages that a room may import. Nothing else is allowed, so a new dependency is a
# decision made here and in pyproject.toml.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "files": frozenset({"obstore"}),
    "errors": frozenset(),
    "govray": frozenset(),
    "governance": frozenset(),
    # numpy computes SipHash of a million records in the time of a thousand.
    "governance.formats": frozenset(
        {"cryptography", "numpy", "pydantic", "pydantic_core", "rfc8785", "yaml"}
    ),
    # python-pkcs11 is imported where a key is in a hardware module, and nowhere else.
    "governance.signers": frozenset({"cryptography", "pkcs11"}),
    "governance.submission": frozenset({"pydantic", "yaml"}),
    "governance.trust": frozenset({"pydantic", "license_expression"}),
    "governance.notary": frozenset({"rfc3161_client"}),
    "governance.policy": frozenset({"pydantic"}),
    # numpy counts what a ledger's steps read: 40 to 80 times as fast as a walk over the rows.
    "governance.record": frozenset({"pydantic", "numpy"}),
    "governance.attestation": frozenset({"pydantic"}),
    "governance.verify": frozenset({"pydantic"}),
    "steps": frozenset(),
    "jax": frozenset({"jax", "flax", "optax", "numpy"}),
    "engine": frozenset({"torch"}),
    "engine.model": frozenset({"torch", "numpy", "safetensors", "transformers"}),
    "engine.gradients": frozenset({"torch"}),
    "engine.graphs": frozenset({"torch"}),
    "engine.collective": frozenset({"torch"}),
    "engine.memorization": frozenset({"torch"}),
    "engine.startup": frozenset({"torch", "numpy"}),
    "engine.influence": frozenset({"torch"}),
    # Imported where the environment names a collector, and nowhere else.
    "traces": frozenset({"opentelemetry"}),
    "pins": frozenset(),
    "holds": frozenset(),
    "checkpoint": frozenset({"torch", "safetensors", "pyarrow"}),
    "data": frozenset(
        {"ray", "pyarrow", "numpy", "tokenizers", "rensa", "pydantic", "obstore", "protego"}
    ),
    # In processes of their own, which are sent texts: what Presidio imports stays there.
    "data.pii": frozenset({"presidio_analyzer", "spacy", "tldextract"}),
    "store": frozenset({"sqlmodel", "sqlalchemy", "alembic", "pyarrow", "pydantic"}),
    "alerts": frozenset({"sqlmodel", "sqlalchemy"}),
    # What lies in a pack as a script of its own has nothing but cryptography.
    "evidence": frozenset({"cryptography"}),
    "tasks": frozenset({"pydantic"}),
    "service": frozenset(
        {"sqlmodel", "sqlalchemy", "fastapi", "starlette", "uvicorn", "prometheus_client"}
        | {"jwt", "anyio", "pydantic", "cryptography"}
    ),
    "service.routes": frozenset(
        {"sqlmodel", "sqlalchemy", "fastapi", "starlette", "anyio", "pydantic"}
        | {"yaml"}  # an experiment's configuration is downloaded in the form it was written in
    ),
    # aiohttp, with its yarl, is the client of both HTTP and WebSockets; Ray brings it.
    "service.tasks": frozenset({"sqlmodel", "sqlalchemy", "starlette", "aiohttp", "yarl"}),
    "service.pages": frozenset({"sqlmodel", "sqlalchemy", "fastapi", "starlette", "jinja2"}),
    # A model card begins with YAML.
    "exports": frozenset({"yaml"}),
    "client": frozenset({"pydantic"}),
    "views": frozenset({"pydantic"}),
    "reports": frozenset({"pydantic", "docx"}),
    "notaries": frozenset({"rfc3161_client", "starlette"}),
    "inference": frozenset({"torch", "flax", "safetensors", "fastapi", "pydantic", "yaml"}),
    # Of Ray it has the client of Ray Jobs alone, and joins no cluster.
    "reconciler": frozenset({"ray", "requests", "pydantic", "sqlmodel", "sqlalchemy"}),
    "train": frozenset(),
    "train.experiment": frozenset({"pydantic"}),
    "train.run_folder": frozenset({"pydantic", "torch"}),
    "train.inputs": frozenset({"pydantic", "yaml", "torch"}),
    "train.state": frozenset({"torch", "safetensors"}),
    "train.worker": frozenset({"ray", "torch", "numpy"}),
    "train.driver": frozenset({"ray", "torch"}),
    "train.attest": frozenset({"torch"}),
    "train.replay": frozenset({"ray", "torch"}),
    "train.influence": frozenset({"torch", "numpy"}),
    # numpy finds the extremes of each stretch of a line of numbers.
    "train.index": frozenset({"sqlmodel", "sqlalchemy", "numpy"}),
    "train.integrations": frozenset({"ray", "torch", "transformers", "lightning"}),
    # It answers for Ray where a loop runs without its worker.
    "train.jax": frozenset({"ray", "torch", "jax", "flax", "optax", "numpy"}),
    "train.loop": frozenset({"ray", "torch"}),
    "train.validation": frozenset({"torch", "numpy", "pydantic"}),
    # Trackers are told by their own clients, each imported when a run asks for it.
    "train.watching": frozenset({"ray", "torch", "tensorboardX", "mlflow", "wandb"}),
    "tune": frozenset({"ray", "pydantic"}),
    "demo": frozenset({"torch", "safetensors"}),
    "cli": frozenset(
        {"typer", "rich", "yaml", "sqlmodel", "sqlalchemy", "fastapi", "uvicorn"} | {"starlette"}
    ),
}

# A room holds at most this many modules, unless each is a verb of the command, a route, or a
# migration.
MOST_MODULES = 15
ONE_EACH = {"cli", "service/routes", "store/migrations/versions"}
# Flat, since their modules import each other both ways: sub-packages would be circles.
FLAT = {"tune", "service", "store", "service/pages"}

# What a module of `cli` may import at its top: every verb's module is imported
# at every start, on the base install too.
CLI_TOP = frozenset({"typer", "rich"})
CLI_TOP_LAYERS = frozenset({"errors", "printable", "files", "cli", "govray"})

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


@dataclass(frozen=True)
class Import:
    module: str  # dotted, absolute
    line: int
    deferred: bool  # inside a function or under TYPE_CHECKING: not when the module loads


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import of the module; ``from a import b`` counts as ``a.b``."""
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, deferred = left.pop()
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno, deferred)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write absolute imports"
            for name in node.names:
                yield Import(f"{node.module}.{name.name}", node.lineno, deferred)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            deferred = True
        # No expression holds an import, and most of a tree is expressions.
        within = (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
        left += [(each, deferred) for each in within]


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "govray" if parts == ("__init__",) else parts[0]


def place_of(path: Path) -> str:
    """Where a module is, for the tables: ``layer.room``, or the layer alone in a flat one."""
    layer, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    place = f"{layer}.{rest[0]}" if rest else layer
    if layer == "__init__":
        return "govray"
    return place if place in THIRD_PARTY or (rest and rest[0] in rooms_of(layer)) else layer


def rooms_of(layer: str) -> frozenset[str]:
    return frozenset().union(*FLOORS.get(layer, ()))


def lower_rooms(layer: str, room: str) -> frozenset[str]:
    """The rooms of a layer that one of its rooms may import."""
    floors = FLOORS[layer]
    floor = next(i for i, rooms in enumerate(floors) if room in rooms)
    return frozenset().union(*floors[floor + 1 :])


def violations(place: str, tree: ast.Module) -> list[str]:
    """What ``tree``, a module at ``place``, imports and may not."""
    layer, _, room = place.partition(".")
    found = []
    for each in imports(tree):
        top, _, rest = each.module.partition(".")
        if top == "govray":
            target, _, inner = rest.partition(".")
            target = target if target in BELOW else "govray"  # `from govray import __version__`
            allowed = target in BELOW[layer] | {layer, "govray"}
            if layer == "govray":
                allowed = allowed and each.deferred
            if layer == "cli" and not each.deferred:
                allowed = allowed and target in CLI_TOP_LAYERS
            if target == layer and room in rooms_of(layer):
                other = inner.partition(".")[0]
                allowed = allowed and other in lower_rooms(layer, room) | {room}
        elif top in sys.stdlib_module_names:
            continue
        else:
            allowed = top in THIRD_PARTY.get(place, THIRD_PARTY[layer])
            if layer == "cli" and not each.deferred:
                allowed = allowed and top in CLI_TOP
        if not allowed:
            found.append(f"line {each.line}: {place} imports {each.module}")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_imports_point_down_only() -> None:
    """One test: each costs more to run by itself than to read a module."""
    found = {
        str(path.relative_to(PACKAGE)): violations(place_of(path), ast.parse(path.read_bytes()))
        for path in MODULES
    }
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    assert len(found) > 500


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("governance.trust", "from govray.governance.policy.depth_policy import Policy"),
        ("governance.record", "import cryptography"),
        ("governance", "def f():\n    import numpy.linalg"),
        ("engine", "from govray.checkpoint import commit_folder"),
        ("engine", "from govray import data"),
        (
            "data",
            "if TYPE_CHECKING:\n    from govray.engine.model.layer_groups import layer_groups",
        ),
        ("errors", "import pydantic"),
        ("cli", "from govray.governance import keys"),
        ("cli", "import pyarrow"),
        ("govray", "from govray.governance.verify.verifier import verify"),
    ],
)
def test_the_check_sees_a_violation(place: str, source: str) -> None:
    assert len(violations(place, ast.parse(source))) == 1


def test_every_module_is_in_a_known_layer_and_has_a_telling_name() -> None:
    assert {path for path in MODULES if layer_of(path) not in BELOW} == set()
    assert {path for path in MODULES if path.stem in VAGUE} == set()


def test_a_room_is_no_larger_than_a_glance() -> None:
    sizes = {
        folder.relative_to(PACKAGE).as_posix(): len(list(folder.glob("*.py")))
        for folder in PACKAGE.rglob("*")
        if folder.is_dir() and folder.name != "__pycache__"
    }
    large = {name for name, size in sizes.items() if size > MOST_MODULES}
    assert large - ONE_EACH - FLAT == set()


def test_every_room_says_what_it_is_for() -> None:
    for layer, floors in FLOORS.items():
        for room in frozenset().union(*floors):
            folder = PACKAGE / layer / room
            if folder.is_dir():
                assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


def shared_wrongly(source: str) -> list[str]:
    """What a test imports from another test module: that belongs in ``tests/support``."""
    return re.findall(r"^ *from (tests\.(?:\w+\.)*test_\w+) import", source, re.M)


def test_no_test_module_imports_another() -> None:
    assert shared_wrongly("from tests.engine.test_step import net") == ["tests.engine.test_step"]
    found = {str(path): shared_wrongly(path.read_text()) for path in TESTS.rglob("*.py")}
    # A program that a test runs may import from the test itself.
    others = {
        path: [each for each in modules if each.rpartition(".")[2] != Path(path).stem]
        for path, modules in found.items()
    }
    assert {path: modules for path, modules in others.items() if modules} == {}


def loaded_after(*statements: str) -> dict[str, set[str]]:
    """The top-level packages that a fresh interpreter holds after each statement."""
    lines = ["import json, sys", "found = {}"]
    for each in statements:
        lines += [each, f"found[{each!r}] = list(sys.modules)"]
    program = "\n".join([*lines, "print(json.dumps(found))"])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return {each: {name.partition(".")[0] for name in names} for each, names in found.items()}


HEAVY = {"ray", "torch", "jax", "pyarrow", "numpy", "pandas", "fastapi", "sqlmodel"}


@pytest.mark.parametrize(
    "imports",
    [  # one after another in one interpreter, so what is absent later was absent before
        {
            "import govray": HEAVY | {"pydantic", "typer"},
            "import govray.cli.app": HEAVY | {"pydantic", "cryptography"},
            "import govray.client": HEAVY | {"cryptography", "httpx"},
            "import govray.tune.search_config, govray.tune.experiment_cost": HEAVY - {"numpy"},
            "import govray.exports.export_format": HEAVY - {"numpy"},
            "import govray.views.view, govray.views.audience": HEAVY - {"numpy"},
            "import govray.reports.eu_summary, govray.reports.annex_xi, govray.reports.web_page": (
                (HEAVY - {"numpy"}) | {"docx"}
            ),
            "govray.verify": HEAVY - {"numpy"},
            "import govray.train.inputs.run_listing, govray.train.run_folder.stop_request": (
                HEAVY - {"numpy", "pyarrow"}
            ),
        },
        {
            "import govray.engine": HEAVY - {"torch", "numpy"},
            "import govray.train.driver.trainer": {"jax", "flax", "optax"},
        },
    ],
    ids=["base", "train"],
)
def test_what_an_import_does_not_load(imports: dict[str, set[str]]) -> None:
    loaded = loaded_after(*imports)
    found = {each: packages & imports[each] for each, packages in loaded.items()}
    assert {each: packages for each, packages in found.items() if packages} == {}


WITHOUT_FRAMEWORKS = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "jax", "jaxlib", "flax", "ray"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
import govray.governance, govray.steps
for room in (govray.governance, govray.steps):
    for each in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(each.name)
for framework in ("torch", "jax"):  # the control
    try:
        importlib.import_module(framework)
    except ImportError:
        continue
    raise AssertionError(f"{framework} was imported")
"""


def test_governance_the_plan_and_the_ledger_need_no_framework() -> None:
    [loaded] = loaded_after(WITHOUT_FRAMEWORKS).values()
    assert {"govray", "pydantic"} <= loaded


def test_the_page_shows_the_same_layers() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    table = page.partition("## Layers")[2].split("```")[1]
    assert set(BELOW) - {"govray"} <= set(table.split())
