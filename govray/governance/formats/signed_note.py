"""Signed checkpoints of a log: C2SP signed notes that carry a tree size and root.

Source: https://c2sp.org/signed-note and https://c2sp.org/tlog-checkpoint. The
bytes, for a log named ``example.com/log``::

    example.com/log
    20852163
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

    — example.com/log Az3grlgtzPIC…

A signature line holds base64(key ID || signature); the signature covers the
text up to and including the newline before the blank line. An Ed25519 key ID is
the start of SHA-256(name || "\\n" || 0x01 || 32-byte key); an ECDSA key ID is the
start of SHA-256(SPKI DER).

Stricter than the standard asks: no extension lines (the standard advises against
them: no monitor can audit them), canonical base64, a 32-byte root. As it demands, signatures by
unknown keys are ignored, of any type and length, so witnesses may add theirs. At most sixteen
signatures are accepted. A bad signature by the known key refuses the note.

It does not say whether two checkpoints are of one log; that is
`merkle.verify_consistency`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from govray.errors import Malformed, Untrusted
from govray.governance.formats.document import MAX_COUNT
from govray.governance.formats.dsse import decode_base64, encode_base64
from govray.governance.formats.keys import PublicKey, Signer, sign_with
from govray.governance.formats.merkle import HASH_SIZE

MAX_SIGNATURES = 16
"""What the standard has every verifier accept at least, of any type."""
MAX_BYTES = 256 * 1024
"""Room for as many of the largest type that it names: "nearly 5 kB", so 7 kB in base64."""
_KEY_ID_SIZE = 4
_ED25519 = b"\x01"
_DASH = "\u2014"
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_DO = "Take the checkpoint from its source again, unedited"


@dataclass(frozen=True)
class TreeHead:
    """The state of a log: ``size`` leaves whose Merkle root is ``root`` (32 bytes)."""

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        _check_name(self.origin, "origin")
        if not 0 <= self.size <= MAX_COUNT:
            raise Malformed(f"the tree size {self.size} is out of range", where="checkpoint")
        if len(self.root) != HASH_SIZE:
            raise Malformed(f"the root is not {HASH_SIZE} bytes", where="checkpoint")

    def text(self) -> str:
        """Return the note text: three lines, each with its newline."""
        return f"{self.origin}\n{self.size}\n{encode_base64(self.root)}\n"


@dataclass(frozen=True)
class Note:
    """A checkpoint of which no signature has been verified.

    Attributes:
        text: What its signatures are over.
        signatures: Name, key ID and signature of each line.
    """

    head: TreeHead
    text: str
    signatures: tuple[tuple[str, bytes, bytes], ...]


def read_note(data: bytes) -> Note:
    """Parse a checkpoint, and verify nothing."""
    text, signatures = _split(data)
    return Note(_parse_text(text), text, tuple(signatures))


def signature_line(name: str, signed: bytes) -> str:
    """A signature line with its newline, of a key ID and a signature."""
    return f"{_DASH} {_check_name(name, 'key name')} {encode_base64(signed)}\n"


def key_id(name: str, key: PublicKey) -> bytes:
    """Return the 4-byte key ID under which ``key`` signs notes as ``name``."""
    if key.algorithm == "ed25519":
        material = name.encode() + b"\n" + _ED25519 + key.raw
    else:
        material = key.spki
    return hashlib.sha256(material).digest()[:_KEY_ID_SIZE]


def sign_checkpoint(
    origin: str, size: int, root: bytes, signer: Signer, *, key_name: str | None = None
) -> bytes:
    """Return the signed note of a log's state.

    Args:
        origin: The log's name, a URL without scheme by custom; no spaces, no ``+``.
        root: Merkle root of the leaves, 32 bytes.
        key_name: The key's name; the origin by default, as the standard advises.
    """
    name = _check_name(origin if key_name is None else key_name, "key name")
    text = TreeHead(origin, size, root).text()
    signed = key_id(name, signer.public_key) + sign_with(signer, text.encode())
    return f"{text}\n{signature_line(name, signed)}".encode()


def countersign_checkpoint(data: bytes, signer: Signer) -> bytes:
    """Return the note with a further signature over its text, under its origin as the key's name.
    Raises ``Untrusted``: ``signer`` has signed it before, and that signature does not verify."""
    text, signatures = _split(data)
    name, key = _parse_text(text).origin, signer.public_key
    if (name, key_id(name, key)) in {(by, kid) for by, kid, _ in signatures}:
        verify_checkpoint(data, key)
        return data
    signed = key_id(name, key) + sign_with(signer, text.encode())
    note = data + signature_line(name, signed).encode()
    _split(note)
    return note


def verify_checkpoint(
    data: bytes, key: PublicKey, *, origin: str | None = None, key_name: str | None = None
) -> TreeHead:
    """Return the checkpoint that ``key`` signed.

    Args:
        key: The log's key, from a source that the caller trusts.
        origin: The log that the note has to be of; any log of this key if None.
        key_name: The key's name; the note's own origin by default.

    Raises:
        Untrusted: Not signed by this key, a bad signature, or another log's note.
    """
    text, signatures = _split(data)
    checkpoint = _parse_text(text)
    if origin is not None and checkpoint.origin != origin:
        raise Untrusted(
            f"the checkpoint is of the log {checkpoint.origin!r}, not {origin!r}",
            where="checkpoint",
        )
    # A name from the note itself is safe: the signature covers the origin.
    name = checkpoint.origin if key_name is None else key_name
    expected = (name, key_id(name, key))
    ours = [signature for line_name, kid, signature in signatures if (line_name, kid) == expected]
    if not ours:
        raise Untrusted(
            f"no signature by the key {key.keyid[:16]} under the name {name!r}",
            where="checkpoint",
            do="Check that this is the key of the log's operator",
        )
    for signature in ours:
        key.verify(text.encode(), signature)
    return checkpoint


def _split(data: bytes) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """The note's text, and (name, key ID, signature) of each signature line."""
    if len(data) > MAX_BYTES:
        raise _malformed(f"{len(data)} bytes exceed the limit of {MAX_BYTES}")
    try:
        note = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed("the note is not UTF-8") from None
    if any(ord(character) < 0x20 and character != "\n" for character in note):
        raise _malformed("the note holds a control character")
    body, blank, tail = note.rpartition("\n\n")
    if not blank or not tail.endswith("\n"):
        raise _malformed("the note has no text, blank line and signature lines")
    lines = tail[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise _malformed(f"the note has more than {MAX_SIGNATURES} signatures")
    return f"{body}\n", [_parse_signature(line) for line in lines]


def _parse_signature(line: str) -> tuple[str, bytes, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    if dash != _DASH:
        raise _malformed("a signature line does not begin with an em dash and a space")
    try:
        _check_name(name, "key name")
        signed = decode_base64(encoded)
    except Malformed as error:
        raise _malformed(f"a signature line: {error.what}") from None
    if len(signed) <= _KEY_ID_SIZE:
        raise _malformed("a signature line holds no signature")
    return name, signed[:_KEY_ID_SIZE], signed[_KEY_ID_SIZE:]


def _parse_text(text: str) -> TreeHead:
    lines = text[:-1].split("\n")
    if len(lines) != 3:
        raise _malformed("the text should be three lines: origin, tree size, root")
    origin, size, encoded = lines
    if not _SIZE.fullmatch(size):
        raise _malformed(f"the tree size {size[:40]!r} is not a plain decimal number")
    try:
        root = decode_base64(encoded)
    except Malformed as error:
        raise _malformed(f"the root: {error.what}") from None
    return TreeHead(origin, int(size), root)


def _check_name(name: str, what: str) -> str:
    if not name or "+" in name or any(c.isspace() or ord(c) < 0x20 for c in name):
        raise Malformed(
            f"the {what} {name[:80]!r} is empty or has spaces, plus signs or control characters",
            where="checkpoint",
            do="Name the log like a URL without scheme, such as example.com/log",
        )
    return name


def _malformed(what: str) -> Malformed:
    return Malformed(what, where="checkpoint", do=_DO)
