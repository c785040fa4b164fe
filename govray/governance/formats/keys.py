"""Public keys that verify and signers that sign: Ed25519 and ECDSA P-256.

Ed25519 (RFC 8032) is the default. ECDSA over P-256 with SHA-256 (FIPS 186-5, DER signatures) is
accepted because many HSMs have no Ed25519. There is no third algorithm and no negotiation: a key
states its type, and its signatures are read as that.

An ECDSA signature has a twin: with (r, s), (r, n - s) verifies too, and whoever sees one can make
the other without the key. Both are accepted, since HSMs, OpenSSL and Go make either; `sign_with`
writes the one with the lower s. So the bytes around a signed content are no name for it: what
identifies a document is the digest of its payload. Of Ed25519 one encoding verifies (RFC 8032).

Invariants:
    * A `PublicKey` holds the one DER encoding of its SubjectPublicKeyInfo (RFC 5280, RFC 8410, RFC
      5480). So equal keys are equal bytes, and counting distinct keys is counting distinct bytes.
    * An Ed25519 point of small order is no key: some signatures under it
      verify for every message.
    * Private key bytes appear in no repr, no error and no pickle; nor does a reference to a key
      that could be the key itself.

`Signer` is the whole interface that an HSM or a cloud key service has to offer. Who a key belongs
to is for `trust_state.py`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn, Protocol, Self, TypeAlias, get_args

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from govray.errors import Malformed, Untrusted, UsageError
from govray.printable import without_keys
from govray.storage.private_file import OpenToOthers, open_private, read_private

Algorithm: TypeAlias = Literal["ed25519", "ecdsa-p256"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

# The order n of P-256's group (SP 800-186, section 3.2.1.3).
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
PKCS11 = "pkcs11:"
"""How a reference to a key in a hardware module begins."""
COMMAND = "command:"
"""How a reference to a key behind a command begins."""
_MAX_KEY_FILE = 64 * 1024
_MAX_PASSWORD = 4096
# A private key of 32 bytes takes 43 characters in base64 and 64 in hexadecimal.
_SHORTER_THAN_A_KEY = 40
_VARIABLE = re.compile(rf"env:[A-Za-z_][A-Za-z0-9_]{{0,{_SHORTER_THAN_A_KEY - 1}}}")
_FIELD = 2**255 - 19
# The y coordinates of the points of order 1, 2, 4 and 8 on edwards25519. The two of order 8 are the
# roots of d·y^4 + 2y^2 - 1 that are squares.
_ORDER_8_Y = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER_Y = frozenset({0, 1, _FIELD - 1, _ORDER_8_Y, _FIELD - _ORDER_8_Y})


@dataclass(frozen=True)
class PublicKey:
    """A key that can verify. Raises ``Malformed``: ``spki`` is not the canonical encoding of a
    sound key of that algorithm."""

    algorithm: Algorithm
    spki: bytes

    def __post_init__(self) -> None:
        found = _algorithm(_load_spki(self.spki))
        if found != self.algorithm:
            raise Malformed(f"the key is {found}, not {self.algorithm}", where="public key")

    @classmethod
    def from_spki(cls, spki: bytes) -> Self:
        """Return the key that DER bytes hold."""
        return cls(_algorithm(_load_spki(spki)), spki)

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Return the key of a PEM ``PUBLIC KEY`` block."""
        try:
            key = serialization.load_pem_public_key(pem)
            spki = _spki(key)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise _malformed("no PEM public key that govray knows") from None
        return cls.from_spki(spki)

    def to_pem(self) -> bytes:
        """Return the PEM ``PUBLIC KEY`` block."""
        return _load_spki(self.spki).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def keyid(self) -> str:
        """SHA-256 of the SPKI, 64 lowercase hex digits: a name, never a decision."""
        return hashlib.sha256(self.spki).hexdigest()

    @property
    def openssh_fingerprint(self) -> str:
        """``SHA256:`` and base64 without padding, as ``ssh-keygen -l`` prints it: a name too.
        Of the key's bytes on the wire (RFC 4253 section 6.6, RFC 5656, RFC 8709)."""
        line = _load_spki(self.spki).public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
        return f"SHA256:{base64.b64encode(digest).decode('ascii').rstrip('=')}"

    @property
    def raw(self) -> bytes:
        """The 32 bytes of RFC 8032, or the 65 bytes of the uncompressed point (SEC 1)."""
        key = _load_spki(self.spki)
        if isinstance(key, Ed25519PublicKey):
            return key.public_bytes_raw()
        return key.public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )

    def verify(self, message: bytes, signature: bytes) -> None:
        """Return if ``signature`` is this key's over ``message``.
        Raises ``Untrusted``: it is not."""
        key = _load_spki(self.spki)
        try:
            if isinstance(key, Ed25519PublicKey):
                key.verify(signature, message)
            else:
                key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise Untrusted(
                "the signature does not verify", where=f"key {self.keyid[:16]}"
            ) from None


class Signer(Protocol):
    """What signing needs: a local key, an HSM or a key service behind two members."""

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies what `sign` returns."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the signature: 64 bytes (Ed25519) or DER (ECDSA with SHA-256)."""
        ...


def sign_with(signer: Signer, message: bytes) -> bytes:
    """The signer's signature over ``message``, in the one form that govray writes.
    Of ECDSA's two that is the one whose s is at most half the group's order."""
    signature = signer.sign(message)
    if signer.public_key.algorithm == "ed25519":
        return signature
    try:
        r, s = decode_dss_signature(signature)
    except ValueError:
        raise UsageError(
            "the signer returned no DER signature", where=f"key {signer.public_key.keyid[:16]}"
        ) from None
    return encode_dss_signature(r, min(s, _P256_ORDER - s))


class LocalSigner:
    """A private key in this process. It cannot be pickled: keys stay where they were loaded."""

    __slots__ = ("_private", "_public")

    def __init__(self, private: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        self._public = PublicKey.from_spki(_spki(private.public_key()))

    @classmethod
    def generate(cls, algorithm: Algorithm = "ed25519") -> Self:
        """Return a fresh key from the operating system's randomness."""
        match algorithm:
            case "ed25519":
                return cls(Ed25519PrivateKey.generate())
            case "ecdsa-p256":
                return cls(ec.generate_private_key(ec.SECP256R1()))
        _unknown_algorithm(algorithm)

    @classmethod
    def from_pem(cls, pem: bytes, password: bytes | None = None) -> Self:
        """Return the key of a PKCS #8 PEM block, encrypted or not."""
        try:
            private = serialization.load_pem_private_key(pem, password)
        except TypeError:
            raise UsageError(
                "the private key is not encrypted, but a password was given"
                if password is not None
                else "the private key is encrypted",
                do="Leave the password out"
                if password is not None
                else "Give its password: --password-file FILE, or attestation_key_password_file "
                "in an experiment",
            ) from None
        except (ValueError, UnsupportedAlgorithm):
            raise UsageError(
                "no private key could be read"
                + (" with this password" if password is not None else ""),
                do="Give a PKCS #8 PEM file, as 'govray keys new' writes it",
            ) from None
        if not isinstance(private, Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
            _unknown_algorithm(type(private).__name__)
        if isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name != "secp256r1":
            _unknown_algorithm(private.curve.name)
        return cls(private)

    def to_pem(self, password: bytes | None = None) -> bytes:
        """Return the key as PKCS #8 PEM, encrypted if a password is given."""
        if password == b"":
            raise UsageError("the password is empty", do="Give a password, or none at all")
        return self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password)
            if password is not None
            else serialization.NoEncryption(),
        )

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies what `sign` returns."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the signature over ``message``: 64 bytes (Ed25519) or DER (ECDSA)."""
        if isinstance(self._private, Ed25519PrivateKey):
            return self._private.sign(message)
        return self._private.sign(message, ec.ECDSA(hashes.SHA256()))

    def __repr__(self) -> str:
        return f"LocalSigner({self._public.algorithm}, keyid={self._public.keyid})"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a private key may not leave this process",
            where=repr(self),
            do="Sign on the driver; workers and tasks get no key",
        )


def load_signer(
    reference: str,
    *,
    password: bytes | Callable[[], bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LocalSigner:
    """Return the signer that ``reference`` names.

    Args:
        reference: ``env:NAME``, where the variable holds the PEM itself or a
            path to it; or a path.
        password: Of an encrypted key; a function is called only if the key is encrypted.
        environment: Where variables are looked up; this process's environment by default.

    Raises:
        UsageError: Nothing is there, others can read the file, or it holds no key. The message says
            what to do, and repeats no reference that could be a key.
    """
    pem = private_pem(reference, os.environ if environment is None else environment)
    try:
        if callable(password):
            password = password() if b"ENCRYPTED" in pem else None
        return LocalSigner.from_pem(pem, password)
    except UsageError as error:
        raise UsageError(error.what, where=shown_reference(reference), do=error.do) from None


def read_password(path: Path) -> bytes:
    """The first line of ``path``, without its end.

    Raises:
        UsageError: It cannot be read, others can read it, or the line is empty or too long. What
            names no file is not repeated: who takes the option for the password's gives that.
    """
    try:
        with open_private(path) as file:  # a pipe need not end behind the line
            line = file.readline(_MAX_PASSWORD + 2)
    except OpenToOthers as error:
        raise UsageError(
            f"the password file can be read by others (mode {error.mode:04o})",
            where=str(path),
            do=f"Run: {error.remedy}",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise UsageError(
            f"the password cannot be read: {reason}",
            where=_shown_password_file(path),
            do="Name a file with the password in its first line, never the password itself",
        ) from None
    password = line.rstrip(b"\r\n")
    if not password or len(password) > _MAX_PASSWORD:
        raise UsageError(
            "the first line is no password: it is empty or too long",
            where=str(path),
            do="Write the password into the first line",
        )
    return password


def _shown_password_file(path: Path) -> str:
    """The path, if it is there and a key has no room in it: a password may be shorter than that."""
    shown = shown_reference(str(path))
    try:
        there = os.path.lexists(path)
    except ValueError:
        there = False
    return shown if there and shown != _NOT_SHOWN else "the password's file"


def shown_reference(reference: str) -> str:
    """``reference`` as an error may repeat it: as it is, unless it could be a key itself.

    It is ``env:NAME``, an existing path, or a path whose missing part is too short to be a key. So
    a mistyped path is shown. Of a hardware module the token and the object are, and of a command
    its program.
    """
    if _VARIABLE.fullmatch(reference):
        return reference
    if reference.startswith((PKCS11, COMMAND)):
        return _shown_outside(reference)
    if reference.startswith("env:") or without_keys(reference) != reference:
        return _NOT_SHOWN
    try:
        path = Path(reference).expanduser()
        there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    except (ValueError, RuntimeError, StopIteration):
        return _NOT_SHOWN
    missing = "" if there == path else str(path.relative_to(there))
    return reference if len(missing) <= _SHORTER_THAN_A_KEY else _NOT_SHOWN


def _shown_outside(reference: str) -> str:
    """The part of a reference to a module or a command that says where, and holds no secret."""
    kind, _, rest = reference.partition(":")
    told = rest.partition("?")[0] if kind == "pkcs11" else rest.partition(" ")[0]
    longest = max((len(each.rpartition("=")[2]) for each in told.split(";")), default=0)
    if longest > _SHORTER_THAN_A_KEY or "pin-" in told or without_keys(told) != told:
        told = "…"
    return f"{kind}:{told}"


def is_outside(reference: str) -> bool:
    """Whether the key stays outside of this process: in a hardware module, or with a command."""
    return reference.startswith((PKCS11, COMMAND))


def in_file(reference: str) -> bool:
    """Whether the key lies in a file: no variable holds it, and it is not outside."""
    return not is_outside(reference) and not reference.startswith("env:")


def check_reference(reference: str) -> str:
    """Return ``reference`` if it could name a key: not the key itself, which nothing may record.
    Raises ``ValueError``: it is one, has a PIN in it, or is no line of text; it is not repeated."""
    if without_keys(reference) != reference or not reference.isprintable():
        raise ValueError("give env:NAME or the path of a key file, never the key itself")
    if reference.startswith(PKCS11) and "pin-value" in reference:
        raise ValueError("name the PIN's file by pin-source, never the PIN itself")
    return reference


def held_key(variable: str, environment: Mapping[str, str]) -> bool:
    """Whether the variable is set to a PEM itself, rather than to a path or to nothing."""
    return environment.get(variable, "").strip().startswith(_PEM)


_PEM = "-----BEGIN"
_NOT_SHOWN = "the key's reference"


def private_pem(reference: str, environment: Mapping[str, str]) -> bytes:
    """The PEM that ``reference`` leads to. Raises as `load_signer`, which reads it."""
    try:
        return _read_reference(reference, environment)
    except UsageError as error:
        raise UsageError(error.what, where=shown_reference(reference), do=error.do) from None


def _read_reference(reference: str, environment: Mapping[str, str]) -> bytes:
    if not reference.startswith("env:"):
        if reference.lstrip().startswith(_PEM):
            raise UsageError("this is a key, not where one is", do=_GIVE)
        return _read_private(reference)
    name = reference.removeprefix("env:")
    value = environment.get(name, "").strip()
    if not value:
        raise UsageError(
            f"the environment variable {name} is not set"
            if shown_reference(reference) == reference
            else "the environment variable is not set",
            do="Set it to a PEM private key or to the path of one",
        )
    return value.encode() if held_key(name, environment) else _read_private(value)


_PUBLIC = b"-----BEGIN PUBLIC KEY-----"
_GIVE = "Give the path of a key file, or env:NAME; 'govray keys new' makes a key"


def _read_private(location: str) -> bytes:
    """The bytes of a key file that only its owner can read. A location that cannot be opened stays
    out of the message. It may come from a variable that holds a key in an unrecognised form."""
    try:
        path = Path(location).expanduser()
        data = read_private(path, _MAX_KEY_FILE + 1)
    except OpenToOthers as error:
        if _is_public(path):
            raise UsageError("this is a public key", do="Name the private key beside it") from None
        raise UsageError(
            f"the private key file can be read by others (mode {error.mode:04o})",
            do=f"Run: {error.remedy}",
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a NUL in the path; RuntimeError: ~ of an unknown user.
        raise UsageError(
            f"cannot read the private key: {getattr(error, 'strerror', None) or error}",
            do=_GIVE,
        ) from None
    if len(data) > _MAX_KEY_FILE:
        raise UsageError("the file is too large to be a private key")
    return data


def _is_public(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_PUBLIC)) == _PUBLIC
    return False


def _spki(key: object) -> bytes:
    if not isinstance(key, Ed25519PublicKey | ec.EllipticCurvePublicKey):
        raise _malformed(f"{type(key).__name__} is not accepted")
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@lru_cache(maxsize=256)
def _load_spki(spki: bytes) -> Ed25519PublicKey | ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_der_public_key(spki)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _malformed("not a DER SubjectPublicKeyInfo of a known algorithm") from None
    if _spki(key) != spki:
        raise _malformed("the SubjectPublicKeyInfo is not in its canonical form")
    if isinstance(key, Ed25519PublicKey):
        _refuse_weak_point(key.public_bytes_raw())
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        return key
    raise _malformed("elliptic curves other than P-256 are not accepted")


def _refuse_weak_point(raw: bytes) -> None:
    y = int.from_bytes(raw, "little") & (2**255 - 1)  # without the sign of x
    if y >= _FIELD:
        raise _malformed("the Ed25519 point is not in its canonical form")
    if y in _SMALL_ORDER_Y:
        raise _malformed("the Ed25519 point has small order: anyone could sign for it")


def _algorithm(key: Ed25519PublicKey | ec.EllipticCurvePublicKey) -> Algorithm:
    return "ed25519" if isinstance(key, Ed25519PublicKey) else "ecdsa-p256"


def _malformed(what: str) -> Malformed:
    return Malformed(what, where="public key", do=f"Use one of: {', '.join(ALGORITHMS)}")


def _unknown_algorithm(name: str) -> NoReturn:
    raise UsageError(f"{name} keys are not accepted", do=f"Use one of: {', '.join(ALGORITHMS)}")
