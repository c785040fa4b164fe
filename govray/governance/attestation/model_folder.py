"""The model folder: what its files are called, and reading them within bounds.

A model folder comes from someone else. So nothing in it is trusted before it has been read, and
nothing about it may cost more than its limit. Names are checked, only regular files are opened,
symbolic links are refused everywhere, and every read has a size limit. The path by which a user
names the folder, or a file in it, may have links and ``..``; `find_model` follows them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, overload

from govray.errors import Damaged, Malformed, UsageError
from govray.governance.formats import canonical_json, signed_note, tensor_header
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.regular_file import open_below

MODEL = "model"
"""The folder's name in the run's own folder, where attesting puts it."""
CONFIG = "govray.json"
"""What govray itself says of a model: its class, hyperparameters, tokenizer and context."""
LOADER_CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
LOADER_FILES = (
    *(LOADER_CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json"),
    *("special_tokens_map.json", "chat_template.jinja"),
)
"""What other libraries load a model by, beside its weights, where it is one of transformers. No
other file of theirs gets into a model folder: no code, no pickle."""
WEIGHTS = "model.safetensors"
EMA = "ema/model.safetensors"
"""The average of the base model's weights, where the run kept one: the same tensors by name.
Not beside the weights: some loaders read each safetensors file that lies there."""
ADAPTERS = "adapters"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

GOVERNANCE = "governance"
ATTESTATION = f"{GOVERNANCE}/attestation.dsse.json"
POLICY = f"{GOVERNANCE}/policy.dsse.json"
MANIFEST = f"{GOVERNANCE}/manifest.dsse.json"
CREDENTIALS = f"{GOVERNANCE}/credentials.jsonl"
DELEGATIONS = f"{GOVERNANCE}/delegations.jsonl"
LEDGER = f"{GOVERNANCE}/ledger.jsonl"
CHECKPOINT = f"{GOVERNANCE}/ledger.checkpoint"
GATES = f"{GOVERNANCE}/gates.jsonl"
REPLAYS = f"{GOVERNANCE}/replays.jsonl"
WITNESSED = f"{GOVERNANCE}/ledger.witnessed"
"""The ledger's checkpoint with cosignatures of witnesses, which come after the attestation."""

_PARTY = "([A-Za-z0-9][A-Za-z0-9._-]{0,127})"
_REPLAY = rf"{GOVERNANCE}/replay-{_PARTY}\.dsse\.json"
_TIMESTAMP = rf"{GOVERNANCE}/timestamp-{_PARTY}\.tsr"

NAMES: Mapping[str, Mapping[str, Any]] = {
    "reserved": {
        "folders": (ADAPTERS, GOVERNANCE, "ema"),
        "names": (CONFIG, LOADER_CONFIG, WEIGHTS),
    },
    "tensors": {"suffixes": (".safetensors", ".bin", ".pt", ".pth")},
    "outsiders": {"patterns": (_REPLAY, _TIMESTAMP, re.escape(WITNESSED))},
    "inert": {
        "names": (".gitattributes", ".gitignore", ".gitkeep", "cachedir.tag", "copying.lesser"),
        "suffixes": (".md", ".rst", ".html", ".svg"),
        "texts": (
            *("readme", "license", "licence", "notice", "copying", "changelog", "authors"),
            *("contributing", "citation", "notes", "todo"),
        ),
        "below": {".cache/huggingface/download": (".metadata", ".lock")},
        "marks": {
            **{".pdf": "255044462d", ".png": "89504e470d0a1a0a", ".gif": "47494638"},
            **{".jpg": "ffd8ff", ".jpeg": "ffd8ff", ".webp": "52494646"},
            ".ds_store": "0000000142756431",
        },
    },
}
"""What files are called, in small letters; the evidence pack's script gets this table.
A text may have ``.txt`` or no suffix, and more behind ``-`` or ``_``. ``below``: folder → suffixes
that are inert there. ``marks``: suffix, or name, → the first bytes of its files, in hex. What has
none is a text."""
_RESERVED, _INERT = NAMES["reserved"], NAMES["inert"]
_INERT_TEXT = re.compile(rf"({'|'.join(_INERT['texts'])})([-_][a-z0-9._-]+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_ZIP_END, _ZIP_TAIL = b"PK\x05\x06", 65_557
"""What the end of a zip archive begins with, and its most bytes. Python runs an archive whatever
stands before it. Source: PKWARE's APPNOTE, section 4.3.16."""

MAX_FILES = 10_000
MAX_DEPTH = 8
MAX_ENVELOPE = canonical_json.MAX_BYTES
MAX_LINES = 1 << 30
MAX_NOTE = signed_note.MAX_BYTES
MAX_INERT = 64 << 20

_CHUNK = 1 << 20


def adapter_files(name: str) -> tuple[str, str]:
    """The two files of one adapter: its config and its weights."""
    folder = f"{ADAPTERS}/{name}"
    return f"{folder}/{ADAPTER_CONFIG}", f"{folder}/{ADAPTER_WEIGHTS}"


def replay_file(party: str) -> str:
    """The file of a second party's word about this model; see ``replay_check.py``."""
    return f"{GOVERNANCE}/replay-{party}.dsse.json"


def replay_party(name: str) -> str | None:
    """The party for which a file is named, if it is such a file."""
    match = re.fullmatch(_REPLAY, name)
    return match[1] if match else None


def timestamp_file(authority: str) -> str:
    """The file of a timestamp over the attestation, by an authority of the trust root."""
    return f"{GOVERNANCE}/timestamp-{authority}.tsr"


def timestamp_authority(name: str) -> str | None:
    """The authority for which a file is named, if it is such a file."""
    match = re.fullmatch(_TIMESTAMP, name)
    return match[1] if match else None


def by_outsiders(name: str) -> bool:
    """Whether a file of this name is signed by others than the operator, after the attestation.
    No digest of the attestation covers it: the steps 14 to 16 judge it by its own signature."""
    return any(re.fullmatch(each, name) for each in NAMES["outsiders"]["patterns"])


def covered(name: str) -> bool:
    """Whether a file of this name makes a claim that an attestation must cover.

    Weights, adapters and the config decide what the model *is*. An attestation that names such
    a file without need is as wrong as one that leaves it out.
    """
    path = PurePosixPath(name.casefold())  # some file systems know no case
    return reserved(name) or path.suffix in NAMES["tensors"]["suffixes"]


def reserved(name: str) -> bool:
    """Whether a file of this name stands where only attested files may: no exception allows it."""
    path = PurePosixPath(name.casefold())
    return path.parts[0] in _RESERVED["folders"] or str(path) in _RESERVED["names"]


def inert(name: str) -> bool:
    """Whether a file of this name is of the few kinds that people read and no loader does.

    Some tool may load or execute anything else: a pickle, a module, a tokenizer, a chat template,
    another format's weights, or an unknown kind. So the list is of what is known to be harmless.
    A hidden folder is a folder like others. What git keeps there is not inert: it runs hooks, and
    its objects may be anything.
    """
    path = PurePosixPath(name.casefold())
    if any(path.suffix in of and path.is_relative_to(at) for at, of in _INERT["below"].items()):
        return True  # what the Hub's downloads keep beside a model
    if path.name in _INERT["names"] or path.suffix in _INERT["suffixes"] or _mark(path):
        return True
    return path.suffix in ("", ".txt") and _INERT_TEXT.fullmatch(path.stem) is not None


def reads_as_named(name: str, data: bytes) -> bool:
    """Whether a file of an inert name has the content of its kind. That is text in UTF-8, or the
    kind's first bytes with no archive behind. A pickle is no README, nor a zip archive a picture.
    """
    if (mark := _mark(PurePosixPath(name.casefold()))) is not None:
        return not data or (data.startswith(mark) and _ZIP_END not in data[-_ZIP_TAIL:])
    try:
        return _CONTROL.search(data.decode()) is None
    except UnicodeDecodeError:
        return False


def _mark(path: PurePosixPath) -> bytes | None:
    mark = _INERT["marks"].get(path.suffix or path.name)
    return None if mark is None else bytes.fromhex(mark)


def check_name(name: str) -> str:
    """Return ``name`` if it is a plain relative path in POSIX form. Raises ``Malformed``: it is
    absolute, climbs, or holds a character that some system treats specially."""
    parts = name.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or any(c in '\\:*?"<>|' or not c.isprintable() for c in name)
        or len(name) > 1024
    ):
        raise Malformed("not a plain relative file name", where=repr(name))
    return name


@overload
def find_model(path: Path) -> Path | None: ...
@overload
def find_model(path: Place) -> Place | None: ...
def find_model(path: Place) -> Place | None:
    """The model folder that ``path`` is, or lies in; None outside of one.

    Where ``path`` really lies counts, with its ``..`` and links followed: what is reached through
    a model folder is not thereby in it. The folder keeps the name by which it was reached, if it
    has one without ``..``.
    """
    if isinstance(path, BucketPath):
        return next((p for p in (path, *path.parents) if (p / ATTESTATION).is_file()), None)
    real = path.resolve()
    root = next((p for p in (real, *real.parents) if (p / ATTESTATION).is_file()), None)
    path = path.absolute()
    named = (p for p in (path, *path.parents) if ".." not in p.parts and p.resolve() == root)
    return next(named, root)


def what_to_give(path: Place) -> str:
    """What an error tells who gave ``path``, in which there is no attestation."""
    inside = path / MODEL
    if (inside / ATTESTATION).is_file():
        return f"This is the folder of a run. Give the model in it: {inside}."
    return f"Give a model folder, which holds {ATTESTATION}, or a file in one."


def name_inside(path: Place, root: Place) -> str:
    """What a path in the model folder ``root`` is called there; ``.`` for the folder itself."""
    if isinstance(path, BucketPath) and isinstance(root, BucketPath):
        return path.relative_to(root) or "."
    return Path(str(path)).resolve().relative_to(Path(str(root)).resolve()).as_posix()


def read_limit(name: str) -> int | None:
    """How many bytes of a file are read at most, also to hash them; None if as many as it has.
    Weights have no limit: of them the header is read, and the rest is only hashed."""
    if name in (CREDENTIALS, LEDGER, GATES):
        return MAX_LINES
    if name == CHECKPOINT:
        return MAX_NOTE
    if name.startswith(f"{GOVERNANCE}/") or name.rpartition("/")[2] in (CONFIG, ADAPTER_CONFIG):
        return MAX_ENVELOPE
    return None


@dataclass(frozen=True)
class TensorFile:
    """What was hashed of a safetensors file, and its beginning, of which nothing is parsed yet.

    Attributes:
        sha256: Of the whole file, 64 hex digits.
        size: Bytes of the whole file.
        head: The bytes before the tensors'; fewer where there are no more.
    """

    sha256: str
    size: int
    head: bytes

    def tensor_names(self, name: str) -> frozenset[str]:
        """The names in the header of the file, which is called ``name``."""
        found = tensor_header.read_header(BytesIO(self.head), where=name, size=self.size)
        return frozenset(tensor.name for tensor in found)


@dataclass(frozen=True)
class Bundle:
    """A model folder, opened for reading: of a disk, or below a bucket, which has no links."""

    root: Place

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise UsageError("no such folder", where=str(self.root), do="Give a model folder.")

    def names(self) -> tuple[str, ...]:
        """Every file below the folder, sorted. Raises ``Malformed``: a link, a special file, an
        unsafe name, too many files or too deep a folder."""
        if isinstance(self.root, BucketPath):
            return self._objects(self.root)
        found: list[str] = []
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                entries = sorted(os.scandir(self.root / folder), key=lambda entry: entry.name)
            except OSError as error:
                raise Malformed(f"cannot list it: {error.strerror}", where=folder) from error
            for entry in entries:
                name = check_name(f"{folder}{entry.name}")
                if entry.is_symlink():
                    raise Malformed(
                        "a symbolic link in a model folder", where=name, do="Copy the file itself."
                    )
                if entry.is_dir():
                    if name.count("/") >= MAX_DEPTH:
                        raise Malformed(f"more than {MAX_DEPTH} folders deep", where=name)
                    pending.append(f"{name}/")
                elif entry.is_file():
                    found.append(name)
                else:
                    raise Malformed("neither a file nor a folder", where=name)
                if len(found) + len(pending) > MAX_FILES:
                    raise Malformed(f"more than {MAX_FILES} files", where=str(self.root))
        return tuple(sorted(found))

    def _objects(self, root: BucketPath) -> tuple[str, ...]:
        try:
            found = tuple(sorted(check_name(name) for name in root.walk_files()))
        except OSError as error:
            raise Malformed(f"cannot list it: {error.strerror}", where=str(root)) from error
        if len(found) > MAX_FILES:
            raise Malformed(f"more than {MAX_FILES} files", where=str(root))
        if deep := next((name for name in found if name.count("/") > MAX_DEPTH), None):
            raise Malformed(f"more than {MAX_DEPTH} folders deep", where=deep)
        return found

    def read(self, name: str, *, limit: int, digest: str | None = None) -> bytes:
        """The content of a file of at most ``limit`` bytes.
        ``digest``: ``sha256:`` and 64 hex digits, if the content has to be what it was before.
        Raises ``Malformed``: not a regular file, or larger. ``Damaged``: its digest differs."""
        with self._open(name) as file:
            data = file.read(min(limit, self._size(name, file)) + 1)  # takes as much memory
        if len(data) > limit:
            raise Malformed(f"larger than {limit} bytes", where=name)
        if digest is not None and canonical_json.sha256(data) != digest:
            raise changed(name)
        return data

    def lines(
        self, name: str, *, limit: int = MAX_LINES, digest: str | None = None
    ) -> tuple[bytes, ...]:
        """The lines of a file of envelopes, each ended by one newline; at most ``limit`` bytes."""
        data = self.read(name, limit=limit, digest=digest)
        if data and not data.endswith(b"\n"):
            raise Malformed("the last line is cut off", where=name)
        lines = tuple(data.split(b"\n")[:-1])
        if b"" in lines:
            raise Malformed("an empty line", where=name)
        return lines

    def inert(self, name: str) -> bool:
        """Whether a file is inert by its name, and has the content of such a file."""
        if not inert(name):
            return False
        with self._open(name) as file:
            data = file.read(MAX_INERT + 1)
        return len(data) <= MAX_INERT and reads_as_named(name, data)

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file, 64 hex digits."""
        return self._hash(name, head=False).sha256

    def tensor_file(self, name: str) -> TensorFile:
        """The digest of a safetensors file and its header, from one reading."""
        return self._hash(name, head=True)

    def copy(self, name: str, target: Path, *, sha256: str) -> None:
        """Copy a file's bytes to the new file ``target``, if they are those of ``sha256``.
        Raises ``Damaged``: they are others; ``target`` is not to be used."""
        digest = hashlib.sha256()
        with self._open(name) as file, target.open("xb") as copied:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                copied.write(chunk)
        if digest.hexdigest() != sha256:
            raise changed(name)

    def _hash(self, name: str, *, head: bool) -> TensorFile:
        limit = read_limit(name)
        begin = b""
        with self._open(name) as file:
            # What grows while it is read would else be read for ever.
            bound = self._size(name, file) if limit is None else limit
            if head:
                begin = file.read(tensor_header.LENGTH)
                begin += file.read(tensor_header.header_length(begin, where=name))
            digest, size = hashlib.sha256(begin), len(begin)
            while size <= bound and (chunk := file.read(min(_CHUNK, bound + 1 - size))):
                digest.update(chunk)
                size += len(chunk)
        if size > bound:
            raise Malformed(
                f"larger than {bound} bytes" if limit else "it grew while it was read", where=name
            )
        return TensorFile(digest.hexdigest(), size, begin)

    def _size(self, name: str, file: BinaryIO) -> int:
        if isinstance(self.root, BucketPath):
            return (self.root / name).stat().st_size
        return os.fstat(file.fileno()).st_size

    def _open(self, name: str) -> BinaryIO:
        try:
            if isinstance(self.root, BucketPath):
                return (self.root / check_name(name)).open()
            return open_below(self.root, check_name(name))
        except FileNotFoundError:
            raise Malformed("the file is missing", where=name) from None
        except OSError as error:
            raise Malformed(f"cannot open it: {error.strerror}", where=name) from error


def changed(name: str) -> Damaged:
    """The refusal of a file that is no longer what was checked."""
    return Damaged(
        "the file changed while it was being checked",
        where=name,
        do="Verify the folder again when nothing writes to it",
    )
