"""``pkcs11:…`` as RFC 7512 writes it: which token, which object, which module, where the PIN is.

A PIN in the reference (``pin-value``) is refused, since references are recorded and shown. It comes
from the file that ``pin-source`` names, readable by its owner alone, or from the variable
``GOVRAY_PKCS11_PIN``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, unquote_to_bytes

from govray.errors import UsageError
from govray.governance.formats.keys import PKCS11, read_password, shown_reference

PIN_VARIABLE = "GOVRAY_PKCS11_PIN"
MODULE_VARIABLE = "GOVRAY_PKCS11_MODULE"

_PATH = frozenset({"token", "serial", "object", "id", "type"})
_QUERY = frozenset({"module-path", "pin-source"})
_DO = "Write pkcs11:token=NAME;object=NAME?module-path=FILE&pin-source=FILE"


@dataclass(frozen=True)
class Pkcs11Reference:
    """One private key of one token.

    Attributes:
        module: The library that speaks to the token.
        label: The key's label (``object``), if given; ``label`` or ``id`` is.
        pin: Of the token's user; None if none is needed.
    """

    module: str
    token: str | None
    serial: str | None
    label: str | None
    identity: bytes | None
    pin: str | None

    @classmethod
    def parse(cls, reference: str, environment: Mapping[str, str]) -> Self:
        """Read a reference, and the PIN from where it says."""
        where = shown_reference(reference)
        path, _, query = reference.removeprefix(PKCS11).partition("?")
        names = _attributes(path, ";", _PATH, where)
        further = _attributes(query, "&", _QUERY, where)
        if "object" not in names and "id" not in names:
            raise UsageError("neither object nor id names a key", where=where, do=_DO)
        if names.get("type", "private") != "private":
            raise UsageError("the object is no private key", where=where, do="Leave type out")
        module = unquote(further.get("module-path", "")) or environment.get(MODULE_VARIABLE, "")
        if not module:
            raise UsageError(
                "no module is named",
                where=where,
                do=f"Add ?module-path=FILE, or set {MODULE_VARIABLE} to the module's library",
            )
        return cls(
            module=module,
            token=_text(names, "token"),
            serial=_text(names, "serial"),
            label=_text(names, "object"),
            identity=unquote_to_bytes(names["id"]) if "id" in names else None,
            pin=_pin(further.get("pin-source"), environment),
        )


def _attributes(text: str, between: str, known: frozenset[str], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(between) if text else ():
        name, equals, value = part.partition("=")
        if name == "pin-value":
            raise UsageError(
                "a PIN does not belong into a reference, which is recorded and shown",
                where=where,
                do=f"Write it into a file (mode 0600) for pin-source, or set {PIN_VARIABLE}",
            )
        if not equals or name not in known or name in found:
            what = "is there twice" if name in found else "is not known here"
            raise UsageError(f"the attribute {name[:40]!r} {what}", where=where, do=_DO)
        found[name] = value
    return found


def _text(names: Mapping[str, str], name: str) -> str | None:
    return unquote(names[name]) if name in names else None


def _pin(source: str | None, environment: Mapping[str, str]) -> str | None:
    if source is None:
        return environment.get(PIN_VARIABLE) or None
    path = unquote(source).removeprefix("file://").removeprefix("file:")
    return read_password(Path(path)).decode(errors="replace")
