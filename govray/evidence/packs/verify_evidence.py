"""Verify an evidence pack: Python's standard library and `cryptography`, and nothing of govray.

    python verify_evidence.py PACK.zip --trust-root ROOT.json [--model MODEL] [--at TIME]
    python verify_evidence.py PACK.zip --root-digest sha256:…

PACK is the archive, or the folder that it was unpacked to. The trust root comes from its owner. If
only its digest is known, the root in the pack is used, once it has that digest. With neither the
pack is checked all the same, and the verdict is that whose root it is was not checked.

Exit code 0: everything that this script checks holds. 1: something does not. 2: it was used
wrongly. 3: nothing fails, and something could not be checked.

Numbered steps follow, in the order in which they rest on each other. What is left to
``govray verify``, whose wheel lies in the pack, is said behind them.

Sources: DSSE v1 (PAE), in-toto Statement v1, RFC 8785 (canonical JSON), RFC 9162 section 2.1
(Merkle trees), C2SP signed-note and tlog-checkpoint.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import load_der_public_key

CONTENTS = "contents.json"
ROOT = "trust/root.json"
LISTS = "trust/revocations/"
MODEL = "model/"
G = "governance/"
REQUIRED = (
    *("policy.dsse.json", "manifest.dsse.json", "credentials.jsonl"),
    *("ledger.jsonl", "ledger.checkpoint"),
)
OPTIONAL = ("delegations.jsonl", "gates.jsonl", "replays.jsonl")
"""Governance files that the attestation pins, and those that it may pin."""
IN_TOTO = "application/vnd.in-toto+json"
KINDS = "https://govray.dev/"
SENSITIVITIES = ("public", "internal", "confidential", "restricted")
MOST_FILES = 100_000
MOST_BYTES = 1 << 40
MOST_IN_MEMORY = 1 << 30
MOST_JSON = 64 << 20  # bytes of one document
MOST_VALUES = 1 << 22  # of one document: a value takes 60 bytes and more, its text as few as two
REVOKED_BY = {
    "credential": "credential",
    "corpus": "credential",
    "policy": "policy",
    "attestation": "operator",
}
"""What an entry of a revocation list names → the role of its issuer. A delegation: any."""
ISOLATIONS = ("machine", "sharedCluster", "project", "run")
OF_A_STEP = ("gradientNorms", "entropyProfile")
"""Kinds of leaf that stand behind a step's own, and count no rows."""
TABLES: dict[str, Any] = json.loads(
    r"""
{"names":{"inert":{"folders":[".git", ".cache/huggingface"], "names":[".gitattributes",
".gitignore", ".gitkeep", ".ds_store", "thumbs.db", "copying.lesser"], "suffixes":[".md", ".rst",
".pdf", ".html", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp"], "texts":["readme", "license",
"licence", "notice", "copying", "changelog", "authors", "contributing", "citation", "notes",
"todo"]},
"outsiders":{"patterns":["governance/replay-([A-Za-z0-9][A-Za-z0-9._-]{0,127})\\.dsse\\.json",
"governance/timestamp-([A-Za-z0-9][A-Za-z0-9._-]{0,127})\\.tsr",
"governance/ledger\\.witnessed"]}, "reserved":{"folders":["adapters", "governance", "ema"],
"names":["govray.json", "config.json", "model.safetensors"]},
"tensors":{"suffixes":[".safetensors", ".bin", ".pt", ".pth"]}},
"shapes":{"attestation/provenance-coverage/v1":{"adapters":[{"corpora":[0], "name":0, "rank":0,
"tensors":[0]}], "assuranceLevel":0, "buffers":[0], "corpora":[{"corpus":0, "credential":0,
"credentialClass":{"corpus":0, "jurisdiction":0, "languages":[0], "license":0,
"licenseCategory":0, "modality":[0], "optOut":0, "personalData":0, "sensitivity":0, "source":0,
"use":0}, "fallback":{"profile":0, "route":{"adapter":{"name":0, "rank":0},
"phases":[{"fromStep":0, "weights":[0]}], "weights":[0]}}, "profile":0,
"route":{"adapter":{"name":0, "rank":0}, "phases":[{"fromStep":0, "weights":[0]}], "weights":[0]},
"rules":[0]}], "coverage":[{"corpus":0, "gradientNormShare":0, "group":0, "records":0, "steps":0,
"tokens":0, "weightedTokens":0}], "disclaimer":0, "domains":[[0]], "environment":{"codeDigest":0,
"device":0, "packages":[0], "platform":0, "processor":0, "python":0, "seeds":[0], "settings":[0],
"setup":{"image":0, "pip":0, "uvLock":0}, "source":{"commit":0, "digest":0, "dirty":0,
"module":0}, "threads":0}, "execution":{"attempts":0, "attested":0, "code":{"archive":0,
"origin":0, "setup":{"image":0, "pip":0, "uvLock":0}}, "commit":0, "isolation":0, "policy":0,
"project":0, "registered":0, "submission":0, "submitted":0, "user":0}, "files":[0],
"groups":[{"group":0, "parameters":[0]}], "ledger":{"origin":0, "root":0, "size":0},
"levels":[[0]], "manifest":0, "memorization":{"branches":[0], "decisions":[{"action":0,
"branch":0, "corpus":0, "e":0, "evidence":[0], "fallback":0, "layers":[0], "since":0, "step":0}],
"measured":[0], "measures":[{"corpus":0, "layer":0, "probe":{"entropy":0, "minK":0, "records":0,
"surprise":0}, "reserve":{"entropy":0, "minK":0, "records":0, "surprise":0}, "tested":0,
"top":[0]}], "unmeasurable":[0]}, "phaseExclusions":[[[[0]]]], "plan":{"context":0,
"excluded":[0], "manifest":0, "maxSteps":0, "order":{"block":0, "window":0}, "seed":0,
"streams":[{"corpora":[{"corpus":0, "draws":0, "rows":0}], "epochs":0, "every":0, "id":0,
"phase":0, "profile":0, "quota":0}]}, "policy":{"digest":0, "name":0, "version":0},
"pretrained":[[0]], "quarantine":[{"corpus":0, "reason":0, "records":0, "rule":0}],
"removals":[{"adapter":0, "removed":0}], "replays":[{"corpus":0, "environment":{"codeDigest":0,
"device":0, "packages":[0], "platform":0, "processor":0, "python":0, "seeds":[0], "settings":[0],
"setup":{"image":0, "pip":0, "uvLock":0}, "source":{"commit":0, "digest":0, "dirty":0,
"module":0}, "threads":0}, "files":[0], "outcome":0, "party":0, "plan":0}],
"run":{"ancestry":[{"root":0, "run":0, "size":0, "step":0}], "earlierCode":[{"codeDigest":0,
"source":{"commit":0, "digest":0, "dirty":0, "module":0}, "step":0}], "finished":0, "id":0,
"initialOptimizer":0, "initialWeights":[0], "name":0, "started":0},
"selectionTaint":[{"corpora":[0], "ended":0, "metric":0, "search":0, "statistic":0,
"validation":[0]}], "taint":[{"direct":[0], "group":0, "transitive":[0]}],
"trustRoot":{"digest":0, "name":0, "version":0}, "validation":{"corpora":[0], "goal":0,
"metric":0, "value":0}}, "credential/v1":{"corpus":0, "description":{"collected":{"first":0,
"last":0}, "content":0, "crawlers":[{"behaviour":0, "name":0, "purpose":0}],
"domains":{"sizes":[0], "total":0, "unit":0}, "generators":[0], "hours":0,
"illegalContentMeasures":0, "languages":[0], "modality":[0], "optOut":0,
"optOutCheck":{"agents":[0], "first":0, "last":0, "snapshot":0}, "optOutMeasures":0,
"personalData":0, "source":0, "url":0}, "issued":0, "issuer":0, "jurisdiction":0, "license":0,
"licenseCategory":0, "normalisation":[0], "piiScan":{"analyzer":0, "entities":[0], "score":0},
"records":{"commitment":0, "count":0, "root":0}, "rows":{"classes":0, "kind":0,
"tensors":[{"dtype":0, "name":0, "shape":[0]}]}, "schemaVersion":0, "sensitivity":0, "use":0,
"valid":{"from":0, "until":0}}, "delegation/v1":{"authority":{"expires":0, "keys":[{"algorithm":0,
"spki":0}], "maximumRevocationAgeHours":0, "minimumPolicyVersions":[0], "minimumRevocations":0,
"name":0, "role":0, "scope":[{"corpus":0, "jurisdictions":[0], "licenseCategories":[0],
"maxSensitivity":0}], "threshold":0}, "delegator":0}, "depth-policy/v1":{"groups":[[0]],
"memorization":{"actions":[{"action":0, "fallback":0}], "every":0, "fdr":0, "odds":[0],
"probeRows":0, "rollbacks":0, "rules":[0], "statistic":0, "turns":0}, "name":0, "onExpiry":0,
"profiles":[{"adapter":0, "layers":[0], "phases":[{"fromStep":0, "layers":[0]}], "rank":0}],
"rules":[{"match":{"corpus":[0], "jurisdiction":[0], "languages":[0], "license":[0],
"licenseCategory":[0], "modality":[0], "optOut":[0], "personalData":[0], "sensitivity":[0],
"source":[0], "use":[0]}, "name":0, "profile":0}], "valid":{"from":0, "until":0}, "version":0},
"gate":{"branch":0, "corpus":0, "evidence":0, "fallback":0, "reason":0, "revocations":0,
"since":0, "step":0, "time":0}, "leaf":{"branch":0, "corpora":[{"route":0, "rows":0,
"targets":0}], "kind":0, "measures":[{"corpus":0, "layer":0, "probe":{"entropy":0, "minK":0,
"records":0, "surprise":0}, "reserve":{"entropy":0, "minK":0, "records":0, "surprise":0},
"tested":0, "top":[0]}], "passes":[{"corpora":[0], "rank":0, "stream":0}], "plan":0, "policy":0,
"squaredNorms":[[0]], "statistic":0, "step":0, "streams":[[0]], "worldSize":0},
"prepare-manifest/v2":{"context":0, "corpora":[{"classDigest":0, "commitment":0, "corpus":0,
"credential":0, "parts":[{"file":0, "groupsDigest":0, "records":[0], "recordsDigest":0,
"reserve":{"file":0, "groupsDigest":0, "rows":0, "rowsPerGroup":0, "tokens":0}, "rows":0,
"rowsPerGroup":0, "source":0, "splits":{"empty":0, "reserve":0, "train":0}, "targets":{"digest":0,
"total":0}, "tokens":0}], "planted":{"canaries":{"coin":0, "count":0, "digits":0, "format":0,
"repeats":0, "seed":0}, "file":0, "records":[[0]], "rowGroups":[{"digest":0, "rows":0}]}}],
"families":{"bands":0, "leastShingles":0, "method":0, "seed":0, "similar":0, "text":0,
"values":0}, "quarantine":[{"corpus":0, "reason":0, "records":0, "rule":0}],
"reserve":{"pulse":{"beacon":0, "round":0, "signature":0}, "salt":0, "share":0},
"rows":{"classes":0, "kind":0, "tensors":[{"dtype":0, "name":0, "shape":[0]}]},
"tokenizer":{"digest":0, "name":0, "separator":0, "vocabulary":0}},
"revocations/v1":{"entries":[{"attestation":0, "corpus":0, "credential":0, "delegation":0,
"policy":0, "reason":0, "since":0}], "issued":0, "issuer":0, "sequence":0},
"trust-root/v1":{"authorities":[{"expires":0, "keys":[{"algorithm":0, "spki":0}],
"maximumRevocationAgeHours":0, "minimumPolicyVersions":[0], "minimumRevocations":0, "name":0,
"role":0, "scope":[{"corpus":0, "jurisdictions":[0], "licenseCategories":[0],
"maxSensitivity":0}], "threshold":0}], "beacon":{"delay":0, "genesis":0, "key":{"algorithm":0,
"spki":0}, "name":0, "period":0}, "expires":0, "keys":[{"algorithm":0, "spki":0}], "name":0,
"threshold":0, "timestampAuthorities":[{"certificates":[0], "name":0}], "version":0,
"witnessPolicy":{"threshold":0, "witnesses":[{"key":{"algorithm":0, "spki":0}, "name":0}]}}}}
"""
)
"""Generated: python -m tests.support.pack_tables.

``shapes``: kind of document → its fields; a list of one for members, 0 for what has none.
``names``: what files are called, in small letters. People read what is inert, and no loader does.
Only attested files stand where it is reserved. Outsiders sign files that it does not pin.
"""
SHAPES, NAMES = TABLES["shapes"], TABLES["names"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class DoesNotHold(Exception):
    """Something does not hold."""


def demand(condition: object, what: str) -> None:
    """Fail with ``what`` unless the condition holds."""
    if not condition:
        raise DoesNotHold(what)


def digest_of(data: bytes) -> str:
    """The SHA-256 of bytes, as govray writes it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_stream(stream: IO[bytes]) -> str:
    """The same, of a file that may be larger than memory."""
    found = hashlib.sha256()
    while piece := stream.read(1 << 20):
        found.update(piece)
    return "sha256:" + found.hexdigest()


# Files


def inert(name: str) -> bool:
    """Whether a file of this name is of the few kinds that people read and no loader does."""
    path, rule = PurePosixPath(name.casefold()), NAMES["inert"]
    if any(path.is_relative_to(folder) for folder in rule["folders"]):
        return True
    if path.name in rule["names"] or path.suffix in rule["suffixes"]:
        return True
    text = re.fullmatch(rf"({'|'.join(rule['texts'])})([-_][a-z0-9._-]+)?", path.stem)
    return path.suffix in ("", ".txt") and text is not None


def reserved(name: str) -> bool:
    """Whether a file of this name stands where only attested files may."""
    path, rule = PurePosixPath(name.casefold()), NAMES["reserved"]
    return path.parts[0] in rule["folders"] or str(path) in rule["names"]


def covered(name: str) -> bool:
    """Whether a file of this name makes a claim that an attestation must cover."""
    suffix = PurePosixPath(name.casefold()).suffix
    return reserved(name) or suffix in NAMES["tensors"]["suffixes"]


def by_outsiders(name: str) -> bool:
    """Whether others signed a file of this name about the attestation, which does not pin it."""
    return any(re.fullmatch(each, name) for each in NAMES["outsiders"]["patterns"])


class Pack:
    """The files of a pack, by name: of an archive or of a folder. Links are no files. ``--model``
    names a folder that is read alike."""

    def __init__(self, place: Path, what: str = "the pack") -> None:
        self._archive = None if place.is_dir() else zipfile.ZipFile(place)
        self._folder = place
        if self._archive is None:
            found = [path for path in place.rglob("*") if path.is_symlink() or not path.is_dir()]
            demand(not any(path.is_symlink() for path in found), f"{what} has a link")
            demand(all(path.is_file() for path in found), f"{what} has what is no file")
            self.names = sorted(path.relative_to(place).as_posix() for path in found)
        else:
            self.names = sorted(each.filename for each in self._archive.infolist())
            size = sum(each.file_size for each in self._archive.infolist())
            demand(size <= MOST_BYTES, "the pack is too large")
            kinds = {each.compress_type for each in self._archive.infolist()}
            plain = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
            demand(kinds <= plain, "the pack is compressed otherwise than by deflate")
        demand(len(self.names) <= MOST_FILES, "the pack has too many files")
        demand(len(set(self.names)) == len(self.names), "a name stands twice in the pack")

    def read(self, name: str) -> bytes:
        """The bytes of a file that is held in memory."""
        demand(name in self.names, f"{name} is missing")
        if self._archive is not None:
            size = self._archive.getinfo(name).file_size
        else:
            size = (self._folder / name).stat().st_size
        demand(size <= MOST_IN_MEMORY, f"{name} is too large")
        with self.open(name) as file:
            return file.read(MOST_IN_MEMORY)

    def sha256(self, name: str) -> str:
        """The digest of a file that may be larger than memory."""
        with self.open(name) as file:
            return digest_of_stream(file)

    def open(self, name: str) -> IO[bytes]:
        return self._archive.open(name) if self._archive else (self._folder / name).open("rb")


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a file; none is empty, and the last one is whole."""
    demand(not data or data.endswith(b"\n"), "the last line is cut off")
    lines = data.split(b"\n")[:-1]
    demand(all(lines), "an empty line")
    return lines


def decoded(text: str) -> bytes:
    """The bytes of canonical base64."""
    data = base64.b64decode(text, validate=True)
    demand(base64.b64encode(data).decode() == text, "base64 that is not in its canonical form")
    return data


def parse(data: bytes) -> Any:
    """JSON in its one spelling (RFC 8785): UTF-8, and nothing stands twice or out of order."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    demand(len(data) <= MOST_JSON and values < MOST_VALUES, "a document is too large")
    try:
        value = json.loads(data.decode())
        same = canonical(value).encode() == data
    except (ValueError, RecursionError) as error:
        raise DoesNotHold(f"no JSON in UTF-8: {error}") from None
    demand(same, "JSON that is not in its canonical form")
    return value


def canonical(value: Any) -> str:
    """RFC 8785: names sorted, numbers as ECMAScript writes them."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(name)}:{canonical(each)}" for name, each in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        demand(abs(value) < 1 << 53, "an integer beyond 2^53 - 1")
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False)


def number(value: float) -> str:
    """A number as ECMAScript writes it (Number::toString)."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    demand(isinstance(exponent, int), "a number that is not finite")
    text, minus = "".join(map(str, digits)), "-" * sign
    point = len(text) + int(exponent)  # where it stands in the digits
    if len(text) <= point <= 21:
        return minus + text + "0" * (point - len(text))
    if 0 < point <= 21:
        return f"{minus}{text[:point]}.{text[point:]}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    more = f".{text[1:]}" if text[1:] else ""
    return f"{minus}{text[0]}{more}e{point - 1:+d}"


def closed(value: Any, shape: Any, where: str = "") -> None:
    """Fail at a field that the shape has not."""
    if isinstance(shape, list) and isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            closed(each, shape[0], where)
    elif isinstance(shape, dict) and isinstance(value, dict):
        for name, each in value.items():
            demand(name in shape, f"the unknown field {where}{name}")
            closed(each, shape[name], f"{where}{name}.")
    else:
        demand(not isinstance(value, dict), f"{where} has fields")


# Keys and signatures


class Key:
    """A public key: Ed25519, or ECDSA P-256 with SHA-256. ``id`` is the SHA-256 of its DER."""

    def __init__(self, stated: dict[str, str]) -> None:
        self.der = decoded(stated["spki"])
        self.id = hashlib.sha256(self.der).hexdigest()
        try:
            self._key: Any = load_der_public_key(self.der)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise DoesNotHold(f"a key cannot be read: {error}") from None
        key, self.ed25519 = self._key, stated["algorithm"] == "ed25519"
        p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        demand(
            isinstance(key, ed25519.Ed25519PublicKey)
            if self.ed25519
            else p256 and stated["algorithm"] == "ecdsa-p256",
            "a key is of another algorithm",
        )

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""
        try:
            if self.ed25519:
                self._key.verify(signature, message)
            else:
                self._key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def note_id(self, name: str) -> bytes:
        """The key's id in a signed note."""
        if not self.ed25519:
            return hashlib.sha256(self.der).digest()[:4]
        raw = self._key.public_bytes_raw()
        return hashlib.sha256(name.encode() + b"\n\x01" + raw).digest()[:4]


class Statement:
    """A signed statement. It is opened here, and trusted only where somebody's keys signed it."""

    def __init__(self, data: bytes, kind: str) -> None:
        envelope = parse(data)
        closed(envelope, {"payload": 0, "payloadType": 0, "signatures": [{"keyid": 0, "sig": 0}]})
        demand(envelope["payloadType"] == IN_TOTO, "the payload is no in-toto statement")
        self.payload = decoded(envelope["payload"])
        size = str(len(self.payload)).encode()
        self._message = b"DSSEv1 28 " + IN_TOTO.encode() + b" " + size + b" " + self.payload
        demand(1 <= len(envelope["signatures"]) <= 16, "no signature, or more than 16")
        self.signatures = [decoded(each["sig"]) for each in envelope["signatures"]]
        self.hints = sorted(each.get("keyid", "") for each in envelope["signatures"])
        value = parse(self.payload)
        demand(value["_type"] == "https://in-toto.io/Statement/v1", "no in-toto Statement v1")
        demand(value["predicateType"] == KINDS + kind, f"no {kind}, but {value['predicateType']}")
        subject = [{"name": 0, "digest": {"sha256": 0}}]
        closed(
            value, {"_type": 0, "predicateType": 0, "subject": subject, "predicate": SHAPES[kind]}
        )
        self.document: dict[str, Any] = value["predicate"]
        self.digest = digest_of(self.payload)
        self.subjects = {
            each["name"]: "sha256:" + each["digest"]["sha256"] for each in value["subject"]
        }
        demand(len(self.subjects) == len(value["subject"]), "a subject is named twice")

    def signed_by(self, keys: list[Key]) -> set[str]:
        """The ids of the keys that signed it. The envelope's own hints are not read."""
        return {
            key.id for key in keys if any(key.signed(self._message, s) for s in self.signatures)
        }

    def names_itself(self, name: str) -> bool:
        """Whether its one subject is the document: the SHA-256 of the predicate's own bytes."""
        return self.subjects == {name: digest_of(canonical(self.document).encode())}


# Trust


class Trust:
    """A root at a time, with its authorities and those that they delegate to."""

    def __init__(self, root: Statement, at: str) -> None:
        self.root, self.at = root.document, at
        self.authorities: dict[str, dict[str, Any]] = {}
        demand(root.names_itself(self.root["name"]), "the root's subject is not the root")
        keys = self._keys(self.root)
        demand(
            len(root.signed_by(keys)) >= self.root["threshold"], "too few of its own keys signed"
        )
        demand(at < self.root["expires"], f"it expired at {self.root['expires']}")
        for authority in self.root["authorities"]:
            self._add(authority)

    @staticmethod
    def _keys(holder: dict[str, Any]) -> list[Key]:
        keys = [Key(each) for each in holder["keys"]]
        demand(len({key.id for key in keys}) == len(keys), "a key is named twice")
        demand(1 <= holder["threshold"] <= len(keys), "a threshold that its keys cannot meet")
        return keys

    def _add(self, authority: dict[str, Any]) -> None:
        name = authority["name"]
        demand(name not in self.authorities, f"the name {name!r} is taken")
        self.authorities[name] = {**authority, "loaded": self._keys(authority)}

    def delegate(self, statements: list[Statement]) -> None:
        """Take delegations in, each once its delegator is known. A right only narrows."""
        pending = statements
        while pending:
            ready = [s for s in pending if s.document["delegator"] in self.authorities]
            demand(ready, "the delegator of a delegation is not known")
            pending = [s for s in pending if s not in ready]
            for each in ready:
                parent = self.authorities[each.document["delegator"]]
                child = each.document["authority"]
                demand(each.names_itself(child["name"]), "its subject is not the authority")
                signed = each.signed_by(parent["loaded"])
                demand(len(signed) >= parent["threshold"], "too few keys signed a delegation")
                demand(narrows(child, parent), "a delegation has a right that its delegator lacks")
                self._add(child)

    def signers(self, statement: Statement, role: str, times: list[str]) -> list[dict[str, Any]]:
        """The authorities of a role that signed, and that held at each of the times."""
        found = []
        for authority in self.authorities.values():
            until = min(authority["expires"], self.root["expires"])
            if authority["role"] != role or any(at >= until for at in times):
                continue
            if len(statement.signed_by(authority["loaded"])) >= authority["threshold"]:
                found.append(authority)
        demand(found, f"no {role} authority of the trust root signed it")
        return found


def within(pattern: str, other: str) -> bool:
    """Whether every name that the first pattern covers is covered by the second."""
    return pattern.startswith(other[:-1]) if other.endswith("*") else pattern == other


def spelling(name: str) -> str:
    """What all spellings of a policy's name share."""
    return re.sub(r"[._-]+", "-", name.lower()).removesuffix("-")


def rank(sensitivity: str) -> int:
    """The place of a sensitivity, from public up."""
    return SENSITIVITIES.index(sensitivity)


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether a scope lies within another."""
    return (
        within(inner["corpus"], outer["corpus"])
        and set(inner["licenseCategories"]) <= set(outer["licenseCategories"])
        and (
            "*" in outer["jurisdictions"]
            or set(inner["jurisdictions"]) <= set(outer["jurisdictions"])
        )
        and rank(inner["maxSensitivity"]) <= rank(outer["maxSensitivity"])
    )


def narrows(child: dict[str, Any], parent: dict[str, Any]) -> bool:
    """Whether an authority has no right that its delegator lacks."""
    return (
        child["role"] == parent["role"]
        and child["expires"] <= parent["expires"]
        and all(any(inside(s, w) for w in parent.get("scope", ())) for s in child.get("scope", ()))
    )


def covers(authority: dict[str, Any], stated: dict[str, Any]) -> bool:
    """Whether an authority may speak for a corpus of this class."""
    own = {
        "corpus": stated["corpus"],
        "licenseCategories": [stated["licenseCategory"]],
        "jurisdictions": [stated["jurisdiction"]],
        "maxSensitivity": stated["sensitivity"],
    }
    return any(inside(own, scope) for scope in authority.get("scope", ()))


def may_revoke(issuer: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether an entry of a list names one thing that its issuer could have issued."""
    named = [kind for kind in (*REVOKED_BY, "delegation") if kind in entry]
    if len(named) != 1 or issuer["role"] != REVOKED_BY.get(named[0], issuer["role"]):
        return False
    scopes = issuer.get("scope", ())
    return "corpus" not in entry or any(within(entry["corpus"], s["corpus"]) for s in scopes)


# Routes and the ledger


def groups_by_route(entry: dict[str, Any]) -> dict[str | None, list[str]]:
    """What a ledger's leaf calls a route of a corpus → the groups that it updates. None is the
    corpus's own. Others are those of later phases and its fallback's, by digest."""
    own = {name: value for name, value in entry["route"].items() if name != "phases"}
    others = [{**own, "weights": each["weights"]} for each in entry["route"].get("phases", ())]
    if "fallback" in entry:
        others.append(entry["fallback"]["route"])
    found: dict[str | None, list[str]] = {None: groups_of(own)}
    return found | {digest_of(canonical(each).encode()): groups_of(each) for each in others}


def groups_of(route: dict[str, Any]) -> list[str]:
    """The layer groups that a route updates, its adapter's last."""
    adapter = [f"adapter:{route['adapter']['name']}"] if "adapter" in route else []
    return [*route["weights"], *adapter]


def leaf_hash(leaf: bytes) -> bytes:
    """RFC 9162: 0x00, then the leaf."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def merkle_root(leaves: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.1, with one pending subtree for each bit of the count."""
    pending: list[bytes] = []
    for count, leaf in enumerate(leaves):
        node, bits = leaf_hash(leaf), count
        while bits % 2:
            node = hashlib.sha256(b"\x01" + pending.pop() + node).digest()
            bits //= 2
        pending.append(node)
    if not pending:
        return hashlib.sha256(b"").digest()
    root = pending.pop()
    while pending:
        root = hashlib.sha256(b"\x01" + pending.pop() + root).digest()
    return root


class Checks:
    """The steps, over one pack. Each raises `DoesNotHold`, and returns what it found, in words."""

    def __init__(self, pack: Pack, given: argparse.Namespace) -> None:
        self.pack, self.given = pack, given
        self.open: list[str] = []
        """What could not be checked."""

    def contents(self) -> str:
        """1: the pack has the files that it lists, each with its digest, and no other."""
        self.listed = listed = parse(self.pack.read(CONTENTS))
        demand(listed["format"] == "govray.dev/evidence-pack/v1", "a pack of another format")
        demand(TIME.fullmatch(listed["at"]), "no time in the contents")
        files: dict[str, str] = listed["files"]
        there = set(self.pack.names) - {CONTENTS}
        added = {name for name in there - files.keys() if name.startswith(MODEL)}
        for name in sorted((there ^ files.keys()) - added):  # step 4 compares what was put in
            raise DoesNotHold(f"{name} is {'not listed' if name in there else 'missing'}")
        for name, digest in files.items():
            demand(self.pack.sha256(name) == digest, f"{name} was changed")
        self.at = self.given.at or listed["at"]
        stated = "" if self.given.at else ", as the pack's maker states"
        return f"{len(files)} files; they are judged as of {self.at}{stated}"

    def trust_root(self) -> str:
        """2: the trust root is signed by its own keys, and is the one that its owner gave."""
        own = self.pack.read(ROOT)
        data = self.given.trust_root.read_bytes() if self.given.trust_root else own
        root = Statement(data, "trust-root/v1")
        self.root_digest = root.digest
        self.trust = Trust(root, self.at)
        if self.given.root_digest:
            demand(root.digest == self.given.root_digest, f"it is another root, {root.digest}")
        elif not self.given.trust_root:
            self.open.append(
                f"whose trust root this is: ask its owner for it, or for its digest, {root.digest}"
            )
        self.trust.delegate(
            [Statement(each, "delegation/v1") for each in self._lines("delegations.jsonl")]
        )
        named = f"{root.document['name']} version {root.document['version']}, {root.digest}"
        return f"{named}; {len(self.trust.authorities)} authorities"

    def attestation(self) -> str:
        """3: an operator of the trust root signed the attestation."""
        self.attested = Statement(
            self.pack.read(MODEL + G + "attestation.dsse.json"),
            "attestation/provenance-coverage/v1",
        )
        self.document = self.attested.document
        run = self.document["run"]
        self.operator = self.trust.signers(self.attested, "operator", [self.at])[0]
        signed = self.attested.signed_by(self.operator["loaded"])
        demand(self.attested.hints == sorted(signed), "signatures or key hints beside the signer's")
        stated = self.document["execution"]
        times = [stated["registered"], run["started"], run["finished"], stated["attested"], self.at]
        demand(times == sorted(times), "the times of the run and its execution are out of order")
        told = [each in stated for each in ("submission", "user", "project", "submitted")]
        demand(all(told) or not any(told) | ("policy" in stated), "half a submission")
        same = stated.get("policy") in (None, self.document["policy"]["digest"])
        demand(same, "it was submitted under another policy")
        code, isolation = stated["code"], stated["isolation"]
        same = code.get("setup") == self.document["environment"].get("setup")
        demand(same, "the job reported another image or other packages")
        demand(stated["attempts"] >= 1, "no attempt")
        demand(isolation in ISOLATIONS, f"the unknown isolation {isolation}")
        own = code["origin"] == "deployment"
        demand(own or code["origin"] == "submitted", f"the unknown origin {code['origin']}")
        packages = {"pip", "uvLock"} & code.get("setup", {}).keys()
        alone = isolation == "run" and "archive" not in code and not packages
        demand(alone or not own, "code of the deployment with other code, or not alone")
        for each in self.document["removals"]:
            held = run["finished"] <= each["removed"] <= self.at
            demand(held, f"adapter {each['adapter']} was not removed between the run and then")
        named = self.document["trustRoot"]
        demand(named["name"] == self.trust.root["name"], "the run was under another trust root")
        later = named["version"] < self.trust.root["version"]
        demand(later or named["version"] == self.trust.root["version"], "the root is too old")
        demand(later or named["digest"] == self.root_digest, "another root of this version")
        demand(
            self.listed["attestation"] == self.attested.digest, "the pack names another attestation"
        )
        return f"{self.operator['name']} signed {self.attested.digest} of run {run['id']}"

    def pinned_files(self) -> str:
        """4: the model's files are those that the attestation covers, and there is no other."""
        files: dict[str, str] = self.document["files"]
        subjects = self.attested.subjects
        gone = {each["adapter"] for each in self.document["removals"]}
        expected = {"govray.json", "model.safetensors"}
        expected |= {"config.json", "ema/model.safetensors"} & subjects.keys()
        for each in self.document["adapters"]:
            if each["name"] not in gone:
                place = f"adapters/{each['name']}/adapter_"
                expected |= {f"{place}config.json", f"{place}model.safetensors"}
        for name in expected ^ {name for name in subjects if covered(name)}:
            raise DoesNotHold(f"{name}: covered without need, or not covered")
        required = {G + name for name in REQUIRED}
        demand(required <= files.keys(), "the attestation does not pin all governance files")
        others = files.keys() - required - {G + name for name in OPTIONAL}
        demand(not others, f"the attestation pins {sorted(others)}")
        for name, digest in files.items():
            if name == G + "manifest.dsse.json" and digest == self.document["manifest"]:
                continue  # by its statement, in step 7
            data = self._bytes(name.removeprefix(G))
            demand(digest_of(data) == digest, f"{name} is not the file that was attested")
        known = {*subjects, *files, G + "attestation.dsse.json"}
        self._demand_covered(known, self.pack, MODEL)
        if self.given.model is not None:
            self._demand_covered(known, Pack(self.given.model, "the folder of --model"), "")
        seen, absent = 0, []
        for name, digest in sorted(subjects.items()):
            found = self._model_digest(name)
            if found is None and self.given.model is not None:
                raise DoesNotHold(f"{name} is missing")
            if found is None:
                absent.append(name)
            else:
                demand(found == digest, f"{name} is not the file that was attested")
                seen += 1
        if absent:
            self.open.append(
                f"{len(absent)} model files that are not here: give the folder with --model. "
                f"The attestation has their digests ({', '.join(absent[:3])} …)"
            )
        return f"{len(files)} governance files and {seen} model files"

    def _demand_covered(self, known: set[str], pack: Pack, below: str) -> None:
        """No other file, but for what no loader reads, what others signed and what is let through.
        No exception is made where attested files stand, or for another spelling of one's name."""
        let = self.given.allow_uncovered or []
        spelt = {each.casefold() for each in known}
        for each in pack.names:
            name = each.removeprefix(below)
            if not each.startswith(below) or name in known or by_outsiders(name):
                continue
            stands = reserved(name) or name.casefold() in spelt
            harmless = inert(name) or any(fnmatchcase(name, glob) for glob in let)
            demand(harmless and not stands, f"{name}: the attestation does not cover it")

    def policy(self) -> str:
        """5: a policy authority signed the policy, and it was in force."""
        policy = Statement(self._bytes("policy.dsse.json"), "depth-policy/v1")
        found, named, run = policy.document, self.document["policy"], self.document["run"]
        times = [run["started"], run["finished"]]
        signer = self.trust.signers(policy, "policy", times)[0]
        demand(policy.digest == named["digest"], "it is not the policy that was attested")
        valid = found["valid"]
        demand(all(valid["from"] <= at < valid["until"] for at in times), "it was not in force")
        least = [
            version
            for each in self.trust.authorities.values()
            for name, version in each.get("minimumPolicyVersions", {}).items()
            if spelling(name) == spelling(found["name"])
        ]
        demand(found["version"] >= max(least, default=1), "the root asks for a later version")
        return f"{found['name']} version {found['version']}, signed by {signer['name']}"

    def credentials(self) -> str:
        """6: each corpus has a credential, signed by its issuer within the issuer's scope."""
        run = self.document["run"]
        gates = [parse(each) for each in self._lines("gates.jsonl")]
        closed(gates, [SHAPES["gate"]])
        self.gated = {each["corpus"] for each in gates}
        self.issued: dict[str, Statement] = {}
        for line in self._lines("credentials.jsonl"):
            credential = Statement(line, "credential/v1")
            stated = credential.document
            where = f"credential of {stated['corpus']}"
            # A gate leaves a corpus out from a step on, whose time only the ledger's order tells.
            times = [run["started"]]
            times += [] if stated["corpus"] in self.gated else [run["finished"]]
            signers = self.trust.signers(credential, "credential", times)
            issuer = [each for each in signers if each["name"] == stated["issuer"]]
            demand(issuer, f"{where}: its issuer did not sign it")
            demand(covers(issuer[0], stated), f"{where}: outside its issuer's scope")
            valid = stated["valid"]
            held = all(valid["from"] <= at < valid["until"] for at in times)
            demand(held, f"{where}: not valid when the run used it")
            demand(stated["corpus"] not in self.issued, f"{where}: there are two")
            self.issued[stated["corpus"]] = credential
        attested = {each["corpus"]: each["credential"] for each in self.document["corpora"]}
        found = {name: each.digest for name, each in self.issued.items()}
        demand(found == attested, "the credentials are not those that were attested")
        gated = f"; {len(self.gated)} of gated corpora when the run began" if self.gated else ""
        return f"{len(found)} credentials{gated}"

    def manifest(self) -> str:
        """7: an operator signed the manifest of what was read."""
        manifest = Statement(self._bytes("manifest.dsse.json"), "prepare-manifest/v2")
        self.trust.signers(manifest, "operator", [self.at])
        demand(manifest.digest == self.document["manifest"], "not the manifest that was attested")
        found = {each["corpus"]: each for each in manifest.document["corpora"]}
        demand(found.keys() == self.issued.keys(), "the manifest has other corpora")
        same = manifest.document["quarantine"] == self.document["quarantine"]
        demand(same, "the quarantine is not the manifest's")
        for corpus, entry in found.items():
            credential = self.issued[corpus]
            same = entry["credential"] == credential.digest
            demand(same, f"{corpus}: another credential in the manifest")
            count = str(entry["parts"][-1]["records"][1] if entry["parts"] else 0)
            same = count == credential.document["records"]["count"]
            demand(same, f"{corpus}: the manifest has {count} records")
        return f"{len(found)} corpora"

    def ledger(self) -> str:
        """8: the ledger's lines have the root that the attesting operator signed."""
        lines, head = self._lines("ledger.jsonl"), self.document["ledger"]
        root, origin = merkle_root(lines), f"govray.dev/ledger/{self.document['run']['id']}"
        demand(head["origin"] == origin and head["size"] == str(len(lines)), "another ledger")
        demand(head["root"] == "sha256:" + root.hex(), "the root is not that of the ledger")
        text, _, signatures = self._bytes("ledger.checkpoint").decode().rpartition("\n\n")
        body = text + "\n"
        stated = f"{origin}\n{len(lines)}\n{base64.b64encode(root).decode()}\n"
        demand(body == stated, "the checkpoint is of another tree")
        signed = any(self._note_signed(body, origin, each) for each in signatures.splitlines())
        demand(signed, "no key that signed the attestation signed the checkpoint")
        self.leaves = [parse(each) for each in lines]
        closed(self.leaves, [SHAPES["leaf"]])
        under = (
            self.document["policy"]["digest"],
            digest_of(canonical(self.document["plan"]).encode()),
        )
        for leaf in self.leaves:
            if "kind" not in leaf:
                same = (leaf["policy"], leaf["plan"]) == under
                demand(same, "a step under another policy or plan")
        return f"{len(lines)} entries under a signed root"

    def coverage(self) -> str:
        """9: tokens and steps of each corpus in each layer group, counted again."""
        routes = {each["corpus"]: groups_by_route(each) for each in self.document["corpora"]}
        due: dict[tuple[str, str], tuple[int, int]] = {}
        for leaf in self.leaves:
            if "kind" in leaf:
                known = leaf["kind"] in OF_A_STEP and not {"corpora", "policy"} & leaf.keys()
                demand(known, "an entry of the ledger of another kind")
                continue
            for corpus, use in leaf["corpora"].items():
                groups = routes.get(corpus, {}).get(use.get("route"))
                demand(groups, f"rows of {corpus} took a route that the attestation does not have")
                for group in groups or ():
                    tokens, steps = due.get((corpus, group), (0, 0))
                    due[corpus, group] = tokens + int(use["targets"]), steps + 1
        for entry in self.document["coverage"]:
            found = due.pop((entry["corpus"], entry["group"]), None)
            demand(
                found == (int(entry["tokens"]), int(entry["steps"])),
                f"the totals of {entry['corpus']} in {entry['group']} are not the ledger's",
            )
        demand(not due, f"coverage leaves out {sorted(due)[:1]}")
        return f"{len(self.document['coverage'])} totals"

    def revocations(self) -> str:
        """10: no list of the pack revokes the attestation, or what the run used, at its time."""
        run, later = self.document["run"], 0
        used = {corpus for leaf in self.leaves for corpus in leaf.get("corpora", {})}
        mine = {
            "attestation": {self.attested.digest},
            "policy": {self.document["policy"]["digest"]},
            "credential": {each.digest for each in self.issued.values()},
            "corpus": set(self.issued),
        }
        lists: dict[str, dict[str, Any]] = {}
        given = {str(path): path.read_bytes() for path in self.given.revocations or ()}
        packed = {name: self.pack.read(name) for name in self.pack.names if name.startswith(LISTS)}
        for name, data in (packed | given).items():
            statement = Statement(data, "revocations/v1")
            each = statement.document
            issuer = self.trust.authorities.get(each["issuer"])
            demand(issuer, f"{name}: its issuer is not known")
            assert issuer is not None
            signers = self.trust.signers(statement, issuer["role"], [self.at])
            demand(issuer in signers, f"{name}: its issuer did not sign it")
            demand(statement.names_itself(each["issuer"]), f"{name}: its subject is not the list")
            demand(each["issued"] <= self.at, f"{name}: it was issued later")
            newest = lists.setdefault(each["issuer"], each)
            lists[each["issuer"]] = max(newest, each, key=lambda one: int(one["sequence"]))
            for entry in each["entries"]:
                demand(may_revoke(issuer, entry), f"{name}: more than its issuer could issue")
                for kind, known in mine.items():
                    if entry.get(kind) not in known:
                        continue
                    named_corpus = self._corpus_of(kind, entry[kind])
                    until = self.at if kind == "attestation" else run["finished"]
                    until = run["started"] if named_corpus in self.gated else until
                    held = entry["since"] > until or (named_corpus and named_corpus not in used)
                    demand(held, f"{kind} {entry[kind]} was revoked from {entry['since']}")
                    later += 1
                if entry.get("delegation"):
                    self.open.append(f"{name} revokes a delegation: run govray verify")
        for authority in self.trust.authorities.values():
            if self._stale(authority, lists.get(authority["name"])):
                self.open.append(
                    f"what {authority['name']} revoked: the root asks for a list of it, or a newer "
                    "one"
                )
        if not lists:
            return "not known: neither the pack has a list, nor were any given"
        return f"{len(lists)} lists; {later} entries name what the run used, from a later time"

    def _stale(self, authority: dict[str, Any], given: dict[str, Any] | None) -> bool:
        least = authority.get("minimumRevocations", 0)
        hours = authority.get("maximumRevocationAgeHours")
        if given is None:
            return bool(least or hours)
        age = datetime.fromisoformat(self.at) - datetime.fromisoformat(given["issued"])
        return given["sequence"] < least or (hours is not None and age >= timedelta(hours=hours))

    def _corpus_of(self, kind: str, named: str) -> str | None:
        """The corpus that an entry of a revocation list is about, if it is about one."""
        if kind == "credential":
            return next((name for name, each in self.issued.items() if each.digest == named), None)
        return named if kind == "corpus" else None

    def _bytes(self, name: str) -> bytes:
        """A governance file; one that is absent is empty where the attestation pins it so."""
        path = MODEL + G + name
        return self.pack.read(path) if path in self.pack.names else b""

    def _lines(self, name: str) -> list[bytes]:
        return lines_of(self._bytes(name))

    def _model_digest(self, name: str) -> str | None:
        demand(".." not in name.split("/") and not name.startswith("/"), f"{name} leads out")
        if self.given.model is not None and (self.given.model / name).is_file():
            with (self.given.model / name).open("rb") as stream:
                return digest_of_stream(stream)
        return self.pack.sha256(MODEL + name) if MODEL + name in self.pack.names else None

    def _note_signed(self, body: str, origin: str, line: str) -> bool:
        dash, name, encoded = line.split(" ")
        signed = base64.b64decode(encoded, validate=True)
        if dash != "\u2014" or name != origin:
            return False
        keys = [
            key
            for key in self.operator["loaded"]
            if key.id in self.attested.signed_by([key]) and key.note_id(origin) == signed[:4]
        ]
        demand(
            all(key.signed(body.encode(), signed[4:]) for key in keys),
            "a signature of the checkpoint does not verify",
        )
        return bool(keys)


LEFT = (
    "that routes follow from rules and credentials, that ranges, norms, profiles and gates follow "
    "from plan and policy, taint, assurance, removals, records and rows, replays, timestamps, "
    "witnesses and a beacon's pulse"
)
"""What only ``govray verify`` checks."""


def steps(checks: Checks) -> Iterator[tuple[str, Callable[[], str]]]:
    """The steps by name, in order."""
    for check in (checks.contents, checks.trust_root, checks.attestation, checks.pinned_files):
        yield check.__name__.replace("_", " "), check
    for check in (checks.policy, checks.credentials, checks.manifest, checks.ledger):
        yield check.__name__, check
    for check in (checks.coverage, checks.revocations):
        yield check.__name__, check


MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError)
"""What reading a document of another form raises."""


def say(text: str) -> None:
    """Print one line; what a terminal would obey in a name from the pack becomes an escape."""
    print("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def main(words: list[str] | None = None) -> int:
    """Check a pack, and say what holds. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Verify an evidence pack of govray.")
    parser.add_argument("pack", type=Path, help="the archive, or its folder")
    parser.add_argument("--trust-root", type=Path, help="from its owner")
    parser.add_argument("--root-digest", help="of the trust root, from its owner: sha256:…")
    parser.add_argument("--model", type=Path, help="the model folder, for files not in the pack")
    parser.add_argument(
        "--allow-uncovered",
        metavar="GLOB",
        action="append",
        help="files of --model that the attestation need not cover; this vouches for none",
    )
    parser.add_argument(
        "--revocations",
        type=Path,
        action="append",
        help="a list from its issuer, beside the pack's",
    )
    parser.add_argument("--at", help="judge as of then: YYYY-MM-DDTHH:MM:SSZ")
    given = parser.parse_args(words)
    if given.at and not TIME.fullmatch(given.at):
        parser.error("--at: say YYYY-MM-DDTHH:MM:SSZ")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    number = 0
    try:
        checks = Checks(Pack(given.pack), given)
        for number, (name, check) in enumerate(steps(checks), 1):
            say(f"{number:2} ✓ {name}: {check()}")
    except DoesNotHold as error:
        say(f"{number:2} ✗ {error}")
        return 1
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        say(f"{number:2} ✗ it cannot be read: {error}")
        return 1
    except MALFORMED as error:
        say(f"{number:2} ✗ a document is malformed: {type(error).__name__} {error}")
        return 1
    say(f"Not checked here: {LEFT}. Run govray verify.")
    for each in checks.open:
        say(f"Could not be checked: {each}.")
    print("Nothing failed." if checks.open else "All of these steps hold.")
    return 3 if checks.open else 0


if __name__ == "__main__":
    sys.exit(main())
