"""A view: the part of one attestation that one audience gets, which verifies by itself.

One file of canonical JSON has the operator's signed disclosure, and the delegations that lead from
the trust root to its signer. It has the leaves that are shown, each with its inclusion proof.
Its reader needs the trust root, from its owner, and nothing else.

A view shows what its signer stated. It does not show that the signer stated what the attestation
states: that takes the model and the secret (`DisclosedFacts.require`). What is not in a view was
withheld, or was never there; the count of leaves does not tell which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue

from govray.errors import Refused
from govray.evidence.views.attestation_facts import ASSURANCE, ATTESTATION, DISCLAIMER, Fact
from govray.evidence.views.disclosure import (
    NAMES,
    PSEUDONYM,
    DisclosedFacts,
    Disclosure,
    SaltedLeaf,
)
from govray.evidence.views.withheld_names import shown
from govray.governance.attestation.model_attestation import DISCLAIMER as WORDING
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.bounds import Hex256, Natural
from govray.governance.formats.document import Document, format_time
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.statement import Sealed
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.authority import Delegation
from govray.governance.trust.trust_state import MAX_DELEGATIONS, TrustState, Verified
from govray.governance.verify.envelope_steps import check_signatures

MAX_BYTES = 64 * 1024 * 1024
MAX_ENVELOPE = 1 << 20
"""Largest disclosure or delegation in bytes."""

_Envelope = Annotated[str, Field(min_length=1, max_length=MAX_ENVELOPE)]


class ShownLeaf(Document):
    """A leaf, its place in the tree from 0, and its inclusion proof (RFC 9162, section 2.1.3)."""

    leaf: SaltedLeaf
    index: Natural
    path: Annotated[tuple[Hex256, ...], Field(max_length=22)]


class View(Document):
    """The file. Nobody signs it as a whole: each of its leaves is under the signed root."""

    schema_version: Literal["v1"] = "v1"
    disclosure: _Envelope
    delegations: Annotated[tuple[_Envelope, ...], Field(max_length=MAX_DELEGATIONS)]
    leaves: Annotated[tuple[ShownLeaf, ...], Field(min_length=1)]

    @classmethod
    def make(
        cls,
        of: DisclosedFacts,
        chosen: Iterable[int],
        disclosure: bytes,
        delegations: Sequence[bytes],
    ) -> Self:
        """The view that shows the leaves with the ``chosen`` indices.

        Args:
            of: All leaves; `DisclosedFacts.require` them of the disclosure before.
            disclosure: Its envelope, verified.
        """
        return cls(
            disclosure=disclosure.decode(),
            delegations=tuple(each.decode() for each in delegations),
            leaves=tuple(
                ShownLeaf(
                    leaf=of.leaves[index],
                    index=index,
                    path=tuple(each.hex() for each in of.path(index)),
                )
                for index in chosen
            ),
        )

    def encode(self) -> bytes:
        """The file's bytes: canonical JSON (RFC 8785)."""
        return canonical_json.encode(self.to_json())

    @classmethod
    def read(cls, data: bytes, *, where: str) -> Self:
        value = canonical_json.parse_canonical(data, limit=MAX_BYTES, where=where)
        return cls.from_json(value, where=where)


@dataclass(frozen=True)
class VerifiedView:
    """What a view shows.

    Attributes:
        trust: The root that it was checked against, with the view's delegations.
        names: Pseudonym → name, of those that may be read.
        facts: What is shown, sorted by field, corpus and group, with these names.
    """

    disclosure: Verified[Disclosure]
    trust: TrustState
    names: dict[str, str]
    facts: tuple[Fact, ...]

    @property
    def leaves(self) -> int:
        return len(self.facts) + len(self.names)

    @property
    def withheld(self) -> int:
        """How many leaves are not shown. Padding is among them."""
        return self.disclosure.document.leaves - self.leaves


def verify_disclosure(
    trust: TrustState, data: bytes, *, at: datetime, where: str
) -> Verified[Disclosure]:
    """A disclosure that an operator signed, and nobody else. Raises `Refused`: there are other
    signatures in it, or a revocation list has it."""
    envelope = Envelope.parse(data, limit=MAX_ENVELOPE, where=where)
    verified = trust.verify(Disclosure, envelope, role="operator", at=at, where=where)
    check_signatures(envelope, verified, where=where)
    _check_unrevoked(trust, verified, verified.digest, "the disclosure", at, where)
    return verified


def verify_view(view: View, anchor: TrustAnchor, *, at: datetime, where: str) -> VerifiedView:
    """What a view shows, if all of it holds.

    1. An authority with the role ``operator`` signed the disclosure, valid at ``at``, by the
       trust root and the view's delegations; nobody else did. No list revokes it.
    2. Each leaf is under the signed root, at its index. No leaf and no place stands twice.
    3. The disclaimer stands in it word for word, and no assurance level that nothing here shows.
       These and the attestation's digest are of the whole model, so each stands once. A name
       stands for a pseudonym of the format, so that no word of another fact is replaced.
    4. The attestation, if its digest is shown, is not revoked.

    Raises:
        Refused: One of these does not hold.
        CouldNotCheck: The root asks for a revocation list that is not here.
    """
    # 1
    trust = anchor.load(at=at, delegations=[each.encode() for each in view.delegations])
    disclosure = verify_disclosure(trust, view.disclosure.encode(), at=at, where=where)
    # 2
    signed = disclosure.document
    root = bytes.fromhex(signed.root.removeprefix("sha256:"))
    places = set()
    indices = set()
    for each in view.leaves:
        leaf = each.leaf
        path = [bytes.fromhex(node) for node in each.path]
        named = f"{where}, leaf {each.index} ({leaf.field})"
        try:
            merkle.verify_inclusion(leaf.hash, each.index, signed.leaves, path, root)
        except Refused as error:
            raise type(error)(
                f"it is not among what the operator signed: {error.what}",
                where=named,
                do="Get the view again from whoever made it",
            ) from None
        if each.index in indices or leaf.place in places:
            raise Refused("it stands twice", where=named)
        indices.add(each.index)
        places.add(leaf.place)
    # 3
    stated = _of_whole_model(view, where)
    if stated.get(DISCLAIMER) != WORDING:
        raise Refused("the disclaimer is missing, or its wording was changed", where=where)
    if stated.get(ASSURANCE) != "selfAttested":
        raise Refused(
            f"a view shows no more than selfAttested, it says {stated.get(ASSURANCE)!r}",
            where=where,
        )
    # 4
    if isinstance(digest := stated.get(ATTESTATION), str):
        _check_unrevoked(trust, disclosure, digest, "the attestation", at, where)
    names = _names(view, where)
    facts = [shown(each.leaf.fact, names) for each in view.leaves if each.leaf.field != NAMES]
    facts.sort(key=lambda fact: (fact.field, fact.corpus or "", fact.group or ""))
    return VerifiedView(disclosure, trust, names, tuple(facts))


def delegations_to(
    verified: Verified[Disclosure], trust: TrustState, envelopes: Iterable[bytes]
) -> tuple[bytes, ...]:
    """Of a model's delegations those that lead from the root to the signer.

    Others are left out: their names may be those of suppliers.

    Args:
        envelopes: Of the delegations that ``trust`` has.
    """
    by_name: dict[str, Sealed[Delegation]] = {
        each.document.authority.name: each for each in trust.delegations
    }
    needed = set()
    name = verified.authority.name
    while name in by_name:
        needed.add(by_name[name].digest)
        name = by_name[name].document.delegator
    found = {canonical_json.sha256(Envelope.parse(each).payload): each for each in envelopes}
    return tuple(found[digest] for digest in sorted(needed & found.keys()))


def _of_whole_model(view: View, where: str) -> dict[str, JsonValue]:
    stated = {}
    for each in view.leaves:
        leaf = each.leaf
        if leaf.field in (DISCLAIMER, ASSURANCE, ATTESTATION):
            if leaf.corpus is not None or leaf.group is not None:
                raise Refused(
                    f"{leaf.field} is stated of one corpus or layer group, and is the model's",
                    where=where,
                )
            stated[leaf.field] = leaf.value
    return stated


def _names(view: View, where: str) -> dict[str, str]:
    names = {}
    for each in view.leaves:
        leaf = each.leaf
        if leaf.field == NAMES:
            if leaf.corpus is None or not isinstance(leaf.value, str):
                raise Refused("a name is no text", where=where)
            if PSEUDONYM.fullmatch(leaf.corpus) is None:
                raise Refused(f"{leaf.corpus!r} is no pseudonym for a name", where=where)
            names[leaf.corpus] = leaf.value
    return names


def _check_unrevoked(
    trust: TrustState,
    verified: Verified[Disclosure],
    digest: str,
    what: str,
    at: datetime,
    where: str,
) -> None:
    if trust.revocations is None:
        return
    signers = [authority.name for authority in verified.authorities]
    found = trust.revocations.of_attestation(digest, signers)
    if found is not None and found.since <= at:
        raise Refused(
            f"{what} is revoked since {format_time(found.since)} ({found.reason})",
            where=where,
            do=f"That is list {found.sequence} of {found.issuer}. Ask its issuer for a new view",
        )
