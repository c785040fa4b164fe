"""Verify an evidence pack: Python's standard library and `cryptography`, and nothing of govray.

    python verify_evidence.py PACK.zip --trust-root ROOT.json [--model MODEL] [--at TIME]
    python verify_evidence.py PACK.zip --root-digest sha256:…

PACK is the archive, or the folder that it was unpacked to. The trust root comes from its owner. If
only its digest is known, the root in the pack is used, once it has that digest. With neither the
pack is checked all the same, and the verdict is that whose root it is was not checked.

Exit code 0: all of the pack was checked and holds. 1: something does not hold. 2: it was used
wrongly. 3: nothing fails, and something was not checked. What that is, is said behind the numbered
steps, which follow in the order in which they rest on each other. Some of every pack is left to
``govray verify``, whose wheel lies in it: ``--partial`` gives 0 where that alone was left.

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
from fractions import Fraction
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
POLICY, MANIFEST = G + "policy.dsse.json", G + "manifest.dsse.json"
CHECKPOINT = G + "ledger.checkpoint"
ENVELOPE = {"payload": 1, "payloadType": 1, "signatures": [{"keyid?": 1, "sig": 1}]}
SUBJECT = {"name": 1, "digest": {"sha256": 1}}
MOST_BESIDE = 64 << 10  # bytes of an envelope beside its payload
REQUIRED = {POLICY, MANIFEST, CHECKPOINT, G + "credentials.jsonl", G + "ledger.jsonl"}
OPTIONAL = {G + "delegations.jsonl", G + "gates.jsonl", G + "replays.jsonl"}
"""Governance files that the attestation pins, and those that it may pin."""
IN_TOTO = "application/vnd.in-toto+json"
KINDS = "https://govray.dev/"
SENSITIVITIES = ("public", "internal", "confidential", "restricted")
MOST_FILES = 100_000
MOST_BYTES = 1 << 40
MOST_IN_MEMORY, MOST_INERT = 1 << 30, 64 << 20
MOST_JSON = 64 << 20  # bytes of one document
MOST_VALUES = 1 << 22  # of one document: a value takes 60 bytes and more, its text as few as two
REVOKED_BY = dict.fromkeys(("credential", "corpus"), "credential")
REVOKED_BY |= {"policy": "policy", "attestation": "operator"}
"""What an entry of a revocation list names → the role of its issuer. A delegation: any."""
ISOLATIONS = ("machine", "sharedCluster", "project", "run")
OF_A_STEP = ("gradientNorms", "entropyProfile")
"""Kinds of leaf that stand behind a step's own, and count no rows."""
TABLES: dict[str, Any] = json.loads(
    r"""
{"names":{"inert":{"below":{".cache/huggingface/download":[".metadata", ".lock"]},
"marks":{".ds_store":"0000000142756431", ".gif":"47494638", ".jpeg":"ffd8ff", ".jpg":"ffd8ff",
".pdf":"255044462d", ".png":"89504e470d0a1a0a", ".webp":"52494646"}, "names":[".gitattributes",
".gitignore", ".gitkeep", "cachedir.tag", "copying.lesser"], "suffixes":[".md", ".rst", ".html",
".svg"], "texts":["readme", "license", "licence", "notice", "copying", "changelog", "authors",
"contributing", "citation", "notes", "todo"]},
"outsiders":{"patterns":["governance/replay-([A-Za-z0-9][A-Za-z0-9._-]{0,127})\\.dsse\\.json",
"governance/timestamp-([A-Za-z0-9][A-Za-z0-9._-]{0,127})\\.tsr",
"governance/ledger\\.witnessed"]}, "reserved":{"folders":["adapters", "governance", "ema"],
"names":["govray.json", "config.json", "model.safetensors"]},
"tensors":{"suffixes":[".safetensors", ".bin", ".pt", ".pth"]}},
"shapes":{"@Authority":{"expires":1, "keys":[{"algorithm":0, "spki":1}],
"maximumRevocationAgeHours?":2, "minimumPolicyVersions?":{"*":2}, "minimumRevocations?":2,
"name":1, "role":1, "scope?":[{"corpus":1, "jurisdictions":[1], "licenseCategories":[1],
"maxSensitivity":1}], "threshold":2}, "@Environment":{"codeDigest":1, "device":1,
"packages":{"*":1}, "platform":1, "processor":1, "python":1, "seeds":{"*":2}, "settings":{"*":1},
"setup?":"@Setup", "source?":"@SourceCode", "threads":2}, "@Measure":{"corpus":1, "layer":1,
"probe":"@Side", "reserve":"@Side", "tested?":4, "top":[2]}, "@Period":{"from":1, "until":1},
"@Quarantined":{"corpus":1, "reason":1, "records":2, "rule":1}, "@Reference":{"digest":1,
"name":1, "version":2}, "@RouteFacts":{"adapter?":{"name":1, "rank":2}, "phases?":[{"fromStep":2,
"weights":{"*":3}}], "weights":{"*":3}}, "@RowSchema":{"classes?":2, "kind":1,
"tensors?":[{"dtype":1, "name":1, "shape":[2]}]}, "@Setup":{"image?":1, "pip?":1, "uvLock?":1},
"@Side":{"entropy":3, "minK?":3, "records":2, "surprise?":3}, "@SourceCode":{"commit?":1,
"digest":1, "dirty?":4, "module":1},
"attestation/provenance-coverage/v1":{"adapters":[{"corpora":[1], "name":1, "rank":2,
"tensors":[1]}], "assuranceLevel":1, "buffers":[1], "corpora":[{"corpus":1, "credential":1,
"credentialClass":{"corpus":1, "jurisdiction":1, "languages?":[1], "license":1,
"licenseCategory":1, "modality?":[1], "optOut?":1, "personalData?":1, "sensitivity":1,
"source?":1, "use":1}, "fallback?":{"profile":1, "route":"@RouteFacts"}, "profile":1,
"route":"@RouteFacts", "rules":[1]}], "coverage":[{"corpus":1, "gradientNormShare?":3, "group":1,
"records":1, "steps":1, "tokens":1, "weightedTokens":1}], "disclaimer":1, "domains":[[1]],
"environment":"@Environment", "execution":{"attempts":2, "attested":1, "code":{"archive?":1,
"origin":1, "setup?":"@Setup"}, "commit":1, "isolation":1, "policy?":1, "project?":1,
"registered":1, "submission?":1, "submitted?":1, "user?":1}, "files":{"*":1},
"groups":[{"group":1, "parameters":[1]}], "ledger":{"origin":1, "root":1, "size":1},
"levels":{"*":{"*":2}}, "manifest":1, "memorization?":{"branches":[2], "decisions":[{"action":1,
"branch?":2, "corpus":1, "e":3, "evidence":[1], "fallback?":1, "layers":[1], "since":2,
"step":2}], "measured":{"*":2}, "measures":["@Measure"], "unmeasurable":[1]},
"phaseExclusions?":{"*":{"*":[[2]]}}, "plan":{"context":2, "excluded?":[1], "manifest":1,
"maxSteps":2, "order":{"block":2, "window":2}, "seed":2, "streams":[{"corpora":[{"corpus":1,
"draws?":2, "rows":2}], "epochs?":2, "every?":2, "id":1, "phase":2, "profile":1, "quota":2}]},
"policy":"@Reference", "pretrained":{"*":[1]}, "quarantine":["@Quarantined"],
"removals":[{"adapter":1, "removed":1}], "replays":[{"corpus":1, "environment":"@Environment",
"files":{"*":1}, "outcome?":1, "party":1, "plan":1}], "run":{"ancestry?":[{"root":1, "run":1,
"size":1, "step":2}], "earlierCode?":[{"codeDigest":1, "source?":"@SourceCode", "step":2}],
"finished":1, "id":1, "initialOptimizer?":1, "initialWeights?":{"*":1}, "name":1, "started":1},
"selectionTaint?":[{"corpora":[1], "ended?":2, "metric":1, "search?":1, "statistic?":1,
"validation?":{"*":1}}], "taint":[{"direct":[1], "group":1, "transitive":[1]}],
"trustRoot":"@Reference", "validation?":{"corpora?":{"*":1}, "goal":1, "metric":1, "value":3}},
"credential/v1":{"corpus":1, "description?":{"collected?":{"first":1, "last":1}, "content?":1,
"crawlers?":[{"behaviour?":1, "name":1, "purpose?":1}], "domains?":{"sizes":{"*":2}, "total":2,
"unit":1}, "generators?":[1], "hours?":2, "illegalContentMeasures?":1, "languages?":[1],
"modality?":[1], "optOut?":1, "optOutCheck?":{"agents":[1], "first":1, "last":1, "snapshot":1},
"optOutMeasures?":1, "personalData?":1, "source?":1, "url?":1}, "issued?":1, "issuer":1,
"jurisdiction":1, "license":1, "licenseCategory":1, "normalisation?":[1],
"piiScan?":{"analyzer":1, "entities":[1], "score":3}, "records":{"commitment":1, "count":1,
"root":1}, "rows?":"@RowSchema", "schemaVersion":1, "sensitivity":1, "use":1, "valid":"@Period"},
"delegation/v1":{"authority":"@Authority", "delegator":1}, "depth-policy/v1":{"groups?":{"*":[1]},
"memorization?":{"actions?":{"*":{"action":1, "fallback?":1}}, "every":2, "fdr?":3,
"odds":{"*":3}, "probeRows":2, "rollbacks?":2, "rules?":[1], "statistic?":1, "turns?":2},
"name":1, "onExpiry":1, "profiles":{"*":{"adapter?":1, "layers":{"*":3}, "phases?":[{"fromStep":2,
"layers":{"*":3}}], "rank?":2}}, "rules":[{"match":{"corpus?":[1], "jurisdiction?":[1],
"languages?":[1], "license?":[1], "licenseCategory?":[1], "modality?":[1], "optOut?":[1],
"personalData?":[1], "sensitivity?":[1], "source?":[1], "use?":[1]}, "name":1, "profile":1}],
"valid":"@Period", "version":2}, "gate":{"branch?":2, "corpus":1, "evidence?":1, "fallback?":1,
"reason":1, "revocations?":1, "since?":1, "step":2, "time?":1}, "leaf":{"branch?":2,
"corpora?":{"*":{"route?":1, "rows":2, "targets":2}}, "kind?":1, "measures?":["@Measure"],
"passes?":[{"corpora":{"*":2}, "rank":2, "stream":1}], "plan?":1, "policy?":1,
"squaredNorms?":{"*":{"*":3}}, "statistic?":1, "step":2, "streams?":{"*":[2]}, "worldSize?":2},
"prepare-manifest/v2":{"context":2, "corpora":[{"classDigest":1, "commitment":1, "corpus":1,
"credential":1, "parts":[{"file":1, "groupsDigest":1, "records":[2], "recordsDigest":1,
"reserve?":{"file":1, "groupsDigest":1, "rows":2, "rowsPerGroup":2, "tokens":2}, "rows":2,
"rowsPerGroup":2, "source":1, "splits":{"empty":2, "reserve":2, "train":2},
"targets?":{"digest":1, "total":2}, "tokens":2}], "planted?":{"canaries":{"coin?":2, "count?":2,
"digits?":2, "format?":1, "repeats?":2, "seed?":2}, "file":1, "records":[[0]],
"rowGroups":[{"digest":1, "rows":2}]}}], "families?":{"bands":2, "leastShingles":2, "method":1,
"seed":2, "similar":3, "text":1, "values":2}, "quarantine?":["@Quarantined"],
"reserve":{"pulse?":{"beacon":1, "round":2, "signature":1}, "salt":1, "share":3},
"rows?":"@RowSchema", "tokenizer":{"digest":1, "name":1, "separator":2, "vocabulary":2}},
"revocations/v1":{"entries":[{"attestation?":1, "corpus?":1, "credential?":1, "delegation?":1,
"policy?":1, "reason":1, "since":1}], "issued":1, "issuer":1, "sequence":2},
"trust-root/v1":{"authorities":["@Authority"], "beacon?":{"delay":2, "genesis":1,
"key":{"algorithm":0, "spki":1}, "name":1, "period":2}, "expires":1, "keys":[{"algorithm":0,
"spki":1}], "name":1, "threshold":2, "timestampAuthorities?":[{"certificates":[1], "name":1}],
"version":2, "witnessPolicy?":{"threshold":2, "witnesses":[{"key":{"algorithm":0, "spki":1},
"name":1}]}}}}
"""
)
"""Generated: python -m tests.support.pack_tables.

``shapes``: kind of document → its fields. ``?``: it may be absent. ``*``: any name. A list of one
is of its members. 1 is a text, 2 a whole number, 3 a number, 4 true or false, 0 any of these.
``names``: what files are called, in small letters. People read what is inert, and no loader does.
Only attested files stand where it is reserved. Outsiders sign files that it does not pin.
"""
SHAPES, NAMES = TABLES["shapes"], TABLES["names"]
LEAVES: tuple[Any, ...] = ((str, int, float), str, int, (int, float), bool)
ATTESTATION = "attestation/provenance-coverage/v1"
CLASS = {name.rstrip("?") for name in SHAPES[ATTESTATION]["corpora"][0]["credentialClass"]}
"""What a policy sees of a corpus."""
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


def just_before(time: str) -> str:
    """The second before."""
    return (datetime.fromisoformat(time) - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


# Files


def plain(name: str) -> bool:
    """Whether a name leads to a file below its folder, and to the same one on every system."""
    parts = name.split("/")
    return (
        not {"", ".", ".."} & set(parts)
        and not set('\\:*?"<>|') & set(name)
        and (name.isprintable() and len(name) <= 1024 and len(parts) <= 9)
    )


def inert(name: str) -> bool:
    """Whether a file of this name is of the few kinds that people read and no loader does."""
    path, rule = PurePosixPath(name.casefold()), NAMES["inert"]
    if any(path.suffix in of and path.is_relative_to(at) for at, of in rule["below"].items()):
        return True
    if path.name in rule["names"] or path.suffix in rule["suffixes"] or mark_of(path):
        return True
    text = re.fullmatch(rf"({'|'.join(rule['texts'])})([-_][a-z0-9._-]+)?", path.stem)
    return path.suffix in ("", ".txt") and text is not None


def mark_of(path: PurePosixPath) -> bytes:
    """The first bytes of a file that is no text."""
    return bytes.fromhex(NAMES["inert"]["marks"].get(path.suffix or path.name, ""))


def reads_as_named(name: str, data: bytes) -> bool:
    """Whether a file of an inert name is what it is called: no archive or pickle, but its kind's
    first bytes, or text."""
    if mark := mark_of(PurePosixPath(name.casefold())):
        return not data or (data.startswith(mark) and b"PK\x05\x06" not in data[-65_557:])
    try:
        return not re.search(r"[\x00-\x08\x0e-\x1f\x7f]", data.decode())
    except UnicodeDecodeError:
        return False


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
            files = [(path.relative_to(place).as_posix(), path.stat().st_size) for path in found]
        else:
            packed = self._archive.infolist()
            files = [(each.filename, each.file_size) for each in packed]
            known = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
            same = {each.compress_type for each in packed} <= known
            demand(same, "the pack is compressed otherwise than by deflate")
            demand(sum(size for _, size in files) <= MOST_BYTES, "the pack is too large")
        self.sizes = dict(sorted(files))
        demand(len(files) <= MOST_FILES, "the pack has too many files")
        demand(len(self.sizes) == len(files), "a name stands twice in the pack")
        demand(all(map(plain, self.sizes)), f"{what} has a file of an unsafe name")

    def read(self, name: str) -> bytes:
        """The bytes of a file that is held in memory."""
        demand(name in self.sizes, f"{name} is missing")
        demand(self.sizes[name] <= MOST_IN_MEMORY, f"{name} is too large")
        with self.open(name) as file:
            return file.read(MOST_IN_MEMORY)

    def sha256(self, name: str) -> str:
        """The digest of a file that may be larger than memory."""
        with self.open(name) as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]

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
    """Fail where a value has not the fields and kinds of its shape."""
    if isinstance(shape, str):
        shape = SHAPES[shape]
    if isinstance(shape, list):
        demand(isinstance(value, list), f"{where} is no list")
        for each in value:
            closed(each, shape[0], where)
    elif isinstance(shape, dict):
        demand(isinstance(value, dict), f"{where} has no fields")
        for name, each in value.items():
            inner = shape.get(name, shape.get(f"{name}?", shape.get("*")))
            demand(inner is not None, f"the unknown field {where}{name}")
            closed(each, inner, f"{where}{name}.")
        absent = [name for name in shape if name[-1] not in "?*" and name not in value]
        demand(not absent, f"{where}{''.join(absent[:1])} is missing")
    else:
        right = isinstance(value, LEAVES[shape]) and isinstance(value, bool) <= (shape in (0, 4))
        demand(right, f"{where} is of another kind")


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
        same = p256 and stated["algorithm"] == "ecdsa-p256"
        same = isinstance(key, ed25519.Ed25519PublicKey) if self.ed25519 else same
        demand(same, "a key is of another algorithm")

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
        closed(envelope, ENVELOPE)
        demand(len(data) - len(envelope["payload"]) <= MOST_BESIDE, "too much beside the payload")
        demand(envelope["payloadType"] == IN_TOTO, "the payload is no in-toto statement")
        self.payload = decoded(envelope["payload"])
        size = str(len(self.payload)).encode()
        self._message = b"DSSEv1 28 " + IN_TOTO.encode() + b" " + size + b" " + self.payload
        demand(1 <= len(envelope["signatures"]) <= 16, "no signature, or more than 16")
        self.signatures = [decoded(each["sig"]) for each in envelope["signatures"]]
        hints = [each["keyid"] for each in envelope["signatures"] if "keyid" in each]
        demand(all(1 <= len(each) <= 256 for each in hints), "a malformed key hint")
        self.hints = sorted(hints + [""] * (len(self.signatures) - len(hints)))
        value = parse(self.payload)
        header = {"_type": 1, "predicateType": 1, "subject": [SUBJECT], "predicate": SHAPES[kind]}
        demand(value["_type"] == "https://in-toto.io/Statement/v1", "no in-toto Statement v1")
        demand(value["predicateType"] == KINDS + kind, f"no {kind}, but {value['predicateType']}")
        closed(value, header)
        self.document: dict[str, Any] = value["predicate"]
        self.digest = digest_of(self.payload)
        self.subjects = {
            each["name"]: "sha256:" + each["digest"]["sha256"] for each in value["subject"]
        }
        demand(0 < len(self.subjects) == len(value["subject"]), "no subject, or one named twice")

    def signed_by(self, keys: list[Key]) -> set[str]:
        """The ids of the keys that signed it. The envelope's own hints are not read."""
        return {
            key.id for key in keys if any(key.signed(self._message, s) for s in self.signatures)
        }

    def demand_alone(self, keys: list[Key]) -> None:
        """Nothing unsigned stands in the envelope: its signatures and hints are these keys'."""
        same = self.hints == sorted(self.signed_by(keys))
        demand(same, "signatures or key hints beside the signer's")

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
        signed = root.signed_by(keys)
        demand(len(signed) >= self.root["threshold"], "too few of its own keys signed")
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


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether a scope lies within another."""
    where, rank = outer["jurisdictions"], SENSITIVITIES.index
    return (
        within(inner["corpus"], outer["corpus"])
        and set(inner["licenseCategories"]) <= set(outer["licenseCategories"])
        and ("*" in where or set(inner["jurisdictions"]) <= set(where))
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


def groups_by_route(entry: dict[str, Any]) -> dict[str | None, dict[str, float]]:
    """What a ledger's leaf calls a route of a corpus → group → weight. None is the corpus's own.
    Others are those of later phases and its fallback's, by digest."""
    own = {name: value for name, value in entry["route"].items() if name != "phases"}
    others = [{**own, "weights": each["weights"]} for each in entry["route"].get("phases", ())]
    if "fallback" in entry:
        others.append(entry["fallback"]["route"])
    found: dict[str | None, dict[str, float]] = {None: groups_of(own)}
    return found | {digest_of(canonical(each).encode()): groups_of(each) for each in others}


def groups_of(route: dict[str, Any]) -> dict[str, float]:
    """The layer groups that a route updates, each with its weight. An adapter has weight 1."""
    adapter = {f"adapter:{route['adapter']['name']}": 1.0} if "adapter" in route else {}
    return {**route["weights"], **adapter}


def merkle_root(leaves: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.1, with one pending subtree for each bit of the count."""
    pending: list[bytes] = []
    for count, leaf in enumerate(leaves):
        node, bits = hashlib.sha256(b"\x00" + leaf).digest(), count
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
        self.model = Pack(given.model, "the folder of --model") if given.model else None
        self.open: list[str] = []
        """What could not be checked."""

    def contents(self) -> str:
        """1: the pack has the files that it lists, each with its digest, and no other."""
        self.listed = listed = parse(self.pack.read(CONTENTS))
        demand(listed["format"] == "govray.dev/evidence-pack/v1", "a pack of another format")
        demand(TIME.fullmatch(listed["at"]), "no time in the contents")
        files: dict[str, str] = listed["files"]
        there = set(self.pack.sizes) - {CONTENTS}
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
        path = self.given.trust_root
        for folder in (self.given.pack, self.given.model or self.given.pack):
            inside = path and path.resolve().is_relative_to(folder.resolve())
            demand(not inside, "a trust root from inside what it judges is never trusted")
        data = path.read_bytes() if path else self.pack.read(ROOT)
        root = Statement(data, "trust-root/v1")
        self.root_digest = root.digest
        self.trust = Trust(root, self.at)
        if self.given.root_digest:
            demand(root.digest == self.given.root_digest, f"it is another root, {root.digest}")
        elif not self.given.trust_root:
            self.open.append(
                f"whose trust root this is: ask its owner for it, or for its digest, {root.digest}"
            )
        delegations = self._lines("delegations.jsonl")
        self.trust.delegate([Statement(each, "delegation/v1") for each in delegations])
        named = f"{root.document['name']} version {root.document['version']}, {root.digest}"
        return f"{named}; {len(self.trust.authorities)} authorities"

    def attestation(self) -> str:
        """3: an operator of the trust root signed the attestation."""
        data = self.pack.read(MODEL + G + "attestation.dsse.json")
        self.attested = Statement(data, ATTESTATION)
        self.document = self.attested.document
        run = self.document["run"]
        self.operator = self.trust.signers(self.attested, "operator", [self.at])[0]
        self.attested.demand_alone(self.operator["loaded"])
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
        same = self.listed["attestation"] == self.attested.digest
        demand(same, "the pack names another attestation")
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
        demand(files.keys() >= REQUIRED, "the attestation does not pin all governance files")
        others = files.keys() - REQUIRED - OPTIONAL
        demand(not others, f"the attestation pins {sorted(others)}")
        absent = []
        for name, digest in sorted((files | subjects).items()):
            demand(plain(name), f"{name} leads out, or is unsafe")
            found = [self.pack.sha256(MODEL + name)] if MODEL + name in self.pack.sizes else []
            demand(found or name in subjects, f"{name} is missing")
            found += [self.model.sha256(name)] if self.model and name in self.model.sizes else []
            demand(found or self.model is None, f"{name} is missing")
            by_statement = name == MANIFEST and digest == self.document["manifest"]  # in step 7
            same = by_statement or set(found) <= {digest}
            demand(same, f"{name} is not the file that was attested")
            absent += [] if found else [name]
        known = {*subjects, *files, G + "attestation.dsse.json"}
        self._demand_covered(known, self.pack, MODEL)
        if self.model is not None:
            self._demand_covered(known, self.model, "")
        if absent:
            self.open.append(
                f"{len(absent)} model files that are not here: give the folder with --model. "
                f"The attestation has their digests ({', '.join(absent[:3])} …)"
            )
        return f"{len(files)} governance files and {len(subjects) - len(absent)} model files"

    def _demand_covered(self, known: set[str], pack: Pack, below: str) -> None:
        """No other file, but for what no loader reads, what others signed and what is let through.
        No exception is made where attested files stand, or for another spelling of one's name."""
        let = self.given.allow_uncovered or []
        spelt = {each.casefold() for each in known}
        for each in pack.sizes:
            name = each.removeprefix(below)
            if not each.startswith(below) or name in known or by_outsiders(name):
                continue
            stands = reserved(name) or name.casefold() in spelt
            demand(not stands, f"{name}: not covered, where a file that is would stand")
            read = inert(name) and pack.sizes[each] <= MOST_INERT
            harmless = read and reads_as_named(name, pack.read(each))
            harmless = harmless or any(fnmatchcase(name, glob) for glob in let)
            demand(harmless, f"{name}: a loader may load it, and the attestation does not cover it")

    def policy(self) -> str:
        """5: a policy authority signed the policy, and it was in force."""
        policy = Statement(self.pack.read(MODEL + POLICY), "depth-policy/v1")
        found, named, run = policy.document, self.document["policy"], self.document["run"]
        times = [run["started"], run["finished"]]
        signer = self.trust.signers(policy, "policy", times)[0]
        same = {"name": found["name"], "version": found["version"], "digest": policy.digest}
        demand(named == same, "it is not the policy that was attested")
        demand(policy.names_itself(found["name"]), "its subject is not the policy")
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
        self.gates = [parse(each) for each in self._lines("gates.jsonl")]
        closed(self.gates, ["gate"])
        demand(self.gates or G + "gates.jsonl" not in self.document["files"], "no gate in its file")
        self.ends: dict[str | None, dict[int, str]] = {}  # corpus → branch → its last second
        for gate in self.gates:
            if "since" in gate:  # its credential ended
                ended = self.ends.setdefault(gate["corpus"], {})
                ended[gate.get("branch", 0)] = just_before(gate["since"])
        self.issued: dict[str, Statement] = {}
        for line in self._lines("credentials.jsonl"):
            credential = Statement(line, "credential/v1")
            stated = credential.document
            where = f"credential of {stated['corpus']}"
            ended = self.ends.get(stated["corpus"], {0: run["finished"]})
            times = [run["started"], max(run["started"], *ended.values())]
            signers = self.trust.signers(credential, "credential", times)
            issuer = [each for each in signers if each["name"] == stated["issuer"]]
            demand(issuer, f"{where}: its issuer did not sign it")
            demand(covers(issuer[0], stated), f"{where}: outside its issuer's scope")
            subject = {stated["corpus"]: stated["records"]["root"]}
            demand(credential.subjects == subject, f"{where}: its subject is not its records")
            valid = stated["valid"]
            held = all(valid["from"] <= at < valid["until"] for at in times)
            demand(held, f"{where}: not valid when the run used it")
            demand(stated["corpus"] not in self.issued, f"{where}: there are two")
            self.issued[stated["corpus"]] = credential
        attested = {each["corpus"]: each["credential"] for each in self.document["corpora"]}
        found = {name: each.digest for name, each in self.issued.items()}
        demand(found == attested, "the credentials are not those that were attested")
        return f"{len(found)} credentials"

    def manifest(self) -> str:
        """7: an operator signed the manifest of what was read."""
        manifest = Statement(self.pack.read(MODEL + MANIFEST), "prepare-manifest/v2")
        signer = self.trust.signers(manifest, "operator", [self.at])[0]
        if self.document["files"][MANIFEST] == self.document["manifest"]:
            manifest.demand_alone(signer["loaded"])
        demand(manifest.digest == self.document["manifest"], "not the manifest that was attested")
        found = {each["corpus"]: each for each in manifest.document["corpora"]}
        demand(found.keys() == self.issued.keys(), "the manifest has other corpora")
        same = manifest.document["quarantine"] == self.document["quarantine"]
        demand(same, "the quarantine is not the manifest's")
        attested = {each["corpus"]: each["credentialClass"] for each in self.document["corpora"]}
        for corpus, entry in found.items():
            credential = self.issued[corpus]
            same = entry["credential"] == credential.digest
            demand(same, f"{corpus}: another credential in the manifest")
            told = credential.document.get("description", {}) | credential.document
            told = {name: value for name, value in told.items() if name in CLASS}
            same = entry["classDigest"] == digest_of(canonical(told).encode())
            demand(same and attested[corpus] == told, f"{corpus}: of another class")
            records = credential.document["records"]
            same = entry.get("commitment") == records.get("commitment")
            demand(same, f"{corpus}: under another commitment")
            count = str(entry["parts"][-1]["records"][1] if entry["parts"] else 0)
            demand(count == records["count"], f"{corpus}: the manifest has {count} records")
        return f"{len(found)} corpora"

    def ledger(self) -> str:
        """8: the ledger's lines have the root that the attesting operator signed."""
        lines, head = self._lines("ledger.jsonl"), self.document["ledger"]
        root, origin = merkle_root(lines), f"govray.dev/ledger/{self.document['run']['id']}"
        demand(head["origin"] == origin and head["size"] == str(len(lines)), "another ledger")
        demand(head["root"] == "sha256:" + root.hex(), "the root is not that of the ledger")
        text, _, signatures = self.pack.read(MODEL + CHECKPOINT).decode().rpartition("\n\n")
        body = text + "\n"
        stated = f"{origin}\n{len(lines)}\n{base64.b64encode(root).decode()}\n"
        demand(body == stated, "the checkpoint is of another tree")
        signed = any(self._note_signed(body, origin, each) for each in signatures.splitlines())
        demand(signed, "no key that signed the attestation signed the checkpoint")
        self.leaves = [parse(each) for each in lines]
        closed(self.leaves, ["leaf"])
        plan = digest_of(canonical(self.document["plan"]).encode())
        for leaf in self.leaves:
            same = (leaf.get("policy"), leaf.get("plan")) == (
                self.document["policy"]["digest"],
                plan,
            )
            demand("kind" in leaf or same, "a step under another policy or plan")
        return f"{len(lines)} entries under a signed root"

    def coverage(self) -> str:
        """9: tokens, weighted tokens and steps of each corpus in each layer group, again."""
        routes = {each["corpus"]: groups_by_route(each) for each in self.document["corpora"]}
        due: dict[tuple[str, str], tuple[int, Fraction, int]] = {}
        for leaf in self.leaves:
            if "kind" in leaf:
                known = leaf["kind"] in OF_A_STEP and not {"corpora", "policy"} & leaf.keys()
                demand(known, "an entry of the ledger of another kind")
                continue
            for corpus, use in leaf["corpora"].items():
                groups = routes.get(corpus, {}).get(use.get("route"))
                demand(groups, f"rows of {corpus} took a route that the attestation does not have")
                for group, weight in (groups or {}).items():
                    tokens, weighted, steps = due.get((corpus, group), (0, Fraction(), 0))
                    more = int(use["targets"])
                    weighted += more * Fraction(repr(weight))
                    due[corpus, group] = tokens + more, weighted, steps + 1
        places = [(entry["corpus"], entry["group"]) for entry in self.document["coverage"]]
        demand(places == sorted(set(places)), "entries are repeated or out of order")
        for place, entry in zip(places, self.document["coverage"], strict=True):
            weighted = Fraction(entry["weightedTokens"])
            same = due.pop(place, None) == (int(entry["tokens"]), weighted, int(entry["steps"]))
            demand(same, f"the totals of {place[0]} in {place[1]} are not the ledger's")
        demand(not due, f"coverage leaves out {sorted(due)[:1]}")
        return f"{len(self.document['coverage'])} totals"

    def revocations(self) -> str:
        """10: no list of the pack revokes the attestation, or what the run used, at its time."""
        run, later = self.document["run"], 0
        used: dict[str | None, set[int]] = {}  # corpus → the branches with steps that read it
        for leaf in self.leaves:
            for corpus in leaf.get("corpora", {}):
                used.setdefault(corpus, set()).add(leaf.get("branch", 0))
        mine: dict[str, dict[str, str | None]] = {  # what an entry can name → the corpus
            "attestation": {self.attested.digest: None},
            "policy": {self.document["policy"]["digest"]: None},
            "credential": {each.digest: name for name, each in self.issued.items()},
            "corpus": {name: name for name in self.issued},
        }
        lists: dict[str, dict[str, Any]] = {}
        given = {str(path): path.read_bytes() for path in self.given.revocations or ()}
        packed = {name: self.pack.read(name) for name in self.pack.sizes if name.startswith(LISTS)}
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
            again = name in packed and each["issuer"] in lists
            demand(not again, "the pack has two lists of one issuer")
            newest = lists.setdefault(each["issuer"], each)
            lists[each["issuer"]] = max(newest, each, key=lambda one: int(one["sequence"]))
            for entry in each["entries"]:
                demand(may_revoke(issuer, entry), f"{name}: more than its issuer could issue")
                for kind, known in mine.items():
                    if entry.get(kind) not in known:
                        continue
                    corpus = known[entry[kind]]
                    until = self.at if kind == "attestation" else run["finished"]
                    ended = self.ends.get(corpus, {})
                    until = max(
                        [ended.get(each, until) for each in used.get(corpus, ())] or [until]
                    )
                    held = entry["since"] > until or (corpus and corpus not in used)
                    demand(held, f"{kind} {entry[kind]} was revoked from {entry['since']}")
                    later += 1
                if entry.get("delegation"):
                    self.open.append(f"{name} revokes a delegation: run govray verify")
        for authority in self.trust.authorities.values():
            if self._stale(authority, lists.get(authority["name"])):
                self.open.append(f"what {authority['name']} revoked: the root asks for its list")
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

    def _lines(self, name: str) -> list[bytes]:
        """The lines of a governance file; of one that is absent, none."""
        path = MODEL + G + name
        return lines_of(self.pack.read(path)) if path in self.pack.sizes else []

    def _note_signed(self, body: str, origin: str, line: str) -> bool:
        dash, name, encoded = line.split(" ")
        signed = base64.b64decode(encoded, validate=True)
        mine = [key for key in self.operator["loaded"] if self.attested.signed_by([key])]
        mine = [key for key in mine if key.note_id(origin) == signed[:4]]
        if dash != "\u2014" or name != origin or not mine:
            return False
        held = all(key.signed(body.encode(), signed[4:]) for key in mine)
        demand(held, "a signature of the checkpoint does not verify")
        return True


LEFT = (
    "that routes, plan, and the ledger's ranges, norms, profiles and gates follow from policy and "
    "manifest",
    "taint, levels, shares of norms, assurance, and what else the attestation says of its run",
    "records and rows, and the tensors in the model's files",
)
"""What of every pack only ``govray verify`` checks."""


def left(checks: Checks) -> Iterator[str]:
    """The same, and what of this pack no step has read."""
    yield from LEFT
    there = {name.removeprefix(MODEL) for name in checks.pack.sizes if name.startswith(MODEL)}
    there |= checks.model.sizes.keys() if checks.model else set()
    for name in sorted(there):
        if by_outsiders(name) or name == G + "replays.jsonl":
            yield f"{name}: who signed it, and what"
    if "beacon" in checks.trust.root:
        yield "the beacon's pulse that the reserve follows from"


def steps(checks: Checks) -> Iterator[tuple[str, Callable[[], str]]]:
    """The steps by name, in order."""
    names = ("contents", "trust_root", "attestation", "pinned_files", "policy", "credentials")
    for name in (*names, "manifest", "ledger", "coverage", "revocations"):
        yield name.replace("_", " "), getattr(checks, name)


UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, zipfile.BadZipFile)
UNREADABLE += (RuntimeError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError)
"""What reading a file, or a document of another form, raises."""


def say(text: str) -> None:
    """Print one line; what a terminal would obey in a name from the pack becomes an escape."""
    print("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def main(words: list[str] | None = None) -> int:
    """Check a pack, and say what holds. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Verify an evidence pack of govray.")
    add = parser.add_argument
    add("pack", type=Path, help="the archive, or its folder")
    add("--trust-root", type=Path, help="from its owner")
    add("--root-digest", help="of the trust root, from its owner: sha256:…")
    add("--model", type=Path, help="the model folder, for files not in the pack")
    add("--revocations", type=Path, action="append", help="a list from its issuer, beside those")
    let = "files of --model that the attestation need not cover; this vouches for none"
    add("--allow-uncovered", metavar="GLOB", action="append", help=let)
    add("--at", help="judge as of then: YYYY-MM-DDTHH:MM:SSZ")
    add("--partial", action="store_true", help="end with 0 though some is left to govray verify")
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
    except UNREADABLE as error:
        say(f"{number:2} ✗ it cannot be read: {type(error).__name__} {error}")
        return 1
    for each in left(checks):
        say(f"Left to govray verify: {each}.")
    for each in checks.open:
        say(f"Could not be checked: {each}.")
    whole = given.partial and not checks.open
    print("All of these steps hold." if whole else "Nothing failed, and not all was checked.")
    return 0 if whole else 3


if __name__ == "__main__":
    sys.exit(main())
