"""Imports point down only, room by room: read from the syntax trees."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import govray

PACKAGE = Path(govray.__file__).parent
TESTS = Path(__file__).parent

# The nine rooms, with what lies beneath them, and what each may import besides itself. Every arrow
# is used, and a new one is a decision made here.
GROUND = {"errors", "extras", "printable", "traces"}
ROOMS: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "extras": frozenset(),
    "traces": frozenset({"extras"}),
    "errors": frozenset({"printable"}),
    "storage": frozenset({"extras"}),
    "governance": frozenset({"errors", "extras", "printable", "storage"}),
    "engine": frozenset({"errors", "extras", "governance"}),
    "data": frozenset({"errors", "extras", "governance", "storage"}),
    "evidence": frozenset({"errors", "printable", "governance", "storage"}),
    "train": frozenset(
        {"errors", "extras", "printable", "traces", "governance", "storage", "data", "engine"}
    ),
    "tune": frozenset({"errors", "governance", "storage", "train"}),
    "platform": frozenset(
        {"errors", "extras", "printable", "traces", "governance", "storage", "data", "engine"}
        | {"train", "tune"}
    ),
    "cli": frozenset(
        {"errors", "extras", "printable", "governance", "storage", "data", "engine", "evidence"}
        | {"train", "tune", "platform"}
    ),
    # `import govray`: the package itself, whose names resolve lazily.
    "govray": frozenset({"governance"}),
}
NINE = {room: below - GROUND for room, below in ROOMS.items() if room not in {*GROUND, "govray"}}
MOST_ARROWS = 27  # between the nine

# What parts of a room may import of the other parts, and of other rooms, where that is less.
NARROW: dict[str, tuple[str, ...]] = {
    # What a step takes, counts and gives, whatever computes its gradients.
    "engine.steps": ("errors", "governance"),
    "engine.jax": ("errors", "governance", "engine.steps"),
    # For everybody: the base install, and nothing of the service but its description.
    "platform.client": ("errors", "storage", "platform.wire"),
    # What both ends say: no store, and of it the states alone.
    "platform.wire": ("platform.store.states",),
    "platform.store": ("errors", "extras", "governance", "storage"),
    "platform.tasks": ("errors", "extras", "printable", "governance", "storage"),
    # Neither Ray nor torch: of `train` it has what lies in a run's folder.
    "platform.service": (
        *("errors", "printable", "traces", "governance", "storage"),
        *("platform.store", "platform.tasks", "platform.wire"),
        # How a commit's files are called, and which run's folder has them.
        *("train.checkpoint.commit_reader", "train.checkpoint.storage"),
        *("train.checkpoint.pins", "train.run_folder.figures", "train.run_folder.removal"),
    ),
    "platform.queue": (
        *("errors", "printable", "traces", "governance", "storage"),
        *("platform.store", "platform.tasks"),
    ),
    "platform.alerts": ("errors", "governance", "platform.store"),
    # It has the key: nothing of a submitter, of the service or of a job runs in it.
    "platform.attestor": (
        *("errors", "extras", "printable", "governance", "storage"),
        # How a commit's folder is called, and a search's trials.
        *("train.checkpoint.pins", "train.run_folder.run_names"),
    ),
    # In the parser, which has no key: reading a run is what `data` and `train` can.
    "platform.attestor.tasks": (
        *("errors", "governance", "data.records_file"),
        *("train.attest.write_model", "train.inputs"),
    ),
}

# A room's parts, from the top floor down: a part imports parts of lower floors only. Parts of one
# floor do not know each other.
FLOORS: dict[str, tuple[frozenset[str], ...]] = {
    "governance": tuple(
        frozenset({part})
        for part in (
            *("verify", "attestation", "record", "policy", "notary", "trust", "submission"),
            *("signers", "formats"),
        )
    ),
    "engine": (
        frozenset({"step"}),
        frozenset({"memorization", "startup"}),
        frozenset({"collective"}),
        frozenset({"graphs"}),
        frozenset({"gradients", "gpt", "huggingface", "vit"}),
        frozenset({"model"}),
        frozenset({"batch", "jax"}),
        frozenset({"steps"}),
    ),
    "train": (
        frozenset({"replay"}),
        frozenset({"driver"}),
        frozenset({"attest"}),
        frozenset({"huggingface", "lightning", "loop"}),
        frozenset({"integrations", "jax"}),
        frozenset({"worker"}),
        frozenset({"validation"}),
        frozenset({"state", "watching"}),
        frozenset({"inputs"}),
        frozenset({"run_folder"}),
        frozenset({"checkpoint", "experiment"}),
    ),
    "evidence": (frozenset({"exports", "notaries", "packs", "reports", "views"}),),
    "platform": (
        frozenset({"inference"}),
        frozenset({"alerts", "indexing", "queue", "service"}),
        frozenset({"attestor", "client"}),
        frozenset({"wire"}),
        frozenset({"store", "tasks"}),
    ),
    "platform.service": (
        frozenset({"app"}),
        frozenset({"pages"}),
        frozenset({"routes"}),
        frozenset({"acting"}),
        frozenset({"tasks", "visible"}),
        frozenset({"identity"}),
        frozenset({"http"}),
    ),
}

# Third-party packages that a place may import, by its longest entry. Nothing else is allowed, so a
# new dependency is a decision made here and in pyproject.toml.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "printable": frozenset(),
    "storage": frozenset({"obstore"}),
    "errors": frozenset(),
    "extras": frozenset(),
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
    "engine": frozenset({"torch"}),
    "engine.steps": frozenset(),
    "engine.jax": frozenset({"jax", "flax", "optax", "numpy"}),
    "engine.model": frozenset({"torch", "numpy", "safetensors", "transformers"}),
    "engine.startup": frozenset({"torch", "numpy"}),
    # Imported where the environment names a collector, and nowhere else.
    "traces": frozenset({"opentelemetry"}),
    "data": frozenset(
        {"ray", "pyarrow", "numpy", "tokenizers", "rensa", "regex", "pydantic", "obstore"}
        | {"protego"}
    ),
    # In processes of their own, which are sent texts: what Presidio imports stays there.
    "data.pii": frozenset({"presidio_analyzer", "spacy", "tldextract"}),
    "evidence": frozenset(),
    # What lies in a pack as a script of its own has nothing but cryptography.
    "evidence.packs": frozenset({"cryptography"}),
    # A model card begins with YAML.
    "evidence.exports": frozenset({"yaml"}),
    "evidence.views": frozenset({"pydantic"}),
    "evidence.reports": frozenset({"pydantic", "docx"}),
    "evidence.notaries": frozenset({"rfc3161_client", "starlette"}),
    "platform": frozenset(),
    "platform.alerts": frozenset({"sqlmodel", "sqlalchemy"}),
    "platform.attestor": frozenset({"sqlalchemy", "starlette", "pydantic"}),
    "platform.client": frozenset({"pydantic"}),
    "platform.wire": frozenset({"pydantic"}),
    # numpy finds the extremes of each stretch of a line of numbers.
    "platform.indexing": frozenset({"sqlmodel", "sqlalchemy", "numpy"}),
    "platform.inference": frozenset(
        {"torch", "flax", "safetensors", "fastapi", "pydantic", "yaml", "pyarrow"}
    ),
    # Of Ray it has the client of Ray Jobs alone, and joins no cluster.
    "platform.queue": frozenset({"ray", "requests", "pydantic", "sqlmodel", "sqlalchemy"}),
    "platform.service": frozenset(
        {"sqlmodel", "sqlalchemy", "fastapi", "starlette", "uvicorn", "prometheus_client"}
        | {"jwt", "anyio", "pydantic", "cryptography"}
    ),
    "platform.service.routes": frozenset(
        {"sqlmodel", "sqlalchemy", "fastapi", "starlette", "anyio", "pydantic"}
        | {"yaml"}  # an experiment's configuration is downloaded in the form it was written in
    ),
    # aiohttp, with its yarl, is the client of both HTTP and WebSockets; Ray brings it.
    "platform.service.tasks": frozenset({"sqlmodel", "sqlalchemy", "starlette", "aiohttp", "yarl"}),
    # A form's fields are checked as the body of a request is.
    "platform.service.pages": frozenset(
        {"sqlmodel", "sqlalchemy", "fastapi", "starlette", "jinja2", "pydantic"}
    ),
    "platform.store": frozenset({"sqlmodel", "sqlalchemy", "alembic", "pyarrow", "pydantic"}),
    "platform.tasks": frozenset({"pydantic"}),
    "train": frozenset(),
    "train.checkpoint": frozenset({"torch", "safetensors", "pyarrow"}),
    "train.experiment": frozenset({"pydantic"}),
    "train.run_folder": frozenset({"pydantic", "torch"}),
    "train.inputs": frozenset({"pydantic", "yaml", "torch"}),
    "train.state": frozenset({"torch", "safetensors"}),
    "train.worker": frozenset({"ray", "torch", "numpy"}),
    "train.driver": frozenset({"ray", "torch"}),
    "train.attest": frozenset({"torch"}),
    "train.replay": frozenset({"ray", "torch"}),
    "train.integrations": frozenset({"ray", "torch", "transformers", "lightning"}),
    # It answers for Ray where a loop runs without its worker.
    "train.jax": frozenset({"ray", "torch", "jax", "flax", "optax", "numpy"}),
    "train.loop": frozenset({"ray", "torch"}),
    "train.validation": frozenset({"torch", "numpy", "pydantic"}),
    # Trackers are told by their own clients, each imported when a run asks for it.
    "train.watching": frozenset({"ray", "torch", "tensorboardX", "mlflow", "wandb"}),
    "tune": frozenset({"ray", "pydantic"}),
    "cli": frozenset(
        {"typer", "rich", "yaml", "sqlmodel", "sqlalchemy", "fastapi", "uvicorn"} | {"starlette"}
    ),
    "cli.demo": frozenset({"torch", "safetensors"}),
    "cli.demo.command": frozenset({"typer", "rich"}),
}

# What a module of `cli` may import at its top: every verb's module is imported
# at every start, on the base install too.
CLI_TOP = frozenset({"typer", "rich"})
CLI_TOP_ROOMS = frozenset({"errors", "extras", "printable", "storage", "cli", "govray"})

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


def place_of(path: Path) -> str:
    """A module's dotted name below ``govray``; that of a package is its folder's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "govray" if parts == ("__init__",) else ".".join(parts).removesuffix(".__init__")


def within(place: str, folders: Iterable[str]) -> str | None:
    held = [each for each in folders if f"{place}.".startswith(f"{each}.")]
    return max(held, key=len, default=None)


def may_import(place: str, target: str, *, deferred: bool) -> bool:
    """Whether the module at ``place`` may import ``target``, both below ``govray``."""
    room, other = place.partition(".")[0], target.partition(".")[0]
    if other not in ROOMS:  # `from govray import __version__`
        return True
    if other not in ROOMS[room] | {room} or (room == "govray" and not deferred):
        return False
    # The demo is no verb, but for the module of its verb.
    verb = room == "cli" and (not place.startswith("cli.demo.") or place == "cli.demo.command")
    top = other in CLI_TOP_ROOMS or target.startswith("platform.wire.operations")
    if verb and not deferred and not top:
        return False
    narrow = within(place, NARROW)
    if narrow and not within(target, [narrow, *NARROW[narrow]]):
        return False
    for folder, floors in FLOORS.items():
        if within(place, [folder]) and within(target, [folder]):
            mine, theirs = (each[len(folder) + 1 :].partition(".")[0] for each in (place, target))
            floor = next((i for i, parts in enumerate(floors) if mine in parts), None)
            below = frozenset().union(*floors[floor + 1 :]) if floor is not None else frozenset()
            if mine and theirs != mine and theirs not in below:
                return False
    return True


def violations(place: str, tree: ast.Module) -> list[str]:
    """What ``tree``, a module at ``place``, imports and may not."""
    found = []
    for each in imports(tree):
        top, _, rest = each.module.partition(".")
        if top == "govray":
            allowed = may_import(place, rest, deferred=each.deferred)
        elif top in sys.stdlib_module_names:
            continue
        else:
            allowed = top in THIRD_PARTY[within(place, THIRD_PARTY) or ""]
            if place.startswith("cli.") and "demo" not in place and not each.deferred:
                allowed = allowed and top in CLI_TOP
        if not allowed:
            found.append(f"line {each.line}: {place} imports {each.module}")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {place_of(path): ast.parse(path.read_bytes()) for path in MODULES}


def test_imports_point_down_only() -> None:
    """One test: each costs more to run by itself than to read a module."""
    found = {place: violations(place, tree) for place, tree in TREES.items()}
    assert {place: wrong for place, wrong in found.items() if wrong} == {}
    assert len(found) > 500


def test_every_arrow_between_rooms_is_used_and_they_are_few() -> None:
    used = {
        (place.partition(".")[0], each.module.split(".")[1])
        for place, tree in TREES.items()
        for each in imports(tree)
        if each.module.startswith("govray.")
    }
    arrows = {(room, below) for room, others in ROOMS.items() for below in others}
    assert arrows - used == set()
    assert len(NINE) == 9
    assert sum(map(len, NINE.values())) <= MOST_ARROWS


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("governance.trust.x", "from govray.governance.policy.depth_policy import Policy"),
        ("governance.record.x", "import cryptography"),
        ("governance.x", "def f():\n    import numpy.linalg"),
        ("engine.x", "from govray.train.checkpoint import commit_folder"),
        ("engine.steps.x", "from govray.engine.model import adapters"),
        (
            "data.x",
            "if TYPE_CHECKING:\n    from govray.engine.model.layer_groups import layer_groups",
        ),
        ("errors", "import pydantic"),
        ("cli.x", "from govray.governance import keys"),
        ("cli.x", "import pyarrow"),
        ("govray", "from govray.governance.verify.verifier import verify"),
        ("platform.service.routes.x", "from govray.train.run_folder.events import Event"),
        ("platform.service.http.x", "from govray.platform.service.identity.caller import Caller"),
        ("platform.store.x", "from govray.platform.tasks.task_file import TaskFile"),
    ],
)
def test_the_check_sees_a_violation(place: str, source: str) -> None:
    assert len(violations(place, ast.parse(source))) == 1


def test_every_module_has_a_telling_name() -> None:
    assert {path for path in MODULES if path.stem in VAGUE} == set()


def test_every_part_says_what_it_is_for() -> None:
    for place, floors in FLOORS.items():
        for part in frozenset().union(*floors):
            folder = PACKAGE.joinpath(*place.split("."), part)
            if folder.is_dir():
                assert ast.get_docstring(TREES[f"{place}.{part}"]), f"{place}.{part}"


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
            "import govray.platform.client": HEAVY | {"cryptography", "httpx"},
            "import govray.tune.search_config, govray.tune.experiment_cost": HEAVY - {"numpy"},
            "import govray.evidence.exports.export_format": HEAVY - {"numpy"},
            "import govray.evidence.views.view, govray.evidence.views.audience": HEAVY - {"numpy"},
            "import govray.evidence.reports.eu_summary": (HEAVY - {"numpy"}) | {"docx"},
            "import govray.evidence.reports.annex_xi": (HEAVY - {"numpy"}) | {"docx"},
            "import govray.evidence.reports.web_page": (HEAVY - {"numpy"}) | {"docx"},
            "govray.verify": HEAVY - {"numpy"},
            "import govray.train.inputs.run_listing, govray.train.run_folder.stop_request": (
                HEAVY - {"numpy", "pyarrow"}
            ),
            "import govray.data.similarity.near_copies, govray.data.records_file": (
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
import govray.governance, govray.engine.steps
for room in (govray.governance, govray.engine.steps):
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


def test_the_page_shows_the_same_rooms() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)/` \| ([^|]*) \| [^|]+ \|$", page, re.M))
    assert {room: frozenset(re.findall(r"\w+", below)) for room, below in table.items()} == NINE


def test_the_picture_shows_the_same_rooms() -> None:
    docs = PACKAGE.parent / "docs"
    drawn = runpy.run_path(str(docs / "draw_rooms.py"))["picture"]
    assert drawn(NINE) == (docs / "rooms.svg").read_text()
    assert drawn(NINE | {"tune": frozenset({"governance"})}) != drawn(NINE)
