"""Public functions on tensors say shape, dtype and device; collective ones say that they are.

The sources' syntax trees are read, so nothing is imported. A method without a docstring has that
of the class it overrides, and the docstring of a class speaks for its methods too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.tree import ROOT

ROOMS = ("engine", "steps", "checkpoint", "data")
PACKAGE = ROOT / "govray"

STATEMENTS = {
    "shape": re.compile(r"\b[Ss]hapes?\b|\((\w+ )?(rows|tokens|layers|targets|rank|words|…)[,)]"),
    "dtype": re.compile(r"\bdtypes?\b|float\d\d|int\d\d|\b(integer|bool)\b"),
    "device": re.compile(r"\bdevices?\b|\bCPU\b|\bhost memory\b"),
}
"""Statement → what counts as one."""

LOCAL = {"is_initialized", "is_available", "get_rank", "get_world_size", "get_backend"}
"""What `torch.distributed` answers without other ranks."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """Some modules by name, and what is missing in their docstrings."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._trees = {name: ast.parse(source) for name, source in sources.items()}
        self._classes = {
            node.name: node
            for tree in self._trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }

    def tensor_functions(self) -> list[tuple[str, str]]:
        """Every public function that is annotated with ``Tensor``, and all that is said of it."""
        return [
            (place, said)
            for place, function, said in self._functions()
            if is_public(place.split(":")[1]) and any(map(_names_tensor, _annotations(function)))
        ]

    def collectives(self) -> list[tuple[str, str]]:
        """Every function that calls a collective, and all that is said of it."""
        return [
            (place, said) for place, function, said in self._functions() if _communicates(function)
        ]

    def silent(self) -> list[str]:
        """What is not said, as ``module:function: shape``."""
        missing = [
            f"{place}: {statement}"
            for place, said in self.tensor_functions()
            for statement, pattern in STATEMENTS.items()
            if not pattern.search(said)
        ]
        return missing + [
            f"{place}: Collective"
            for place, said in self.collectives()
            if "collective" not in said.lower()
        ]

    def _functions(self) -> Iterator[tuple[str, Function, str]]:
        for name, tree in self._trees.items():
            for node in tree.body:
                if isinstance(node, Function):
                    yield f"{name}:{node.name}", node, _docstring(node)
                elif isinstance(node, ast.ClassDef):
                    for each in node.body:
                        if isinstance(each, Function):
                            said = f"{_docstring(node)}\n{self._inherited(node, each.name)}"
                            yield f"{name}:{node.name}.{each.name}", each, said

    def _inherited(self, cls: ast.ClassDef, method: str) -> str:
        for each in cls.body:
            if isinstance(each, Function) and each.name == method and _docstring(each):
                return _docstring(each)
        bases = [self._classes.get(base.id) for base in cls.bases if isinstance(base, ast.Name)]
        return "\n".join(self._inherited(base, method) for base in bases if base)


def is_public(qualified: str) -> bool:
    return not any(
        part.startswith("_") and not part.endswith("__") for part in qualified.split(".")
    )


def _docstring(node: Function | ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _annotations(function: Function) -> list[ast.expr]:
    every = function.args
    given = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
    found = [each.annotation for each in given if each] + [function.returns]
    return [annotation for annotation in found if annotation]


def _names_tensor(annotation: ast.expr) -> bool:
    return any(
        "Tensor" in (getattr(node, "id", None), getattr(node, "attr", None))
        or (isinstance(node, ast.Constant) and "Tensor" in str(node.value))
        for node in ast.walk(annotation)
    )


def _communicates(function: Function) -> bool:
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "dist"
        and call.func.attr not in LOCAL
        for call in ast.walk(function)
    )


@pytest.fixture(scope="module")
def ours() -> Sources:
    files = (path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py")))
    return Sources({str(path.relative_to(PACKAGE)): path.read_text() for path in files})


def test_public_functions_on_tensors_say_what_they_take(ours: Sources) -> None:
    assert ours.silent() == []


def test_the_functions_are_found(ours: Sources) -> None:
    """Else nothing would be asked for."""
    places = [place for place, _ in ours.tensor_functions()]
    assert len(places) > 70
    assert "engine/collective/aggregator.py:Hosted.sums" in places
    assert "engine/model/gpt.py:GPT.forward" in places
    assert len(ours.collectives()) > 5


MADE_UP = '''
import torch.distributed as dist
from torch import Tensor


class Base:
    def whole(self, x: Tensor) -> None:
        """Args: x: (rows, tokens), any dtype and device."""

    def part(self, x: Tensor) -> None:
        """Takes a tensor of some shape (not said which), on the CPU."""

    def _own(self, x: Tensor) -> None: ...


class Derived(Base):
    def whole(self, x: Tensor) -> None: ...


class Convention:
    """Tensors are 1-D: of shape (rows,), float64, on the CPU."""

    def bare(self) -> "list[Tensor]": ...


def total(x: Tensor) -> Tensor:
    """Sum over ranks: shape, dtype and device stay."""
    dist.all_reduce(x)
    return x


def rank() -> int:
    return dist.get_rank()


def _summed(x):
    """Collective."""
    dist.all_reduce(x)


def nothing(x: Tensor) -> None: ...
'''


def test_what_is_not_said_is_found() -> None:
    assert Sources({"made_up": MADE_UP}).silent() == [
        "made_up:Base.part: dtype",
        "made_up:nothing: shape",
        "made_up:nothing: dtype",
        "made_up:nothing: device",
        "made_up:total: Collective",
    ]
