"""The Python source of this machine as corpora: real data that every installation has.

One corpus per installed distribution and one for the standard library, a record per ``.py``
file. The licence is what the distribution's own metadata states and nothing else:

1. ``License-Expression`` (PEP 639), an SPDX expression.
2. Otherwise the ``License`` field and the trove classifiers, read through the table in
   ``sources/trove_classifiers.py``. Every name found has to be understood, and together they have
   to leave exactly one licence.
3. Otherwise ``NOASSERTION``, with the reason in words.

Code of other projects inside a distribution (``pip/_vendor/certifi``) is not under the
distribution's licence. It goes to a corpus of its own, ``<distribution>.vendored``, as
``NOASSERTION``. It is recognised by a folder's customary name, or by a licence file or a
``.dist-info`` of its own below the top-level package.

Invariants: the result is a function of the installed files. Names are normalised (PEP 503). A file
that several distributions list belongs to the first by name. Empty files are not records.
"""

from __future__ import annotations

import csv
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageMetadata, distributions
from pathlib import Path, PurePosixPath

from govray.data.corpus import read_file
from govray.data.sources import trove_classifiers
from govray.errors import Malformed
from govray.governance.trust import license as spdx

NOASSERTION = "NOASSERTION"
STANDARD_LIBRARY = "python-stdlib"

_VENDORED_FOLDER = re.compile(
    r"_?(vendor|vendors|vendored|vendored_\w+|extern|externs|externals|bundled"
    r"|third[_-]?party(_files)?)",
    re.IGNORECASE,
)
_LICENCE_FILE = re.compile(r"(licen[cs]e|copying|unlicense)([._-].*)?", re.IGNORECASE)

# Folders of the standard library that many installations leave out, or that belong to others.
_STDLIB_EXCLUDED = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "_bundled"}
)


@dataclass(frozen=True)
class SourceCorpus:
    """The source files of one distribution (or of what it vendors), ready to be built.

    ``license`` is an SPDX expression, ``reason`` says in words where it comes from, for reports.
    ``files`` are (record name, path), sorted by name.
    """

    corpus: str
    license: str
    reason: str
    files: tuple[tuple[str, Path], ...]

    def records(self) -> Iterator[tuple[str, bytes]]:
        """(record name, content), in order. Raises ``UsageError`` naming an unreadable file."""
        for name, path in self.files:
            yield name, read_file(path)


def python_source(paths: Sequence[Path] | None = None) -> tuple[SourceCorpus, ...]:
    """The standard library and the installed distributions, sorted by corpus name.

    Distributions without a ``.py`` file of their own (editable installations, wrappers of
    binaries) are left out.

    Args:
        paths: Folders that distributions are installed in; this environment's by default.
    """
    if paths is None:
        paths = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    # The first folder wins, as on sys.path.
    found: dict[str, Distribution] = {}
    for distribution in distributions(path=list(dict.fromkeys(map(str, paths)))):
        if name := distribution.metadata["Name"]:
            found.setdefault(_normalise(name), distribution)
    taken: set[str] = set()
    corpora = [standard_library()]
    for name in sorted(found.keys() - {STANDARD_LIBRARY}):
        corpora += _distribution(name, found[name], taken)
    return tuple(sorted(corpora, key=lambda c: c.corpus))


def standard_library() -> SourceCorpus:
    """The standard library of the running Python, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    files: list[tuple[str, str]] = []
    for parent, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in _STDLIB_EXCLUDED]
        # _sysconfigdata describes one machine's build.
        paths = (Path(parent, n) for n in names if not n.startswith("_sysconfigdata"))
        files += [(p.relative_to(root).as_posix(), str(p)) for p in paths if p.suffix == ".py"]
    return SourceCorpus(STANDARD_LIBRARY, "PSF-2.0", "Python's own licence", _present(files))


def classify(distribution: Distribution) -> tuple[str, str]:
    """The distribution's licence as (SPDX expression, reason), ``NOASSERTION`` if it is unclear."""
    metadata = distribution.metadata
    if expression := _field(metadata, "License-Expression"):
        try:
            return spdx.normalise(expression), "License-Expression"
        except Malformed:
            return NOASSERTION, f"{_quote(expression)} is no SPDX expression"
    names = [c for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    names = [c for c in names if c not in trove_classifiers.NEUTRAL]
    text = _field(metadata, "License")
    # A field of several lines holds a licence's text, which is not read.
    if text and "\n" not in text and text.upper() != "UNKNOWN":
        names.append(text)
    if not names:
        return NOASSERTION, "the metadata names no licence"
    meanings = {name: trove_classifiers.meanings(name) for name in names}
    said = dict.fromkeys(map(_quote, names))  # a name in both places is said once
    for name, meaning in meanings.items():
        if not meaning:
            return NOASSERTION, f"{_quote(name)} is no SPDX licence"
    left = set.intersection(*map(set, meanings.values()))
    if len(left) == 1:
        return left.pop(), " and ".join(said)
    if left:
        return NOASSERTION, f"{_quote(names[0])} is no SPDX licence"
    return NOASSERTION, "unclear how it combines " + " and ".join(said)


def _field(metadata: PackageMetadata, name: str) -> str:
    values: list[str] = metadata.get_all(name) or [""]
    return values[0].strip()


def _quote(name: str) -> str:
    short = trove_classifiers.short(name)
    return f'"{short if len(short) <= 60 else short[:59] + "…"}"'


def _distribution(name: str, distribution: Distribution, taken: set[str]) -> Iterator[SourceCorpus]:
    """The distribution's own corpus and the vendored one, each only if it has records."""
    listed = _listed(distribution)
    borrowed = _vendored_folders(listed)
    own: list[tuple[str, str]] = []
    vendored: list[tuple[str, str]] = []
    top = str(distribution.locate_file(""))
    for file in listed:
        folder, _, last = file.rpartition("/")
        # "../../bin/tool" is a script that the installer wrote.
        if not last[1:].endswith(".py") or file.startswith("/") or ".." in folder.split("/"):
            continue
        path = os.path.join(top, file)
        if path in taken:
            continue
        taken.add(path)
        (own if borrowed.isdisjoint(_folders(file)) else vendored).append((file, path))
    license, reason = classify(distribution)
    if files := _present(own):
        yield SourceCorpus(name, license, reason, files)
    if files := _present(vendored):
        # The deepest folder says most about whose code it is.
        example = max((PurePosixPath(f).parent for f, _ in files), key=lambda f: len(f.parts))
        reason = f"{name} is {license}, {example} is code of others"
        yield SourceCorpus(f"{name}.vendored", NOASSERTION, reason, files)


def _listed(distribution: Distribution) -> list[str]:
    """The paths of its files. ``distribution.files`` makes an object of each, which takes ten times
    as long; it reads also what has no RECORD."""
    if record := distribution.read_text("RECORD"):
        return [row[0] for row in csv.reader(record.splitlines()) if row]
    return [str(file) for file in distribution.files or ()]


def _vendored_folders(listed: Sequence[str]) -> frozenset[str]:
    """The folders of a distribution that hold code of others."""
    found: set[str] = set()
    # A hundred files of a folder say the same of it: it is looked at once.
    inside_metadata: dict[str, bool] = {}
    for file in listed:
        folder, _, last = file.rpartition("/")
        if folder not in inside_metadata:
            folders = _folders(file)
            found.update(f for f in folders if _VENDORED_FOLDER.fullmatch(f.rpartition("/")[2]))
            metadata = [f for f in folders if f.endswith((".dist-info", ".egg-info"))]
            # Its own lies at the top; one further down came with copied code.
            found.update(above for f in metadata if (above := f.rpartition("/")[0]))
            inside_metadata[folder] = bool(metadata)
        deep = "/" in folder.lstrip("/")
        if deep and not inside_metadata[folder] and _LICENCE_FILE.fullmatch(last):
            found.add(folder)
    return frozenset(found)


def _folders(file: str) -> list[str]:
    """The folders that a file lies in, the innermost first."""
    found = []
    while file := file.rpartition("/")[0]:
        found.append(file)
    return found


def _present(files: Iterable[tuple[str, str]]) -> tuple[tuple[str, Path], ...]:
    """The files that exist and are not empty, sorted by name."""
    return tuple((n, Path(p)) for n, p in sorted(files) if os.path.isfile(p) and os.stat(p).st_size)


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
