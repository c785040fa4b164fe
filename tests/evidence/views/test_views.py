"""Views: they show what was asked, verify by themselves, and tell no withheld name."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from govray.errors import Refused, Untrusted, UsageError
from govray.evidence.views import audience, view
from govray.evidence.views.attestation_facts import facts_of, names_of
from govray.evidence.views.audience import ALWAYS, Audience
from govray.evidence.views.disclosure import DisclosedFacts, SaltedLeaf, sign_disclosure, weights_of
from govray.evidence.views.view import (
    ShownLeaf,
    VerifiedView,
    View,
    delegations_to,
    verify_disclosure,
    verify_view,
)
from govray.governance.attestation.model_attestation import DISCLAIMER
from govray.governance.formats import canonical_json, merkle
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.statement import seal
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.trust.authority import Authority, Delegation
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.governance.trust.trust_state import TrustState
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, FAR, World

SECRET = bytes(range(32))
FIELDS = ("run", "corpora.credentialClass.licenseCategory", "coverage", "taint", "levels", "counts")


class ViewShelf:
    """A model that verifies, its disclosure, and views of it."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.model: VerifiedModel = verify(
            self.world.deploy(folder), trust_root=TrustAnchor(self.world.root), at=AT
        )
        self.facts = DisclosedFacts.of(self.model.attestation, self.model.digest, SECRET)
        self.names = names_of(self.model.attestation)
        self.signed = sign_disclosure(self.model, SECRET, self.world.keys.operator)

    def view(self, *, by: bytes | None = None, **asked: Any) -> View:
        asked = {"fields": FIELDS} | asked
        chosen = Audience(**asked).choose(self.facts, self.names, where="buyer.yaml")
        return View.make(self.facts, chosen, by or self.signed, ())

    def verified(self, view: View, *lists: bytes) -> VerifiedView:
        anchor = TrustAnchor(self.world.root, lists)
        return verify_view(View.read(view.encode(), where="view"), anchor, at=AT, where="view")

    def stated(self, *others: SaltedLeaf) -> View:
        """A view of what every view shows, and of what its signer states beside that."""
        always = [each for each in self.facts.leaves if each.field in ALWAYS]
        leaves = [*always, *others]
        leaves += [
            SaltedLeaf(field="padding", group=str(i), value="", salt="00" * 16)
            for i in range(8 - len(leaves))
        ]
        leaves.sort(key=lambda each: each.hash)
        of = DisclosedFacts(tuple(leaves), (), {})
        signed = seal(of.document, [weights_of(self.model)], [self.world.keys.operator])
        return View.make(of, range(len(leaves)), signed, ())


def leaf_of(
    field: str, value: Any, corpus: str | None = None, group: str | None = None
) -> SaltedLeaf:
    return SaltedLeaf(field=field, value=value, corpus=corpus, group=group, salt="ab" * 16)


FALSE: dict[str, SaltedLeaf] = {
    "another disclaimer": leaf_of("disclaimer", "All of it is lawful.", group="block.0"),
    "another level": leaf_of("assuranceLevel", "reproduced", corpus="alpha"),
    "a name for a word of the disclaimer": leaf_of("names", "does", corpus="cannot"),
    "a name for the level": leaf_of("names", "reproduced", corpus="selfAttested"),
}
"""What an operator may sign, and no view may show."""


Change = Callable[[View], View]


def at_leaf(**changed: Any) -> Change:
    """Changes the first leaf that not every view shows: which is first follows from its salt."""

    def change(view: View) -> View:
        leaves = list(view.leaves)
        number = next(i for i, each in enumerate(leaves) if each.leaf.field not in ALWAYS)
        leaf = leaves[number].leaf.model_copy(update=changed)
        leaves[number] = leaves[number].model_copy(update={"leaf": leaf})
        return view.model_copy(update={"leaves": tuple(leaves)})

    return change


def at_proof(number: int, change: Callable[[ShownLeaf], dict[str, Any]]) -> Change:
    def changed(view: View) -> View:
        leaves = list(view.leaves)
        leaves[number] = leaves[number].model_copy(update=change(leaves[number]))
        return view.model_copy(update={"leaves": tuple(leaves)})

    return changed


ALTERED: dict[str, Change] = {
    "value": at_leaf(value="another"),
    "salt": at_leaf(salt="00" * 16),
    "field": at_leaf(field="nothing"),
    "group": at_leaf(group="nowhere"),
    "corpus": at_leaf(corpus="nobody"),
    "index": at_proof(0, lambda each: {"index": each.index ^ 1}),
    "index beyond": at_proof(0, lambda each: {"index": 256}),
    "no path": at_proof(0, lambda each: {"path": ()}),
    "longer path": at_proof(0, lambda each: {"path": (*each.path, "00" * 32)}),
    "path": at_proof(0, lambda each: {"path": ("00" * 32, *each.path[1:])}),
    "another leaf's path": lambda view: at_proof(0, lambda each: {"path": view.leaves[1].path})(
        view
    ),
    "twice": lambda view: view.model_copy(update={"leaves": (*view.leaves, view.leaves[0])}),
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> ViewShelf:
    return ViewShelf(tmp_path_factory.mktemp("shelf") / "model")


def test_a_view_shows_what_the_attestation_states(shelf: ViewShelf) -> None:
    found = shelf.verified(shelf.view(names=("*",)))
    stated = {
        (f.field, f.corpus, f.group): f.value
        for f in facts_of(shelf.model.attestation, shelf.model.digest)
    }
    assert {f.field for f in found.facts} > {"run.id", "coverage", "taint", "levels", "disclaimer"}
    assert all(stated[f.field, f.corpus, f.group] == f.value for f in found.facts)
    [coverage] = [c for c in shelf.model.attestation.coverage if c.corpus == "acme"]
    assert stated["coverage", "acme", "adapter:acme"]["tokens"] == str(coverage.tokens)
    assert found.leaves + found.withheld == len(shelf.facts.leaves)
    assert found.disclosure.subjects == (weights_of(shelf.model),)


def test_every_field_of_the_attestation_is_in_a_fact(shelf: ViewShelf) -> None:
    facts = facts_of(shelf.model.attestation, shelf.model.digest)
    places = [(f.field, f.corpus, f.group) for f in facts]
    assert len(set(places)) == len(places)
    stated = set(shelf.model.attestation.to_json())
    assert {f.field.partition(".")[0] for f in facts} == stated | {"attestation", "counts"}
    # Each text of the attestation stands in some fact: nothing was dropped on the way.
    texts = set(re.findall(r'"((?:[^"\\]|\\.)+)"', json.dumps([f.__dict__ for f in facts])))
    words = set(re.findall(r'"((?:[^"\\]|\\.)+)"', json.dumps(shelf.model.attestation.to_json())))
    structure = {"group", "name", "corpus", "corpora", "credentialClass", *stated}
    members = {f.field.rpartition(".")[2] for f in facts}
    assert words - texts - structure - members == set()


def stands(names: Sequence[str], text: str) -> set[str]:
    return {n for n in names if re.search(rf"(?<![a-z0-9]){re.escape(n)}(?![a-z0-9])", text, re.I)}


def every_field(shelf: ViewShelf, **asked: Any) -> tuple[set[str], set[str], set[str]]:
    """Names that stand in views of single fields, the fields of these, and those refused."""
    found: set[str] = set()
    leaking, refused = set(), set()
    for field in sorted({f.field for f in shelf.facts.facts} - {"padding", "names"}):
        try:
            view = shelf.view(fields=(field,), **asked)
        except UsageError:
            refused.add(field)
            continue
        leaves = [each.to_json() for each in view.leaves if each.leaf.field != "disclaimer"]
        if here := stands(sorted(shelf.names), json.dumps(leaves)):
            found |= here
            leaking.add(field)
    return found, leaking, refused


def test_no_field_tells_a_withheld_name(shelf: ViewShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shelf.names == {"acme", "alpha", "beta", "gamma", "delta"}
    found, _, refused = every_field(shelf)
    assert found == set()
    assert refused == {
        *("attestation", "manifest", "ledger.root", "files", "plan.manifest", "plan.streams"),
        *("corpora.credential", "corpora.credentialClass.license"),
    }
    # Control: without the second look a licence tells a name, and with all names each is told.
    with monkeypatch.context() as patch:
        patch.setattr(audience, "shows", lambda fact, names: None)
        assert every_field(shelf)[:2] == ({"acme"}, {"corpora.credentialClass.license"})
    assert every_field(shelf, names=("*",))[0] == shelf.names
    assert every_field(shelf, names=("*",))[2] == set()


def test_a_pseudonym_stands_for_one_name_in_all_facts(shelf: ViewShelf) -> None:
    found = shelf.verified(shelf.view(fields=(*FIELDS, "adapters"), names=("alpha",)))
    pseudonym = shelf.facts.pseudonyms["acme"]
    assert found.names == {shelf.facts.pseudonyms["alpha"]: "alpha"}
    assert {f.field for f in found.facts if f.corpus == pseudonym} == {
        *("corpora.credentialClass.licenseCategory", "coverage", "taint", "levels")
    }
    [adapter] = [f for f in found.facts if f.field == "adapters"]
    assert (adapter.group, adapter.value["corpora"]) == (f"adapter:{pseudonym}", [pseudonym])


def test_no_digest_is_shown_that_tests_a_guess(
    shelf: ViewShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attestation's digest is the case: whoever knows all but a name could try names."""
    with pytest.raises(UsageError, match="a guess of a withheld name"):
        shelf.view(fields=("attestation",), names=("alpha",))
    monkeypatch.setattr(audience, "_guessable", lambda fact: False)
    assert shelf.model.digest in shelf.view(fields=("attestation",)).encode().decode()


def test_the_root_follows_from_the_docstring_alone(shelf: ViewShelf) -> None:
    """That of disclosure.py, read by other code: hmac, json, and the tree by recursion."""
    key = hmac.digest(SECRET, b"govray disclosure v1\0" + shelf.model.digest.encode(), "sha256")

    def derived(use: str, text: str) -> str:
        return hmac.digest(key, f"{use}\0{text}".encode(), "sha256")[:16].hex()

    def mth(hashes: list[bytes]) -> bytes:
        if len(hashes) == 1:
            return hashes[0]
        half = len(hashes) // 2
        return hashlib.sha256(b"\1" + mth(hashes[:half]) + mth(hashes[half:])).digest()

    hashes = []
    for leaf, fact in zip(shelf.facts.leaves, shelf.facts.facts, strict=True):
        place = json.dumps([leaf.field, leaf.corpus or "", leaf.group or ""], separators=(",", ":"))
        assert leaf.salt == derived("salt", place)
        if leaf.field == "names":
            assert leaf.corpus == "name-" + derived("name", str(fact.value))
        hashes.append(hashlib.sha256(b"\0" + canonical_json.encode(leaf.to_json())).digest())
    assert shelf.facts.document.root == "sha256:" + mth(sorted(hashes)).hex()
    assert shelf.facts.document.leaves == len(hashes) == 256


def test_nothing_repeats_from_which_a_guess_could_be_tested(shelf: ViewShelf) -> None:
    salts = {leaf.salt for leaf in shelf.facts.leaves}
    assert len(salts) == len(shelf.facts.leaves)
    attestation, digest = shelf.model.attestation, shelf.model.digest
    again = DisclosedFacts.of(attestation, digest, SECRET)
    assert again.document == shelf.facts.document  # control: the same input, the same leaves
    for other in (
        DisclosedFacts.of(attestation, digest, bytes(32)),
        DisclosedFacts.of(attestation, "sha256:" + "0" * 64, SECRET),
    ):
        assert not salts & {leaf.salt for leaf in other.leaves}
        assert not set(other.pseudonyms.values()) & set(shelf.facts.pseudonyms.values())


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_view_is_refused(shelf: ViewShelf, what: str) -> None:
    view = shelf.view()
    shelf.verified(view)  # control
    with pytest.raises(Refused):
        shelf.verified(ALTERED[what](view))


def test_it_is_the_proof_that_refuses(shelf: ViewShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merkle, "verify_inclusion", lambda *_: None)
    found = shelf.verified(at_leaf(group="nowhere")(shelf.view()))
    assert found.facts


@pytest.mark.parametrize("what", FALSE)
def test_a_signer_states_nothing_else_of_the_whole_model(
    shelf: ViewShelf, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.verified(shelf.stated(leaf_of("coverage", "x", "alpha", "block.0")))  # control
    with pytest.raises(Refused, match=r"is stated of one|no pseudonym"):
        shelf.verified(shelf.stated(FALSE[what]))
    # Control: without the two demands the view shows what is false.
    monkeypatch.setattr(view, "PSEUDONYM", re.compile(".*"))
    monkeypatch.setattr(view, "_of_whole_model", by_field)
    shown = {f.value for f in shelf.verified(shelf.stated(FALSE[what])).facts}
    assert shown != {DISCLAIMER, "selfAttested", ""}


def by_field(view: View, where: str) -> dict[str, Any]:
    """What is of the whole model wins, wherever the hashes of leaves put it."""
    leaves = [each.leaf for each in view.leaves]
    leaves.sort(key=lambda leaf: leaf.corpus is None and leaf.group is None)
    return {leaf.field: leaf.value for leaf in leaves}


def test_only_an_operator_signs(shelf: ViewShelf) -> None:
    keys = shelf.world.keys
    for signer in (keys.auditor, keys.compliance[0], LocalSigner.generate()):
        signed = sign_disclosure(shelf.model, SECRET, signer)
        with pytest.raises(Untrusted):
            shelf.verified(shelf.view(by=signed))
    both = seal(
        shelf.facts.document, [weights_of(shelf.model)], [keys.operator, LocalSigner.generate()]
    )
    with pytest.raises(Refused, match="other than the signer's"):
        shelf.verified(shelf.view(by=both))
    attestation = shelf.model.path / "governance" / "attestation.dsse.json"
    other = shelf.view(by=attestation.read_bytes())
    with pytest.raises(Refused, match="predicate type"):
        shelf.verified(other)


def test_delegations_to_the_signer_travel_and_no_others(shelf: ViewShelf) -> None:
    world, night = shelf.world, LocalSigner.generate()
    delegation = Delegation(
        delegator="operator",
        authority=Authority(
            name="night", role="operator", keys=(night.public_key,), threshold=1, expires=FAR
        ),
    )
    envelopes = [*world.delegations, delegation.seal([world.keys.operator])]
    trust = TrustState.load(world.root, at=AT, delegations=envelopes)
    signed = sign_disclosure(shelf.model, SECRET, night)
    verified = verify_disclosure(trust, signed, at=AT, where="disclosure")
    needed = delegations_to(verified, trust, envelopes)
    assert needed == (envelopes[-1],)
    without = shelf.view(by=signed)
    with pytest.raises(Untrusted):
        shelf.verified(without)
    found = shelf.verified(without.model_copy(update={"delegations": (needed[0].decode(),)}))
    assert found.disclosure.authority.name == "night"


def revoking(shelf: ViewShelf, digest: str, since: str) -> bytes:
    entry = Revocation(attestation=digest, since=since, reason="a wrong licence")
    listed = RevocationList(
        issuer="operator", sequence=1, issued="2026-11-15T00:00:00Z", entries=(entry,)
    )
    return listed.seal([shelf.world.keys.operator])


def test_a_revoked_disclosure_or_attestation_ends_its_views(shelf: ViewShelf) -> None:
    view = shelf.view(fields=("attestation",), names=("*",))
    disclosure = shelf.verified(view).disclosure.digest
    for digest in (disclosure, shelf.model.digest):
        with pytest.raises(Refused, match="is revoked since"):
            shelf.verified(view, revoking(shelf, digest, "2026-11-14T00:00:00Z"))
    shelf.verified(view, revoking(shelf, "sha256:" + "0" * 64, "2026-11-14T00:00:00Z"))


def test_another_attestation_does_not_fit_a_disclosure(shelf: ViewShelf) -> None:
    told = shelf.model.attestation.model_copy(update={"coverage": ()})
    lie = DisclosedFacts.of(told, shelf.model.digest, SECRET)
    with pytest.raises(Refused, match="does not commit to what this model's attestation states"):
        shelf.facts.require(lie.document, where="disclosure")
    shelf.facts.require(shelf.facts.document, where="disclosure")
