"""What the service says when lists are missing, stale, torn, or revoke what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlmodel import Session

from govray.governance.attestation import model_folder
from govray.governance.formats.keys import LocalSigner
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import Settings
from govray.platform.service.identity import revocations
from govray.platform.store.audit_log import ChangedBy
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from govray.platform.store.registry import register
from tests.support.gates import SHIPPED, gated
from tests.support.people import NOW, PAGE, Service, serve
from tests.support.world import World

FIRST = "2026-11-16T00:00:00Z"


def listed(world: World, *revoked: str, sequence: int, key: LocalSigner | None = None) -> bytes:
    entries = tuple(
        Revocation(attestation=digest, since=FIRST, reason="an adapter was removed")
        for digest in revoked
    )
    document = RevocationList(issuer="operator", sequence=sequence, issued=FIRST, entries=entries)
    return document.seal([key or world.keys.operator])


class Asking(World):
    """A deployment whose root asks for list 2 of its operator."""

    def authorities(self):  # type: ignore[no-untyped-def]
        return tuple(
            a.model_copy(update={"minimum_revocations": 2}) if a.name == "operator" else a
            for a in super().authorities()
        )


@contextmanager
def service_of(world: World, folder: Path, lists: Path) -> Iterator[tuple[Service, str, bytes]]:
    path = world.deploy(folder / "model")
    model = world.verify(path, revocations=[listed(world, sequence=2)], at=NOW)
    url = f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        index_model(session, model, trust_root=world.root, key=bytes(32), public=True)
        register(
            session,
            model="gpt",
            version="1.0.0",
            attestation=model.digest,
            by=ChangedBy(user="ada", at=FIRST),
        )
        session.commit()
    engine.dispose()
    envelope = (path / model_folder.ATTESTATION).read_bytes()
    with serve(url, revocations=(lists,), **gated(world, folder, SHIPPED)) as service:
        yield service, model.digest, envelope


def test_staleness_shows_and_a_revoked_model_is_not_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocations, "LOOK_S", 0.0)
    world, feed = Asking(), tmp_path / "operator.dsse.json"
    feed.write_bytes(listed(world, sequence=1))
    with service_of(world, tmp_path, feed) as (service, digest, envelope):
        public, engineer = service.client("public"), service.client("admin")

        def promote(stage: str = "staging"):  # type: ignore[no-untyped-def]
            return engineer.post("/v1/models/gpt/versions/1.0.0:promote", json={"stage": stage})

        def verdict(kind: str = "admin") -> str:
            page = service.client(kind, **PAGE).get("/models/gpt/1.0.0").text
            return page.partition("<h1>")[2].partition("</header>")[0]

        # Stale: everywhere, never silently.
        assert "</span>NOT CHECKED</span>" in verdict()
        assert "older than list 2" in verdict()
        answer = public.get("/v1/health")
        assert answer.json()["revocations"] == "couldNotCheck"
        assert answer.headers["govray-revocations"] == "could-not-check"
        listing = public.get("/v1/attestations")
        assert listing.headers["govray-revocations"] == "could-not-check"
        check = public.post("/v1/attestations:verify", content=envelope).json()
        assert check["outcome"] == "notChecked"
        assert "list 1 of operator is older than list 2" in check["steps"][12]["why"]
        refused = promote()
        assert refused.status_code == 422
        assert "older than list 2" in refused.text

        # Torn, forged, gone: as stale.
        for data in (feed.read_bytes()[:-9], listed(world, sequence=2, key=world.keys.archive)):
            feed.write_bytes(data)
            assert public.get("/v1/health").json()["revocations"] == "couldNotCheck"
        feed.unlink()
        assert public.get("/v1/health").json()["revocations"] == "couldNotCheck"

        # Fresh, and revoked: the list takes effect without a restart.
        feed.write_bytes(listed(world, digest, sequence=2))
        answer = public.get("/v1/health")
        assert answer.json()["revocations"] == "current"
        assert "govray-revocations" not in answer.headers
        [item] = public.get("/v1/attestations").json()["items"]
        assert item["revoked"] == FIRST
        assert "</span>REFUSED</span>" in verdict()
        assert "an adapter was removed" in verdict()
        assert "</span>REFUSED</span>" in verdict("public")
        assert "an adapter was removed" not in verdict("public")
        check = public.post("/v1/attestations:verify", content=envelope).json()
        assert check["outcome"] == "failed"
        assert check["steps"][12]["status"] == "failed"
        refused = promote()
        assert refused.status_code == 409
        assert "revoked since" in refused.text

        # Fresh, and not revoked.
        feed.write_bytes(listed(world, sequence=3))
        assert public.get("/v1/attestations").json()["items"][0]["revoked"] is None
        assert "</span>VERIFIED</span>" in verdict()
        check = public.post("/v1/attestations:verify", content=envelope).json()
        assert check["outcome"] == "partlyChecked"
        assert "revocation" not in promote().text


def test_a_root_without_a_rule_and_no_list_is_said_to_be_unchecked(tmp_path: Path) -> None:
    world = World()
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "o.dsse.json").write_bytes(listed(world, sequence=1))
    with service_of(world, tmp_path, folder) as (service, _, _):
        assert service.client("public").get("/v1/health").json()["revocations"] == "current"
    bare = create_app(Settings(store=f"sqlite:///{tmp_path / 'store.db'}"))
    answer = TestClient(bare).get("/v1/health")
    assert answer.json()["revocations"] == "notAsked"
    assert "govray-revocations" not in answer.headers
    bare.state.engine.dispose()
