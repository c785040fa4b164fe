"""A model that verifies, its disclosure, views of it, and views that were altered afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from govray.evidence.views.attestation_facts import names_of
from govray.evidence.views.audience import ALWAYS, Audience
from govray.evidence.views.disclosure import DisclosedFacts, SaltedLeaf, sign_disclosure, weights_of
from govray.evidence.views.view import ShownLeaf, VerifiedView, View, verify_view
from govray.governance.formats.statement import seal
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import VerifiedModel, verify
from tests.support.world import AT, World

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
