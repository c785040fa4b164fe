"""The files of attested models and of checkpoints that leave over HTTP, and who gets which.

* A file has to be named, with its digest, by the attestation or by the checkpoint's manifest. No
  other name is looked for on storage.
* An adapter's files are for those to whom the operator's rights give the adapter; nobody has a
  right by default. A checkpoint may have an adapter that a caller has no right to. Of such a one
  only weights of the base model and files without tensors go out: the optimizer's state holds the
  adapter's too.
* Code that trains writes into a run's folder. So no part of a path below the storage is a link. A
  checkpoint counts only where the run's own folder or URL has it.
* Nothing is parsed but the attestation and the manifest, within their bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import read
from govray.platform.service.http.problems import Problem, refused
from govray.platform.store import tables
from govray.storage.bucket import StoreFailed
from govray.storage.place import Place, place
from govray.storage.ranged_file import RangedFile, open_ranged
from govray.train.checkpoint.commit_reader import MANIFEST, parse_manifest
from govray.train.checkpoint.pins import folder_name
from govray.train.checkpoint.storage import FILE, storage_of

_OF_ADAPTER = re.compile(rf"(?:^|/){model_folder.ADAPTERS}/([^/]+)/")

Allowed = frozenset[str] | None
"""The adapters that a caller may have; None: all."""


@dataclass(frozen=True)
class GivenFile:
    """``digest``: ``sha256:`` and 64 hex digits. ``size``: as the manifest has it, or None."""

    name: str
    digest: str
    size: int | None = None


@dataclass(frozen=True)
class GivenFiles:
    """The files of one model or checkpoint that a caller may have.

    Attributes:
        root: A place that no job can exchange; names have ``below`` before them there.
        whole: Whether these are all.
    """

    root: Place
    below: str
    files: Mapping[str, GivenFile]
    whole: bool

    def open(self, file: GivenFile) -> RangedFile:
        """Raises 409: it is out of reach, or has another size than the manifest says."""
        with reaching():
            opened = open_ranged(self.root, f"{self.below}{file.name}")
        if file.size is not None and opened.size != file.size:
            opened.close()
            raise refused("The file has another size than its manifest says", "Take another one")
        return opened

    def place(self, file: GivenFile) -> Place:
        return self.root / f"{self.below}{file.name}"

    def sized(self) -> list[GivenFile]:
        """All of them with their sizes, by name. Raises as `open`."""
        found = []
        for _, each in sorted(self.files.items()):
            if each.size is None:
                opened = self.open(each)
                opened.close()
                each = replace(each, size=opened.size)
            found.append(each)
        return found


def model_files(
    row: tables.AttestationRow, allowed: Allowed, *, only: str | None = None
) -> GivenFiles:
    """What the attestation ``row`` is about, where it was indexed.

    Args:
        only: The one name that is wanted. The manifest, which may be large, is read for that alone.

    Raises:
        Problem: 409, the folder is out of reach, or holds another attestation.
    """
    if row.folder is None:
        raise out_of_reach()
    folder = place(row.folder)
    # It was followed to its end when it was indexed: a link in it came later.
    root, below = folder, ""
    if isinstance(folder, Path):
        root, below = Path(folder.anchor), f"{folder.relative_to(folder.anchor).as_posix()}/"
    sealed = read(Attestation, Envelope.parse(row.envelope))
    digests = {each.name: each.sha256 for each in sealed.subjects}
    digests |= sealed.document.files
    # More signatures may have come to these two: their statements are what is pinned.
    signed = {model_folder.ATTESTATION: row.digest}
    if sealed.document.manifest_pinned_by_payload and only in (None, model_folder.MANIFEST):
        signed[model_folder.MANIFEST] = sealed.document.manifest
    for name, statement in signed.items():
        with reaching():
            data = _read(root, f"{below}{name}", model_folder.MAX_ENVELOPE)
        if canonical_json.sha256(Envelope.parse(data).payload) != statement:
            raise refused(
                "The folder holds another attestation than the one that is asked for",
                "An adapter was removed, or the model was replaced. Register the folder as a new "
                "version",
            )
        digests[name] = canonical_json.sha256(data)
    files = {name: GivenFile(model_folder.check_name(name), each) for name, each in digests.items()}
    given = {name: each for name, each in files.items() if _adapter_allowed(name, allowed)}
    return GivenFiles(root, below, given, len(given) == len(files))


def checkpoint_files(storage: str, folder: str, step: int, allowed: Allowed) -> GivenFiles | None:
    """The commit whose next step is ``step``, with its manifest; None without one.

    Args:
        storage: Where runs lie, and the run's ``folder`` below.

    Raises:
        Problem: 409, it is out of reach, or not what its manifest says.
    """
    with reaching():
        root = place(storage)
        run = root / folder
        # What the file names is the job's choice, and may be another project's.
        if (run / FILE).exists():
            raise refused(
                "The run commits to a place of its own, which the service does not read",
                "Copy the checkpoint there: govray checkpoint copy",
            )
        if isinstance(root, Path):
            root, below = root.resolve(), f"{folder}/{folder_name(step)}/"
        else:
            found = dict(storage_of(run).commits()).get(step)
            if found is None or isinstance(found, Path):
                return None
            root, below = found.path, ""
        try:
            data = _read(root, f"{below}{MANIFEST}", canonical_json.MAX_BYTES)
        except FileNotFoundError:
            return None
    entries = parse_manifest(data, "checkpoint")
    files = {name: GivenFile(name, each.digest, each.size) for name, each in entries.items()}
    files[MANIFEST] = GivenFile(MANIFEST, canonical_json.sha256(data), len(data))
    alone = all(_adapter_allowed(name, allowed) for name in files)
    given = {name: each for name, each in files.items() if alone or _of_base(name, allowed)}
    return GivenFiles(root, below, given, len(given) == len(files))


def _adapter_allowed(name: str, allowed: Allowed) -> bool:
    found = _OF_ADAPTER.search(name)
    return found is None or allowed is None or found[1] in allowed


def _of_base(name: str, allowed: Allowed) -> bool:
    """Of a commit with an adapter that the caller may not have."""
    last = name.rpartition("/")[2]
    if _OF_ADAPTER.search(name):
        return _adapter_allowed(name, allowed)
    return last == model_folder.WEIGHTS or not last.endswith(".safetensors")


def _read(root: Place, name: str, limit: int) -> bytes:
    opened = open_ranged(root, name)
    try:
        if opened.size > limit:
            raise refused(f"It has more than {limit} bytes")
        return opened.read(0, opened.size) if opened.size else b""
    finally:
        opened.close()


@contextmanager
def reaching() -> Iterator[None]:
    """What the storage refuses is told without its place. Raises 409, or 503: it fails."""
    try:
        yield
    except StoreFailed:
        raise Problem(
            503,
            "The storage is not available",
            "The storage did not answer",
            "Try again in some seconds",
            headers={"Retry-After": "5"},
        ) from None
    except (OSError, ValueError):
        raise out_of_reach() from None


def out_of_reach() -> Problem:
    return refused(
        "The files are out of this service's reach",
        "Ask who runs it whether they lie where they were indexed",
    )
