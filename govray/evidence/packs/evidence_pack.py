"""An evidence pack: what a model's verification rests on, and what verifies it, in one archive.

::

    README.html                 what this is, for people
    verify_evidence.py          verifies the pack with Python and `cryptography` alone
    contents.json               every other file with its SHA-256; what the pack is of; as of when
    model/governance/…          the signed documents, the ledger and its checkpoint
    model/govray.json …         and with ``weights`` all attested files of the model
    trust/root.json             the trust root that the maker verified with
    trust/revocations/…         revocation lists that the maker had
    verifier/govray-….whl       the verifier, and requirements.txt: what it needs, with hashes

The model is verified before anything is written. The same input gives the same bytes. A pack is not
signed: what is in it is, and `contents.json` only keeps it together. Its reader takes the
trust root, or its digest, from its owner.

A pack has no secrets: no key, no corpus, no record. It has names of corpora.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from html import escape
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, TypeAlias
from zipfile import ZIP_STORED, ZipFile

from govray.errors import CouldNotCheck, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import VerifiedModel, verify
from govray.storage.place import Place
from govray.storage.zip_entry import zip_entry

FORMAT = "govray.dev/evidence-pack/v1"
SCRIPT = "verify_evidence.py"
LONGEST_CASE = 200

_MODEL, _LISTS = "model/", "trust/revocations/"


def write_pack(
    model: Place,
    out: Path,
    *,
    trust: TrustAnchor,
    at: datetime,
    case: str | None = None,
    weights: bool = False,
    allow_uncovered: Sequence[str] = (),
) -> tuple[VerifiedModel, dict[str, str]]:
    """Verify a model as of a time, and write its pack to ``out``, whole or not at all.

    Args:
        trust: The root and the lists; they go into the pack.
        at: Goes into the pack too. Packs of one model as of one time are equal.

    Returns:
        The verified model, and name → digest of every file in the pack but ``contents.json``.

    Raises:
        VerificationFailed, CouldNotCheck: As `verify`. Nothing is written.
    """
    if case is not None and not 0 < len(case) <= LONGEST_CASE:
        raise UsageError(f"a case has 1 to {LONGEST_CASE} characters", where="--for")
    if os.path.lexists(out):
        raise _taken(out)
    verified = verify(model, trust_root=trust, at=at, allow_uncovered=allow_uncovered)
    names = _model_files(verified, weights=weights)
    made = _trust_files(trust, verified)
    wheel_name, wheel = verifier_wheel()
    made |= {
        f"verifier/{wheel_name}": wheel,
        "verifier/requirements.txt": requirements(),
        SCRIPT: (files("govray.evidence.packs") / SCRIPT).read_bytes(),
        "README.html": page(verified, at=at, case=case, wheel=wheel_name, files=made).encode(),
    }
    digests = names | {name: canonical_json.sha256(data) for name, data in made.items()}
    made["contents.json"] = canonical_json.encode(
        {
            "format": FORMAT,
            "attestation": verified.digest,
            "run": verified.attestation.run.id,
            "at": format_time(at),
            "files": digests,
            **({"case": case} if case is not None else {}),
        }
    )
    of_model = {name: partial(_opened, verified.path, name) for name in names}
    staged = out.with_name(f".{out.name[:48]}.{os.urandom(8).hex()}.tmp")
    try:
        with staged.open("xb") as stream:
            write_zip(stream, {**made, **of_model})
            stream.flush()
            os.fsync(stream.fileno())
        os.link(staged, out)  # unlike a rename, never in the place of another
    except FileExistsError:
        raise _taken(out) from None
    except OSError as error:
        if error.filename not in (str(staged), None):  # a file of the model
            raise
        raise UsageError(
            f"cannot be written: {error.strerror}",
            where=str(out),
            do="Check the space and the permissions there",
        ) from None
    finally:
        staged.unlink(missing_ok=True)
    return verified, digests


def _taken(out: Path) -> UsageError:
    return UsageError("the file is there already", where=str(out), do="Name a new one")


def _model_files(verified: VerifiedModel, *, weights: bool) -> dict[str, str]:
    """Name in the pack → digest, of the governance files and the attested files that go in."""
    folder = model_folder.Bundle(verified.path)
    subjects = [each.name for each in verified.subjects]
    chosen = {each for each in subjects if weights or not each.endswith(".safetensors")}
    chosen |= {each for each in folder.names() if each.startswith(f"{model_folder.GOVERNANCE}/")}
    digests = {name: f"sha256:{folder.sha256(name)}" for name in sorted(chosen)}
    _check_unchanged(verified, digests)
    return {f"{_MODEL}{name}": digest for name, digest in digests.items()}


def _opened(folder: Place, name: str) -> BinaryIO:
    stream: BinaryIO = (folder / name.removeprefix(_MODEL)).open("rb")
    return stream


def _trust_files(trust: TrustAnchor, verified: VerifiedModel) -> dict[str, bytes]:
    """The root, and each list that counted, named by its digest: none that was passed over."""
    counted = {each.digest for each in verified.revocations.lists} if verified.revocations else ()
    lists = {
        each
        for each in (*trust.revocations, *trust.pinned, *trust.feed)
        if canonical_json.sha256(Envelope.parse(each).payload) in counted
    }
    named = {hashlib.sha256(each).hexdigest()[:16]: each for each in lists}
    found = {f"{_LISTS}{name}.dsse.json": each for name, each in named.items()}
    return found | {"trust/root.json": trust.root}


def _check_unchanged(verified: VerifiedModel, digests: dict[str, str]) -> None:
    expected = {each.name: each.sha256 for each in verified.subjects}
    expected |= verified.attestation.files
    for name, digest in expected.items():
        if name == model_folder.MANIFEST and verified.attestation.manifest_pinned_by_payload:
            continue
        if digests.get(name, digest) != digest:
            raise Refused("the file changed while it was read", where=name, do="Run it again")


def page(
    verified: VerifiedModel, *, at: datetime, case: str | None, wheel: str, files: Iterable[str]
) -> str:
    """What the pack is, for who opens it: HTML without scripts."""
    attestation, trust = verified.attestation, verified.trust_root
    rows = {
        "Run": attestation.run.id,
        "Attestation": verified.digest,
        "Signed by": verified.signer,
        "Run ended": attestation.run.finished,
        "Depth policy": f"{attestation.policy.name} version {attestation.policy.version}",
        "Trust root": f"{trust.root.name} version {trust.root.version}, {trust.digest}",
        "Verified as of": format_time(at),
        **({"For": case} if case else {}),
    }
    table = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>\n'
        for name, value in rows.items()
    )
    return _PAGE.format(
        table=table,
        disclaimer=escape(attestation.disclaimer),
        wheel=escape(wheel),
        digest=escape(trust.digest),
        at=format_time(at),
        lists=f" --revocations {_LISTS}" if any(each.startswith(_LISTS) for each in files) else "",
    )


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evidence about a trained model</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 1rem }}
th {{ text-align: left; vertical-align: top; padding-right: 1.5rem; white-space: nowrap }}
td {{ overflow-wrap: anywhere }}
pre {{ overflow-x: auto; background: #f3f3f3; padding: .75rem }}
</style>
</head>
<body>
<h1>Evidence about a trained model</h1>
<table>
{table}</table>
<h2>Verify it</h2>
<p>This needs Python 3.11 or later with the package cryptography, and no network. Ask the owner of
the trust root for the root, or for its digest. The one in this pack proves nothing about itself,
and neither do its script and its wheel. Take them from the source of govray, or read them first.
</p>
<pre>python verify_evidence.py . --trust-root ROOT.json</pre>
<p>With the digest alone:</p>
<pre>python verify_evidence.py . --root-digest {digest}</pre>
<p>Each of ten steps says what it found. Behind them stands what was not checked: the script then
ends with 3, or with 0 if you say --partial and nothing was missing. It is short, so that you can
read it, or have somebody write another one. Its first lines name the standards.</p>
<h2>Verify all of it</h2>
<p>The wheel of the whole verifier lies here, and
<code>verifier/requirements.txt</code> has what it needs, with versions and hashes:</p>
<pre>pip install --require-hashes -r verifier/requirements.txt
pip install --no-deps verifier/{wheel}
govray verify model --trust-root ROOT.json --at {at}{lists}</pre>
<p>That needs the model's own files too. Where they are not in this pack, put them into
<code>model/</code>: the attestation has their digests. Without <code>--at</code> it is judged as of
today, when keys have expired.</p>
<h2>What it shows</h2>
<p>{disclaimer}</p>
</body>
</html>
"""


_LEFT_OUT = frozenset({"__pycache__", "deployment"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_WHEEL = b"""\
Wheel-Version: 1.0
Generator: govray model evidence
Root-Is-Purelib: true
Tag: py3-none-any
"""


def verifier_wheel() -> tuple[str, bytes]:
    """Name and bytes of this govray's wheel, the same for the same files.

    A pack may be read when no index has this version any more, so it brings the verifier.
    Raises `CouldNotCheck`: govray runs without its metadata.

    Source: the binary distribution format, packaging.python.org.
    """
    version, about = _metadata()
    inside = f"govray-{version}.dist-info"
    found: Files = {f"govray/{name}": data for name, data in _package(files("govray"))}
    found[f"{inside}/METADATA"] = about.encode()
    found[f"{inside}/WHEEL"] = _WHEEL
    found[f"{inside}/entry_points.txt"] = b"[console_scripts]\ngovray = govray.cli:main\n"
    found[f"{inside}/RECORD"] = _record(found, f"{inside}/RECORD")
    return f"govray-{version}-py3-none-any.whl", zipped(found)


def requirements() -> bytes:
    """What the verifier needs, as pip reads it: each package with its version and its hashes, as
    ``deploy/constraints.txt`` has them. What is not there, Linux does not need.

    Raises `CouldNotCheck`: this installation has not that file.
    """
    known = _constraints()
    needed: set[str] = set()
    waiting = ["govray"]
    while waiting:
        with suppress(metadata.PackageNotFoundError):  # needed by another Python than this one
            for each in metadata.distribution(waiting.pop()).requires or []:
                found = _NAME.match(each)
                name = re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
                if "extra ==" not in each and name in known and name not in needed:
                    needed.add(name)
                    waiting.append(name)
    return "".join(known[name] for name in sorted(needed)).encode()


def _constraints() -> dict[str, str]:
    """Package → its lines in ``deploy/constraints.txt``: version and hashes."""
    for above in (files("govray") / "deployment", files("govray") / ".."):
        path = above / "deploy" / "constraints.txt"
        if path.is_file():
            blocks = re.split(r"^(?=\w)", path.read_text(encoding="utf-8"), flags=re.M)
            return {each.partition("==")[0]: each for each in blocks if each}
    raise CouldNotCheck(
        "this installation carries no deploy/constraints.txt, which says what a verifier needs",
        where="govray",
        do="Make the pack with govray installed from its source tree or a release's wheel",
    )


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


Content: TypeAlias = bytes | Callable[[], BinaryIO]
"""The bytes of a file, or what opens it where it may be larger than memory."""

Files: TypeAlias = dict[str, Content]


def write_zip(out: IO[bytes], files: Mapping[str, Content]) -> None:
    """Sorted and stored: compressors of other versions write other bytes."""
    with ZipFile(out, "w", ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            with archive.open(zip_entry(name), "w", force_zip64=True) as entry:
                if isinstance(content, bytes):
                    entry.write(content)
                else:
                    with content() as stream:
                        shutil.copyfileobj(stream, entry, 1 << 20)


def zipped(files: Mapping[str, Content]) -> bytes:
    """The same in memory."""
    out = BytesIO()
    write_zip(out, files)
    return out.getvalue()
