"""The wheel of the govray that runs, made from its own files: the same bytes for the same files.

A pack may be read when no index has this version any more, so it brings the verifier. The packages
that it needs stand beside it by name and version.

Source: the binary distribution format, packaging.python.org.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable

from govray.errors import CouldNotCheck
from govray.evidence.packs.zip_archive import Files, zipped

_LEFT_OUT = frozenset({"__pycache__", "deployment"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_WHEEL = b"""\
Wheel-Version: 1.0
Generator: govray evidence
Root-Is-Purelib: true
Tag: py3-none-any
"""


def verifier_wheel() -> tuple[str, bytes]:
    """The wheel's file name and its bytes. Raises `CouldNotCheck`: govray runs without its
    metadata, so no wheel can be made."""
    version, about = _metadata()
    inside = f"govray-{version}.dist-info"
    found: Files = {f"govray/{name}": data for name, data in _package(files("govray"))}
    found[f"{inside}/METADATA"] = about.encode()
    found[f"{inside}/WHEEL"] = _WHEEL
    found[f"{inside}/entry_points.txt"] = b"[console_scripts]\ngovray = govray.cli:main\n"
    found[f"{inside}/RECORD"] = _record(found, f"{inside}/RECORD")
    return f"govray-{version}-py3-none-any.whl", zipped(found)


def requirements() -> bytes:
    """What the verifier needs, as pip reads it: each package with the version that is here."""
    needed = metadata.distribution("govray").requires or []
    names = sorted(
        found[0]
        for each in needed
        if "extra ==" not in each and (found := _NAME.match(each)) is not None
    )
    return "".join(f"{name}=={metadata.version(name)}\n" for name in names).encode()


def _metadata() -> tuple[str, str]:
    try:
        here = metadata.distribution("govray")
    except metadata.PackageNotFoundError:
        here = None
    about = here.read_text("METADATA") if here else None
    if here is None or about is None:
        raise CouldNotCheck(
            "govray is not installed here, so its wheel cannot be made",
            do="Install it (pip install .), and run this again",
        )
    return here.version, about


def _package(folder: Traversable, above: str = "") -> list[tuple[str, bytes]]:
    found = []
    for each in folder.iterdir():
        if each.name in _LEFT_OUT or each.name.startswith("."):
            continue
        name = f"{above}{each.name}"
        found += _package(each, f"{name}/") if each.is_dir() else [(name, each.read_bytes())]
    return found


def _record(found: Files, own: str) -> bytes:
    lines = []
    for name, data in sorted(found.items()):
        assert isinstance(data, bytes)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own},,\n"]).encode()
