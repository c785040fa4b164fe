"""A service with what everyone may knock for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from sqlmodel import Session

from govray.platform.store import role_bindings
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.role_bindings import Grant
from govray.platform.store.tables import AttestationRow
from tests.support.library import Library, library
from tests.support.people import Service
from tests.support.runs import add_runs

FOREIGN = {
    "supplier": ('"alpha"', '"beta"', '"gamma"', "adapter:gamma", ">alpha<", ">beta<", ">gamma<"),
    "other supplier": ('"acme"', "adapter:acme", ">acme<"),
}
"""What nothing that concerns both may say to one of them: the other's corpora."""


ASKED = {"contact": "rights@example.org", "text": "a text that nobody presented"}
"""What a rights holder asks."""


@dataclass(frozen=True)
class Place:
    """A library, and what the paths of the cases name in it."""

    library: Library
    names: dict[str, str]
    numbers: Iterator[int]

    @property
    def service(self) -> Service:
        return self.library.service

    def filled(self, text: str) -> str:
        for name, value in (self.names | {"n": str(next(self.numbers))}).items():
            text = text.replace(f"{{{name}}}", value)
        return text


def _tenancy(session: Session) -> str:
    """A role in the default project; its id."""
    by = ChangedBy(user="admin", at="2026-11-20T09:00:00Z")
    grant = Grant(
        subject_kind="group", subject="team", role="viewer", scope="project", place="default"
    )
    binding = role_bindings.bind(session, grant, by=by).id
    session.commit()
    return binding


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with library(tmp_path_factory.mktemp("authorisation"), cases=True) as running:
        add_runs(running.service.engine)
        narrow = running.model("narrow")
        size = narrow.ledger.size
        with Session(running.service.engine) as session:
            row = session.get_one(AttestationRow, narrow.digest)
            names = {name: running.digest(name) for name in running.shelf.models} | {
                "policy": row.policy,
                "root": row.trust_root,
                "weights": narrow.subjects[0].sha256,
                "group": narrow.attestation.domains[0][0],
                "acme record": running.record("acme", 0),
                "alpha record": running.record("alpha", 0),
                "tile": f"0/000.p/{size}",
                "binding": _tenancy(session),
                "case": running.post("admin", "/cases", json=ASKED).json()["case"],
            }
        yield Place(running, names, count(2))
