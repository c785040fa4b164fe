"""Conformance vectors: every kind of model × every attack → the step that must refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.governance.attestation import model_folder
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.keys import LocalSigner
from govray.governance.policy.corpus_description import CorpusDescription
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.trust.authority import Authority
from tests.conformance.attacks import CASES, PASSING, Attack, Case, Given, Insider, reattest
from tests.support.beaconed import Beaconed
from tests.support.chat_world import ChatWorld
from tests.support.committee import Committee
from tests.support.delegating import Delegating
from tests.support.monitored_world import SECTION, Monitored, from_step
from tests.support.stated_world import Stated
from tests.support.world import POLICY, World, write

Made = tuple[World, Path]

UPPER = '{layers: {"blocks[0.5:]": 1, final_norm: 0.3, head: 1}}'
PHASED = POLICY.replace(UPPER, f"{UPPER[:-1]}, phases: [{{from_step: 4, layers: {{all: 0.5}}}}]}}")
NARROW = """  narrow: {layers: {"blocks[0.5:]": 0.5, head: 1}, adapter: "{corpus}", rank: 2}
rules:
"""


class Board(Committee):
    """Once the model is there, two sign what is attested of it."""

    def attest(self, folder: Path, *given: Any, **more: Any) -> None:
        again = (folder / model_folder.ATTESTATION).exists()
        super().attest(folder, *given, **more)
        if again:
            path = folder / model_folder.ATTESTATION
            path.write_bytes(Envelope.parse(path.read_bytes()).cosign([self.second]))


class NightShift(Delegating):
    """All that the operator signs is signed by its delegate."""

    def __init__(self) -> None:
        super().__init__()
        self.day, self.keys.operator = self.keys.operator, self.night

    def authorities(self) -> tuple[Authority, ...]:
        named = {self.keys.operator.public_key: getattr(self, "day", self.keys.operator).public_key}
        return tuple(
            each.model_copy(update={"keys": tuple(named.get(key, key) for key in each.keys)})
            for each in super().authorities()
        )


def plain(folder: Path) -> Made:
    world = World()
    return world, world.deploy(folder)


def phased(folder: Path) -> Made:
    """Corpus gamma reaches all layers from step 4 on."""
    world = World(corpora={"acme": (30,), "alpha": (30,), "gamma": (30,)}, steps=12)
    world.policy_text = PHASED
    world.policy = read_policy(PHASED).seal(world.keys.compliance)
    return world, world.deploy(folder)


def rerouted(folder: Path) -> Made:
    """Corpus alpha was sent to a narrower profile with an adapter."""
    text = POLICY.replace("rules:\n", NARROW) + SECTION.replace("nothing}", "narrow}")
    world = Monitored(deviations=from_step("alpha", 6)).under(text)
    return world, world.run(folder)


def committed(folder: Path) -> Made:
    """Gamma's records are under a commitment."""
    world = World(secrets={"gamma": bytes(range(32))})
    return world, world.deploy(folder)


def described(folder: Path) -> Made:
    """Alpha's credential says more of it."""
    world = World()
    stated = {"source": "crawled", "optOut": "honoured", "languages": ["en", "fr"]}
    alpha = world.issue("alpha", description=CorpusDescription.from_json(stated))
    world.credentials["alpha"] = alpha
    return world, world.deploy(folder)


def averaged(folder: Path) -> Made:
    """The run kept an average of its weights, and other libraries load the model."""
    world, _ = plain(folder)
    write(folder / model_folder.EMA, (folder / model_folder.WEIGHTS).read_bytes())
    for name in model_folder.LOADER_FILES:
        write(folder / name, b"{}")
    reattest()(world, folder)
    return world, folder


def conversations(folder: Path) -> Made:
    world = ChatWorld()
    return world, world.model(folder)


def removed(folder: Path) -> Made:
    """Everything is stated that may be; acme's adapter was replayed without, then removed."""
    world = Stated()
    return world, world.model(folder)


def delegated(folder: Path) -> Made:
    world = NightShift()
    return world, world.deploy(folder)


def two_of_three(folder: Path) -> Made:
    """Two of the operator's three keys must sign."""
    world = Board()
    return world, world.cosigned(folder)


def on_a_module(folder: Path) -> Made:
    """The operator's key is a P-256 key, as of a module that has no other."""
    world = World()
    world.keys.operator = LocalSigner.generate("ecdsa-p256")
    world.root = world.sign_root()
    return world, world.deploy(folder)


def by_beacon(folder: Path) -> Made:
    """A beacon chose what the reserve holds."""
    world = Beaconed()
    return world, world.deploy(folder)


ALONE = (plain, committed, described, averaged, phased, delegated, on_a_module, by_beacon)
"""Kinds that `World.deploy` alone deploys again."""

KINDS = (*ALONE, conversations, rerouted, removed, two_of_three)

WITHOUT: dict[Callable[[Path], Made], set[str]] = {
    phased: {"credential by an issuer of other corpora"},  # there is no beta
    removed: {
        "adapter tensor missing",
        "adapter renamed",
        "adapter deleted",
        "removal of an adapter that is there",
    },
    # Pinned by its statement; and there are two hints.
    two_of_three: {"manifest part dropped on disk", "another manifest", "key hint changed"},
}
"""Attacks that some kind of model has not: what they change isn't there."""


@dataclass(frozen=True)
class Vector:
    """A folder, what is given beside it, and the step of `govray verify` that refuses it."""

    name: str
    folder: Path
    world: World
    given: Given
    case: Case | None
    step: int | None

    @property
    def root(self) -> bytes:
        return self.given.root or self.world.root


def vectors(folder: Path, *, every: bool = False) -> Iterator[Vector]:
    """Each attack on the plain model and on one of another kind; or ``every`` on each kind."""
    for i, kind in enumerate(KINDS):
        place = folder / kind.__name__
        world, model = kind(place / "untouched" / "model")
        for j, (name, attack) in enumerate(PASSING):
            if kind is plain or j == 0:
                attacked, given = _attacked(world, model, attack, place / f"passing-{j}")
                yield Vector(f"{kind.__name__}: {name}", attacked, world, given, None, None)
        for j, case in enumerate(CASES):
            again = isinstance(case.attack, Insider) or not case.without_records
            if (again and kind not in ALONE) or case.name in WITHOUT.get(kind, ()):
                continue
            if kind is plain or every or j % (len(KINDS) - 1) == i - 1:
                attacked, given = _attacked(world, model, case.attack, place / str(j))
                step = int(case.step.split()[1]) if case.step else 0
                summary = step if case.without_records else None
                yield Vector(f"{kind.__name__}: {case.name}", attacked, world, given, case, summary)


def _attacked(world: World, model: Path, attack: Attack, place: Path) -> tuple[Path, Given]:
    copy = Path(shutil.copytree(model, place / "model"))
    return copy, attack(world, copy) or Given()
