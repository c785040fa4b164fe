"""Packages that an experiment needs beyond a training installation, known from its file alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from govray.errors import CouldNotCheck
from govray.extras import EXTRAS, install
from govray.train.experiment.import_path import source_files
from govray.train.inputs.experiment_config import Experiment

_ASKED_LATE = {"govray.engine.huggingface": ("transformers",)}
"""Entrypoints of govray's own that import a package when a model is built."""


def require_extras(experiment: Experiment) -> None:
    """Raise ``CouldNotCheck`` for a package that this Python lacks. Nothing is imported."""
    for module, where in _needed(experiment):
        if find_spec(module) is None:
            raise CouldNotCheck(
                f"this needs {module}, which is not installed",
                where=where,
                do=f"Run {install(EXTRAS[module])}",
            )


def _needed(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Import names, each with what of the file asks for it."""
    if experiment.framework == "jax":
        yield from ((each, "framework: jax") for each in ("jax", "flax", "optax"))
    module, where = experiment.entrypoint.split(":")[0], f"entrypoint {experiment.entrypoint}"
    yield from ((each, where) for each in _ASKED_LATE.get(module, _imported(module)))
    if experiment.data.tokenizer != "bytes":
        yield "tokenizers", f"data.tokenizer {experiment.data.tokenizer}"
    for tracker in ("mlflow", "wandb"):
        if getattr(experiment.tracking, tracker, None) is not None:
            yield tracker, f"tracking.{tracker}"
    if experiment.attestation_key.startswith("pkcs11:"):
        yield "pkcs11", "attestation_key"


def _imported(module: str) -> Iterator[str]:
    """What of the extras a module's source imports first of all, where Python would find it."""
    places = (Path(above, name) for above in [*sys.path, "."] for name in source_files(module))
    source = next((each for each in places if each.is_file()), None)
    try:
        body = ast.parse(source.read_bytes()).body if source else []
    except (OSError, SyntaxError, ValueError):
        return  # whoever imports it says what is wrong
    for each in body:
        names = [one.name for one in each.names] if isinstance(each, ast.Import) else []
        if isinstance(each, ast.ImportFrom) and each.module and not each.level:
            names = [each.module]
        yield from (top for name in names if (top := name.partition(".")[0]) in EXTRAS)
