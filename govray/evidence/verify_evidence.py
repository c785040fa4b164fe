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
G = MODEL + "governance/"
IN_TOTO = "application/vnd.in-toto+json"
OPENING = b'{"_type":"https://in-toto.io/Statement/v1","predicate":'
KINDS = "https://govray.dev/"
SENSITIVITIES = ("public", "internal", "confidential", "restricted")
MOST_FILES = 100_000
MOST_BYTES = 1 << 40
MOST_IN_MEMORY = 1 << 30
MOST_JSON = 64 << 20  # bytes of one document
MOST_VALUES = 1 << 22  # of one document: a value takes 60 bytes and more, its text as few as two
OUTSIDERS = re.compile(
    re.escape(G) + r"(replay-[\w.-]{1,128}\.dsse\.json|timestamp-[\w.-]{1,128}\.tsr)"
)
"""Files that others signed about the attestation, which it does not pin."""
OF_A_STEP = ("gradientNorms", "entropyProfile")
"""Kinds of leaf that stand behind a step's own, and count no rows."""
INERT_NAMES = {
    ".gitattributes",
    ".gitignore",
    ".gitkeep",
    ".ds_store",
    "thumbs.db",
    "copying.lesser",
}
INERT_SUFFIXES = {
    ".md",
    ".rst",
    ".pdf",
    ".html",
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".svg",
    ".webp",
}
INERT_STEM = re.compile(
    r"(readme|licen[cs]e|notice|copying|changelog|authors|contributing|citation|notes|todo)"
    r"([-_][a-z0-9._-]+)?"
)
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
    path = PurePosixPath(name.casefold())
    if path.parts[:1] == (".git",) or path.parts[:2] == (".cache", "huggingface"):
        return True
    if path.name in INERT_NAMES or path.suffix in INERT_SUFFIXES:
        return True
    return path.suffix in ("", ".txt") and INERT_STEM.fullmatch(path.stem) is not None


def reserved(name: str) -> bool:
    """Whether a file of this name stands where only attested files may."""
    path = PurePosixPath(name.casefold())
    alone = ("config.json", "model.safetensors", "ema.safetensors")
    return path.parts[0] in ("adapters", "governance") or str(path) in alone


class Pack:
    """The files of a pack, by name: of an archive or of a folder. Links are no files.

    ``--model`` names a folder that is read alike.
    """

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
        """A file to read."""
        return self._archive.open(name) if self._archive else (self._folder / name).open("rb")


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a file; none is empty, and the last one is whole."""
    demand(not data or data.endswith(b"\n"), "the last line is cut off")
    lines = data.split(b"\n")[:-1]
    demand(all(lines), "an empty line")
    return lines


def parse(data: bytes) -> Any:
    """JSON in which no name stands twice and no number is beyond JSON."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        demand(len({name for name, _ in items}) == len(items), "a name stands twice")
        return dict(items)

    def none(word: str) -> None:
        raise DoesNotHold(f"{word} is no JSON")

    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    demand(len(data) <= MOST_JSON and values < MOST_VALUES, "a document is too large")
    try:
        return json.loads(data, object_pairs_hook=pairs, parse_constant=none)
    except (ValueError, RecursionError) as error:
        raise DoesNotHold(f"no JSON: {error}") from None


# Keys and signatures


class Key:
    """A public key: Ed25519, or ECDSA P-256 with SHA-256. ``id`` is the SHA-256 of its DER."""

    def __init__(self, stated: dict[str, str]) -> None:
        self.der = base64.b64decode(stated["spki"], validate=True)
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
        demand(envelope["payloadType"] == IN_TOTO, "the payload is no in-toto statement")
        self.payload = base64.b64decode(envelope["payload"], validate=True)
        size = str(len(self.payload)).encode()
        self._message = b"DSSEv1 28 " + IN_TOTO.encode() + b" " + size + b" " + self.payload
        self.signatures = [
            base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"][:16]
        ]
        value = parse(self.payload)
        demand(value["_type"] == "https://in-toto.io/Statement/v1", "no in-toto Statement v1")
        demand(
            re.fullmatch(re.escape(KINDS + kind) + r"/v\d+", value["predicateType"]),
            f"it is no {kind}, but {value['predicateType']}",
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
        demand(self.payload.startswith(OPENING), "the statement is not in its one spelling")
        text = self.payload[len(OPENING) :].decode()
        _, end = json.JSONDecoder().raw_decode(text)
        return self.subjects == {name: digest_of(text[:end].encode())}


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


# Routes and the ledger


def groups_by_route(entry: dict[str, Any]) -> dict[str | None, list[str]]:
    """What a ledger's leaf calls a route of a corpus → the groups that it updates.

    None is the corpus's own. Others are those of later phases and its fallback's, by digest.
    """
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


def canonical(value: Any) -> str:
    """A route in RFC 8785's spelling: names sorted, numbers as ECMAScript writes them."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(name)}:{canonical(each)}" for name, each in pairs) + "}"
    if isinstance(value, float):
        demand(1e-6 <= value <= 1, "a weight that this script cannot spell")
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    return json.dumps(value, ensure_ascii=False)


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
        root = Statement(data, "trust-root")
        self.root_digest = root.digest
        self.trust = Trust(root, self.at)
        if self.given.root_digest:
            demand(root.digest == self.given.root_digest, f"it is another root, {root.digest}")
        elif not self.given.trust_root:
            self.open.append(
                f"whose trust root this is: ask its owner for it, or for its digest, {root.digest}"
            )
        self.trust.delegate(
            [Statement(each, "delegation") for each in self._lines("delegations.jsonl")]
        )
        named = f"{root.document['name']} version {root.document['version']}, {root.digest}"
        return f"{named}; {len(self.trust.authorities)} authorities"

    def attestation(self) -> str:
        """3: an operator of the trust root signed the attestation."""
        self.attested = Statement(
            self.pack.read(G + "attestation.dsse.json"), "attestation/provenance-coverage"
        )
        self.document = self.attested.document
        run = self.document["run"]
        self.operator = self.trust.signers(self.attested, "operator", [self.at])[0]
        demand(run["started"] <= run["finished"] <= self.at, "the run did not end before then")
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
        for name in ("policy.dsse.json", "credentials.jsonl", "ledger.jsonl", "ledger.checkpoint"):
            demand(f"governance/{name}" in files, f"the attestation pins no {name}")
        for name, digest in files.items():
            if name == "governance/manifest.dsse.json":
                continue  # by its statement, in step 7
            data = self._bytes(name.removeprefix("governance/"))
            demand(digest_of(data) == digest, f"{name} is not the file that was attested")
        demand(
            self._bytes("delegations.jsonl") == b"" or "governance/delegations.jsonl" in files,
            "delegations that the attestation does not pin",
        )
        known = {MODEL + name for name in (*self.attested.subjects, *files)}
        known |= {G + name for name in ("attestation.dsse.json", "ledger.witnessed")}
        for name in (*self.pack.names, *self._given_names(known)):
            held = not name.startswith(MODEL) or name in known or OUTSIDERS.fullmatch(name)
            demand(held, f"{name}: the attestation does not cover it")
        seen, absent = 0, []
        for name, digest in sorted(self.attested.subjects.items()):
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

    def _given_names(self, known: set[str]) -> list[str]:
        """Names below ``--model``, but for what no loader reads and what is let through.

        No exception is made where attested files stand, or for another spelling of one's name.
        """
        if self.given.model is None:
            return []
        let = self.given.allow_uncovered or []
        spelt = {each.casefold() for each in known}
        return [
            MODEL + name
            for name in Pack(self.given.model, "the folder of --model").names
            if reserved(name)
            or (MODEL + name).casefold() in spelt
            or not (inert(name) or any(fnmatchcase(name, glob) for glob in let))
        ]

    def policy(self) -> str:
        """5: a policy authority signed the policy, and it was in force."""
        policy = Statement(self._bytes("policy.dsse.json"), "depth-policy")
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
        self.gated = {parse(each)["corpus"] for each in self._lines("gates.jsonl")}
        self.issued: dict[str, Statement] = {}
        for line in self._lines("credentials.jsonl"):
            credential = Statement(line, "credential")
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
        manifest = Statement(self._bytes("manifest.dsse.json"), "prepare-manifest")
        self.trust.signers(manifest, "operator", [self.at])
        demand(manifest.digest == self.document["manifest"], "not the manifest that was attested")
        for entry in manifest.document["corpora"]:
            credential = self.issued.get(entry["corpus"])
            demand(
                credential is not None and entry["credential"] == credential.digest,
                f"{entry['corpus']}: another credential in the manifest",
            )
        return f"{len(manifest.document['corpora'])} corpora"

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
            demand(leaf["policy"] == self.document["policy"]["digest"], "a step of another policy")
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
        named = [name for name in self.pack.names if name.startswith(LISTS)]
        mine = {
            "attestation": {self.attested.digest},
            "policy": {self.document["policy"]["digest"]},
            "credential": {each.digest for each in self.issued.values()},
            "corpus": set(self.issued),
        }
        for name in named:
            statement = Statement(self.pack.read(name), "revocations")
            issuer = self.trust.authorities.get(statement.document["issuer"])
            demand(issuer, f"{name}: its issuer is not known")
            signed = statement.signed_by(issuer["loaded"]) if issuer else set()
            demand(issuer and len(signed) >= issuer["threshold"], f"{name}: too few keys signed it")
            for entry in statement.document["entries"]:
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
        for each in self.trust.authorities.values():
            if "minimumRevocations" in each or "maximumRevocationAgeHours" in each:
                self.open.append(f"whether the list of {each['name']} is what the root asks for")
        if not named:
            return "not checked, since the pack has no list"
        return f"{len(named)} lists; {later} entries name what the run used, from a later time"

    def _corpus_of(self, kind: str, named: str) -> str | None:
        """The corpus that an entry of a revocation list is about, if it is about one."""
        if kind == "credential":
            return next((name for name, each in self.issued.items() if each.digest == named), None)
        return named if kind == "corpus" else None

    def _bytes(self, name: str) -> bytes:
        """A governance file; one that is absent is empty where the attestation pins it so."""
        return self.pack.read(G + name) if G + name in self.pack.names else b""

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
    "from plan and policy, taint, assurance, removals, records and rows, replays, timestamps and "
    "witnesses"
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
