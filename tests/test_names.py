"""One public noun, one meaning: a class name is not used twice, unless both are the same thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import govray

PACKAGE = Path(govray.__file__).parent

# The answer of a route has the name of what it answers. The client's documents are those answers.
SAME = ("platform.service.routes.", "platform.wire.answers")

# Other names that are used twice, and why.
REASONS = {
    "GovernCallback": "each host framework's own, imported from its module as the docs say",
    "Stopped": "the error that ends a driver, and the event of it, always read as `events.Stopped`",
}


def public_classes() -> Iterator[tuple[str, str]]:
    """Name and module of each class without an underscore."""
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


def repeated(classes: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of more than one thing, with the modules that define them."""
    found = defaultdict[str, list[str]](list)
    for name, module in classes:
        if not module.startswith(SAME):
            found[name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_a_name_means_one_thing_or_has_a_reason() -> None:
    assert repeated(public_classes()).keys() == REASONS.keys()


def test_a_second_meaning_is_found() -> None:
    classes = [
        ("Order", "train.inputs.order"),
        ("Order", "platform.wire.answers"),
        ("Order", "tune.points"),
    ]
    assert repeated(iter(classes)) == {"Order": ["train.inputs.order", "tune.points"]}
