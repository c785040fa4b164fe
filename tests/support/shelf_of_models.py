"""Several models of one organisation, with the data of two suppliers, as folders that verify.

======== ============================================ =========================================
model    corpora                                      beside
======== ============================================ =========================================
first    acme (confidential), alpha, beta, gamma
second   acme, alpha, beta, gamma                     four more steps
narrow   alpha, beta
guarded  alpha, beta                                  a later credential of beta's, confidential
======== ============================================ =========================================

``acme`` is ``acme-legal``'s; the others are ``archive``'s. The same records stand in all models.
"""

from __future__ import annotations

import atexit
import copy
import tempfile
from functools import cache
from pathlib import Path

from sqlmodel import Session

from govray.governance.policy.credential import Period
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.store.model_index import index_model
from govray.platform.store.tables import AttestationRow
from tests.support.world import World

KEY = b"the secret of a store in a test."

LATER = Period(from_="2026-02-01T00:00:00Z", until="2027-02-01T00:00:00Z")


def for_this_run(name: str) -> Path:
    """A folder that lasts as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix=f"govray-{name}-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def made_once() -> Shelf:
    """The shelf of all tests of a process that change none of its files."""
    return Shelf(for_this_run("shelf"))


class Shelf:
    """The folders of the models, below ``folder``, by name. See the module."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.folder = folder
        self.models = {
            "first": self.world.deploy(folder / "first", run="run-first"),
            "second": self._longer().deploy(folder / "second", run="run-second"),
            "narrow": self._only("alpha", "beta").deploy(folder / "narrow", run="run-narrow"),
        }
        guarded = self._only("alpha", "beta")
        guarded.credentials["beta"] = self.world.issue(
            "beta", sensitivity="confidential", valid=LATER
        )
        self.models["guarded"] = guarded.deploy(folder / "guarded", run="run-guarded")
        self.verified = cache(self._verified)

    @property
    def root(self) -> bytes:
        """The trust root's envelope."""
        return self.world.root

    def _verified(self, name: str) -> VerifiedModel:
        return self.world.verify(self.models[name])

    def index(
        self, session: Session, *names: str, public: bool | None = None
    ) -> tuple[AttestationRow, ...]:
        """Index models by name, all of them by default; not committed."""
        return tuple(
            index_model(
                session,
                self.verified(name),
                trust_root=self.root,
                key=KEY,
                public=public,
                folder=str(self.models[name]),
                secrets=self.world.secrets,
            )
            for name in names or self.models
        )

    def sha256(self, corpus: str, number: int) -> str:
        """Of a record's content."""
        records = [each for part in self.world.records[corpus] for each, _ in part]
        return records[number]

    def _longer(self) -> World:
        world = copy.copy(self.world)
        world.steps += 4
        return world

    def _only(self, *corpora: str) -> World:
        world = copy.copy(self.world)
        world.records = {c: self.world.records[c] for c in corpora}
        world.credentials = {c: self.world.credentials[c] for c in corpora}
        return world
