"""What an operator signs once, so that any part of an attestation can be shown by itself.

Each fact becomes a leaf: canonical JSON (RFC 8785) of its field, corpus, group and value, with a
salt of 128 bits. The signed document has the Merkle root over the leaves (RFC 9162) and their
count. Salts and pseudonyms are HMAC-SHA-256 under one secret, keyed to the attestation's digest.
So nobody stores them, and another attestation has others.

Invariants:
    * Without the secret a leaf cannot be tested against a guess, nor a pseudonym.
    * Leaves stand in the order of their hashes. An index tells nothing of what stands beside it.
    * Leaves of padding fill the tree up to a power of two. A count tells no more than that power.
    * The document does not name the attestation's digest, against which a guess of all that is
      withheld could be tested. It is about the weights' file. The digest is a fact like others.

With the secret s and the attestation's digest d as text, all follows by HMAC-SHA-256:

* k = HMAC(s, ``"govray disclosure v1\\0"`` || d).
* A salt is the first 16 bytes of HMAC(k, ``"salt\\0"`` || canonical ``[field, corpus, group]``), in
  hex. What is absent is ``""`` there, and a corpus has its pseudonym.
* A pseudonym is ``name-`` and the first 16 bytes of HMAC(k, ``"name\\0"`` || name), in hex. A leaf
  with the field ``names`` has it as corpus, and the name as value.

Leaves of padding have the field ``padding``, the value ``""`` and a number as group. They fill the
tree to at least 64.

Whether the leaves say what the attestation says, only `DisclosedFacts` of the model can show.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, JsonValue

from govray.errors import Refused, UsageError
from govray.evidence.views.attestation_facts import Fact, facts_of, names_of
from govray.evidence.views.withheld_names import format_words, hidden
from govray.governance.attestation import model_folder
from govray.governance.attestation.model_attestation import Attestation
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.bounds import ShortText
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.formats.keys import Signer
from govray.governance.formats.statement import Subject, seal
from govray.governance.verify.verifier import VerifiedModel
from govray.storage.private_file import OpenToOthers, read_private

MAX_LEAVES = 1 << 22
NAMES = "names"
"""Field of the leaves that say which name a pseudonym stands for."""

PSEUDONYM = re.compile(r"name-[0-9a-f]{32}")

PADDING = "padding"
_LEAST = 64  # leaves: small models do not differ in their count
_SALT = 16  # bytes


class Disclosure(Document):
    """The predicate; its subject is the model's file of weights.

    Attributes:
        leaves: How many there are, padding among them.
        root: Their Merkle root.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/attestation/disclosure/v1"

    leaves: Annotated[int, Field(ge=1, le=MAX_LEAVES)]
    root: Digest


class SaltedLeaf(Document):
    """A fact with its salt, names replaced by pseudonyms."""

    field: ShortText
    corpus: Name | None = None
    group: ShortText | None = None
    value: JsonValue
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

    @property
    def fact(self) -> Fact:
        """The fact, as it was committed to."""
        return Fact(self.field, self.value, self.corpus, self.group)

    @property
    def place(self) -> tuple[str, str, str]:
        """What no two leaves of one disclosure share."""
        return (self.field, self.corpus or "", self.group or "")

    @property
    def hash(self) -> bytes:
        """The leaf's hash in the tree, 32 bytes."""
        return merkle.leaf_hash(canonical_json.encode(self.to_json()))


@dataclass(frozen=True)
class DisclosedFacts:
    """All leaves of one attestation under one secret.

    Attributes:
        leaves: In the order of the tree, padding included.
        facts: Of each leaf the fact, as the attestation has it.
        pseudonyms: Name → pseudonym, of every name that can be withheld.
    """

    leaves: tuple[SaltedLeaf, ...]
    facts: tuple[Fact, ...]
    pseudonyms: dict[str, str]

    @classmethod
    def of(cls, attestation: Attestation, digest: str, secret: bytes) -> Self:
        """The leaves of an attestation whose statement has this digest. Raises `Refused`: it has
        more facts than a disclosure holds."""
        key = hmac.digest(secret, b"govray disclosure v1\0" + digest.encode(), "sha256")
        names = names_of(attestation) - format_words() - set(attestation.base_groups)
        pseudonyms = {name: f"name-{_derived(key, b'name', name)}" for name in sorted(names)}
        facts = list(facts_of(attestation, digest))
        committed = [hidden(fact, pseudonyms) for fact in facts]
        for name, pseudonym in pseudonyms.items():
            facts.append(Fact(NAMES, name, corpus=name))
            committed.append(Fact(NAMES, name, corpus=pseudonym))
        if len(facts) > MAX_LEAVES:
            raise Refused(
                f"{len(facts)} facts are more than a disclosure holds, {MAX_LEAVES}",
                where="attestation",
            )
        padding = [
            Fact(PADDING, "", group=str(i))
            for i in range(max(_LEAST, 1 << (len(facts) - 1).bit_length()) - len(facts))
        ]
        leaves = [_leaf(key, fact) for fact in (*committed, *padding)]
        order = sorted(zip(leaves, (*facts, *padding), strict=True), key=lambda each: each[0].hash)
        return cls(tuple(each[0] for each in order), tuple(each[1] for each in order), pseudonyms)

    @property
    def document(self) -> Disclosure:
        """What is signed of them."""
        return Disclosure(
            leaves=len(self.leaves), root="sha256:" + self._subtree(0, len(self.leaves)).hex()
        )

    def path(self, index: int) -> tuple[bytes, ...]:
        return merkle.inclusion_path(index, len(self.leaves), self._subtree)

    @cached_property
    def _subtree(self) -> merkle.Subtree:
        hashes = [leaf.hash for leaf in self.leaves]

        @cache
        def subtree(start: int, stop: int) -> bytes:
            if stop - start == 1:
                return hashes[start]
            middle = (start + stop) // 2  # the count is a power of two
            return merkle.node_hash(subtree(start, middle), subtree(middle, stop))

        return subtree

    def require(self, document: Disclosure, *, where: str) -> None:
        """Return if ``document`` commits to just these leaves. Raises `Refused`: it is of another
        attestation, or under another secret."""
        if document != self.document:
            raise Refused(
                "it does not commit to what this model's attestation states, under this secret",
                where=where,
                do="Give the model and the secret that it was made with. If you did, its signer "
                "stated something else",
            )


def disclosed_facts(model: VerifiedModel, secret: bytes) -> DisclosedFacts:
    """The leaves of a verified model's attestation. Raises as `DisclosedFacts.of`."""
    return DisclosedFacts.of(model.attestation, model.digest, secret)


def sign_disclosure(model: VerifiedModel, secret: bytes, signer: Signer) -> bytes:
    """The envelope of a model's disclosure. Verify it as others will, before handing it out. Raises
    `Refused`: the model has no file of weights; or as `DisclosedFacts.of`."""
    return seal(disclosed_facts(model, secret).document, [weights_of(model)], [signer])


def weights_of(model: VerifiedModel) -> Subject:
    for subject in model.subjects:
        if subject.name == model_folder.WEIGHTS:
            return subject
    raise Refused("the attestation is about no file of weights", where=model_folder.WEIGHTS)


def _leaf(key: bytes, fact: Fact) -> SaltedLeaf:
    place: list[Any] = [fact.field, fact.corpus or "", fact.group or ""]
    salt = _derived(key, b"salt", canonical_json.encode(place).decode())
    return SaltedLeaf(
        field=fact.field, corpus=fact.corpus, group=fact.group, value=fact.value, salt=salt
    )


def _derived(key: bytes, use: bytes, of: str) -> str:
    """128 bits in hex that only the key's holder can compute."""
    return hmac.digest(key, use + b"\0" + of.encode(), "sha256")[:_SALT].hex()


SECRET_BYTES = 32


def read_secret(path: Path) -> bytes:
    """The secret in a file: 32 bytes, which open every leaf.
    Raises `UsageError`: it cannot be read, has another length, or others can read it."""
    try:
        secret = read_private(path, SECRET_BYTES + 1)
    except OpenToOthers as error:
        raise UsageError(
            "the secret can be read by others", where=str(path), do=error.remedy
        ) from None
    except OSError as error:
        raise UsageError(
            f"the secret cannot be read: {error.strerror}",
            where=str(path),
            do="Name the one that the disclosure was made with",
        ) from None
    if len(secret) != SECRET_BYTES:
        raise UsageError(
            f"a secret has {SECRET_BYTES} bytes",
            where=str(path),
            do="Name the one that the disclosure was made with",
        )
    return secret
