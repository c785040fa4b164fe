"""A key in a hardware module, by PKCS #11: it signs there, and never leaves.

Ed25519 by ``CKM_EDDSA``. P-256 by ``CKM_ECDSA`` over the SHA-256 that is computed here, which every
module has. A session is opened for each signature: a module that was restarted is no error.

Source: OASIS PKCS #11 3.0, sections 6.3.12 (EdDSA) and 6.3.6 (ECDSA).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NoReturn

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from govray.errors import GovrayError, Malformed, UsageError
from govray.extras import install
from govray.governance.formats.keys import PublicKey
from govray.governance.signers.checked_signature import checked
from govray.governance.signers.pkcs11_reference import Pkcs11Reference

_OCTET_STRING = 0x04
_ED25519_SIZE = 32
# A module knows one login for the whole process.
_one_session = Lock()


class Pkcs11Signer:
    """Signs in a token. ``where``: the reference as errors may repeat it."""

    __slots__ = ("_public", "_reference", "_where")

    def __init__(self, reference: Pkcs11Reference, *, where: str) -> None:
        self._reference, self._where = reference, where
        self._public: PublicKey = self._with_session(self._read_public)

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies what `sign` returns."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the signature over ``message``: 64 bytes (Ed25519) or DER (ECDSA)."""
        signature = self._with_session(lambda session: self._sign(session, message))
        return checked(self._public, message, signature, where=self._where)

    def _sign(self, session: Any, message: bytes) -> bytes:
        import pkcs11

        key = session.get_key(**self._template(pkcs11.ObjectClass.PRIVATE_KEY))
        if self._public.algorithm == "ed25519":
            return bytes(key.sign(message, mechanism=pkcs11.Mechanism.EDDSA))
        hashed = hashlib.sha256(message).digest()
        raw = bytes(key.sign(hashed, mechanism=pkcs11.Mechanism.ECDSA))
        half = len(raw) // 2
        return encode_dss_signature(
            int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
        )

    def _read_public(self, session: Any) -> PublicKey:
        import pkcs11

        key = session.get_key(**self._template(pkcs11.ObjectClass.PUBLIC_KEY))
        point = _unwrapped(bytes(key[pkcs11.Attribute.EC_POINT]))
        try:
            return _public_key(point)
        except (ValueError, Malformed):
            raise UsageError(
                "the key is neither Ed25519 nor P-256",
                where=self._where,
                do="Make a key of one of the two in the token",
            ) from None

    def _template(self, kind: Any) -> dict[str, Any]:
        named = {"label": self._reference.label, "id": self._reference.identity}
        return {"object_class": kind, **{k: v for k, v in named.items() if v is not None}}

    def _with_session(self, act: Callable[[Any], Any]) -> Any:
        with _one_session, self._refusing() as pkcs11:
            library = pkcs11.lib(self._reference.module)
            named = {"token_label": self._reference.token, "token_serial": self._serial}
            token = library.get_token(**{k: v for k, v in named.items() if v is not None})
            with token.open(user_pin=self._reference.pin) as session:
                return act(session)

    @property
    def _serial(self) -> bytes | None:
        serial = self._reference.serial
        return None if serial is None else serial.encode()

    @contextmanager
    def _refusing(self) -> Iterator[Any]:
        """python-pkcs11, whose errors become ours; none of them holds a PIN."""
        try:
            import pkcs11
        except ImportError:
            raise UsageError(
                "python-pkcs11 is not installed",
                where=self._where,
                do=f"Run {install('pkcs11')}",
            ) from None
        try:
            yield pkcs11
        except GovrayError:
            raise
        except (pkcs11.PKCS11Error, RuntimeError, OSError, AttributeError) as error:
            kind = type(error).__name__
            raise UsageError(
                _SAID.get(kind, f"the module refuses: {kind}"),
                where=self._where,
                do="Check module-path, token, object and PIN: pkcs11-tool --list-objects shows "
                "what is there",
            ) from None

    def __repr__(self) -> str:
        return f"Pkcs11Signer({self._public.algorithm}, keyid={self._public.keyid})"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a signer may not leave this process",
            where=self._where,
            do="Sign on the driver; workers and tasks get no key",
        )


_SAID = {
    "NoSuchToken": "the module has no such token",
    "NoSuchKey": "the token has no such key, or not both halves of it",
    "MultipleObjectsReturned": "several keys of the token have this name",
    "MultipleTokensReturned": "several tokens have this name",
    "PinIncorrect": "the PIN is wrong",
    "PinLenRange": "the PIN is wrong",
    "PinLocked": "the PIN is locked after too many tries",
    "UserNotLoggedIn": "the token asks for a PIN, and none is given",
    "PKCS11Error": "the module cannot be loaded",
    "RuntimeError": "the module cannot be loaded",
    "OSError": "the module cannot be loaded",
}


def _unwrapped(point: bytes) -> bytes:
    """The point in its DER octet string, which older modules leave out."""
    # By its size too: a bare point of P-256 begins with the same byte.
    if len(point) in (34, 67) and point[0] == _OCTET_STRING and point[1] == len(point) - 2:
        return point[2:]
    return point


def _public_key(point: bytes) -> PublicKey:
    key: Ed25519PublicKey | ec.EllipticCurvePublicKey
    if len(point) == _ED25519_SIZE:
        key = Ed25519PublicKey.from_public_bytes(point)
    else:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    return PublicKey.from_spki(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
