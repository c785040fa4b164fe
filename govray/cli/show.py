"""``govray show``: what an envelope says and which keys it names. It verifies nothing.

Reads any envelope, a ``.jsonl`` file of envelopes, or a model folder. Of a model folder it shows
the attestation in full and the other documents by digest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from govray.cli import user_files
from govray.cli.output import field, line, report
from govray.errors import Malformed, UsageError
from govray.printable import json_text

if TYPE_CHECKING:
    from govray.governance.formats.dsse import Envelope

NOT_VERIFIED = (
    "Shown, not verified: no signature, scope or expiry was checked. govray verify does that."
)


def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="An envelope, or a model folder.")],
) -> None:
    """Show any signed document, without verifying it.

    Its type, digests, the keys it names, its subjects and its content.
    """
    shown = _folder(path) if path.is_dir() else _file(path)
    report({"verified": False, "documents": [each.to_json() for each in shown]})
    for each in shown:
        each.print()
        line()
    line(NOT_VERIFIED, style="bold")


@dataclass(frozen=True)
class Shown:
    """One envelope, opened. ``brief`` leaves the predicate out of the text."""

    file: str
    payload_type: str
    digest: str
    keyids: tuple[str, ...]
    statement: dict[str, Any]
    brief: bool = False

    @property
    def kind(self) -> str:
        return str(self.statement.get("predicateType", self.payload_type))

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """(name, algorithm:digest) of each subject, as far as the payload states them so."""
        found = []
        for subject in _list(self.statement.get("subject")):
            if isinstance(subject, dict) and isinstance(subject.get("digest"), dict):
                digests = " ".join(f"{a}:{d}" for a, d in subject["digest"].items())
                found.append((str(subject.get("name")), digests))
        return found

    @property
    def submitted(self) -> str | None:
        """The submitter of the run that an attestation is about, as far as it states that."""
        predicate = self.statement.get("predicate")
        stated = predicate.get("execution") if isinstance(predicate, dict) else None
        if not isinstance(stated, dict) or "user" not in stated:
            return None
        return f"submitted by {stated.get('user')}, project {stated.get('project')}"

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "payloadType": self.payload_type,
            "digest": self.digest,
            "keyids": list(self.keyids),
            "statement": self.statement,
        }

    def print(self) -> None:
        line(self.kind, style="bold")
        field("file", self.file)
        field("digest", self.digest)
        for keyid in self.keyids:
            field("key named", keyid)
        for name, digest in self.subjects:
            field("subject", f"{name}  {digest}")
        if told := self.submitted:
            field("who", f"{told}, as the document states")
        if not self.brief:
            content = self.statement.get("predicate", self.statement)
            for each in json_text(content, indent=2).split("\n"):
                line(each)


def _file(path: Path) -> list[Shown]:
    data = user_files.read_signed(path)
    if path.suffix == ".jsonl":
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        return [_open(each, f"{path}:{n}") for n, each in enumerate(lines, start=1)]
    return [_open(data, str(path))]


def _folder(path: Path) -> list[Shown]:
    from govray.governance.attestation import model_folder

    attestation = path / model_folder.ATTESTATION
    if not attestation.is_file():
        raise UsageError(
            f"no {model_folder.ATTESTATION} in it",
            where=str(path),
            do=f"{model_folder.what_to_give(path)} Or name an envelope.",
        )
    shown = _file(attestation)
    for name in (
        model_folder.POLICY,
        model_folder.MANIFEST,
        model_folder.CREDENTIALS,
        model_folder.DELEGATIONS,
    ):
        if (path / name).is_file():
            shown += [replace(each, brief=True) for each in _file(path / name)]
    return shown


def _open(data: bytes, where: str) -> Shown:
    from govray.governance.formats import canonical_json
    from govray.governance.formats.dsse import Envelope

    envelope: Envelope = Envelope.parse(data, where=where)
    statement = canonical_json.parse(envelope.payload, where=where)
    if not isinstance(statement, dict):
        raise Malformed("the payload is no JSON object", where=where)
    return Shown(
        where,
        envelope.payload_type,
        canonical_json.sha256(envelope.payload),
        tuple(each.keyid or "(unnamed)" for each in envelope.signatures),
        statement,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
