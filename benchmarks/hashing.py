"""What digests and signatures cost on one file, and what ``sha256sum`` costs on it.

All of them read the same bytes: a corpus part as `corpus.build` wrote it. Where records are hashed
one by one, they read equally many bytes of records.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.one_corpus import OneCorpus, records
from govray.data.corpus import build, part_files, verify_corpus
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import sign_payload


@dataclass(frozen=True)
class Hashed:
    """The file, and what is needed to sign it.

    Attributes:
        deployment: Its only corpus has one part, the file.
        size: Bytes of the corpus's content.
    """

    deployment: OneCorpus
    size: int

    @property
    def file(self) -> Path:
        """The corpus's first part."""
        return part_files(self.deployment.built.folder)[0]


def sha256sum(hashed: Hashed) -> None:
    """Coreutils, in a process of its own."""
    command = ["sha256sum", str(hashed.file)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603


def file_digest(hashed: Hashed) -> None:
    """`canonical_json.sha256` of the file."""
    canonical_json.sha256(hashed.file.read_bytes())


def admission_check(hashed: Hashed) -> None:
    """Every record's hash and the Merkle root, compared with the credential's."""
    built = hashed.deployment.built
    verify_corpus(built.folder, built.records)


def corpus_build(hashed: Hashed) -> None:
    """The same content as a new corpus: hashed and written."""
    folder = Path(tempfile.mkdtemp(dir=hashed.deployment.corpora.parent))
    try:
        build(folder, "again", _content(hashed.size))
    finally:
        shutil.rmtree(folder)


def dsse_sign(hashed: Hashed) -> None:
    """A DSSE envelope over the file, with one Ed25519 signature."""
    sign_payload(hashed.file.read_bytes(), [hashed.deployment.signer])


HASHERS: Mapping[str, Callable[[Hashed], None]] = {
    "sha256sum": sha256sum,
    "file_digest": file_digest,
    "admission_check": admission_check,
    "corpus_build": corpus_build,
    "dsse_sign": dsse_sign,
}

_made: dict[int, list[tuple[str, bytes]]] = {}


def _content(size: int) -> list[tuple[str, bytes]]:
    """The records, made once: generating them is not part of a build."""
    return _made.setdefault(size, list(records(size)))
