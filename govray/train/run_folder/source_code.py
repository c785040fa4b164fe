"""Which code trained: digests of source files, and the state of the repository they are in."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import govray
from govray.governance.attestation.environment import SourceCode
from govray.governance.formats import canonical_json

_GIT_TIMEOUT_S = 20


@cache
def code_digest() -> str:
    """Digest of govray's own source files."""
    return _digest(_package_files(Path(govray.__file__).parent))


def source_of(loop: Callable[..., Any], entrypoint: str | None) -> SourceCode | None:
    """The code that a run's model or training loop comes from, as it is on this machine.

    Args:
        loop: The training loop; used if there is no entrypoint.
        entrypoint: ``module:class``, imported already.

    Returns:
        None if there is no source file: an interactive session.
    """
    name = entrypoint.split(":")[0] if entrypoint else getattr(loop, "__module__", None)
    module = sys.modules.get(name or type(loop).__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or not Path(file).is_file():
        return None
    package = sys.modules.get(module.__name__.partition(".")[0])
    inner = getattr(package, "__file__", None) if hasattr(package, "__path__") else None
    if package is govray:
        digest = code_digest()  # of its hundreds of files, read once a process
    elif inner:
        digest = _digest(_package_files(Path(inner).parent))
    else:
        digest = _digest({Path(file).name: Path(file)})
    commit, dirty = git_state(Path(file))
    return SourceCode(module=module.__name__, digest=digest, commit=commit, dirty=dirty)


def git_state(file: Path) -> tuple[str | None, bool | None]:
    """The commit that is checked out around a file, and whether a tracked file was changed since.

    Untracked files don't count: a run's own outputs are often among them.

    (None, None) without git, outside a repository, and before its first commit. The same for a file
    that the repository ignores, for instance in an environment inside it.
    """
    if _git(file, "check-ignore", "-q", file.name) is not None:
        return None, None
    commit = _git(file, "rev-parse", "--verify", "HEAD")
    status = _git(file, "status", "--porcelain", "--untracked-files=no")
    if commit is None or status is None:
        return None, None
    return commit, bool(status)


def _git(file: Path, *words: str) -> str | None:
    """What git prints about the repository around a file; None if it fails or is not there."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            ["git", *words],  # noqa: S607 - the user's own git
            cwd=file.parent,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _package_files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}


def _digest(files: Mapping[str, Path]) -> str:
    """SHA-256 over the (relative path, SHA-256) pairs, as a canonical JSON object."""
    return canonical_json.sha256(
        canonical_json.encode(
            {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
        )
    )
