"""Models whose corpora lie at hand, and a service that answers rights holders' cases about them."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session, col, select

from govray.data import corpus
from govray.data.similarity.near_copies import near_records
from govray.governance.attestation.adapter_removal import countersigned, remove_adapter_files
from govray.governance.attestation.model_attestation import without_adapter
from govray.governance.formats import canonical_json
from govray.governance.formats.statement import seal
from govray.governance.policy.corpus_description import CorpusDescription, Domains
from govray.governance.trust.revocation_list import Revocation, RevocationList
from govray.governance.verify.verifier import VerifiedModel
from govray.platform.service.http.settings import CaseSettings
from govray.platform.store.database import open_store
from govray.platform.store.model_index import index_model
from govray.platform.store.semantic_version import parse_version
from govray.platform.store.store_secret import KEY_ENV
from govray.platform.store.tables import AttestationRow, ModelRow, ModelVersion, Record, RightsCase
from tests.support.library import SUPPLIERS, operator_key
from tests.support.people import Service, serve
from tests.support.shelf_of_models import KEY
from tests.support.world import World

MODEL = "novelist"
SIZES = {"acme": 9, "alpha": 14, "beta": 12}
SECRETS = {name: hashlib.sha256(name.encode()).digest() for name in (*SIZES, "acme-again")}
CREATED = "2026-11-20T00:00:00Z"
CRAWLED = CorpusDescription(
    source="crawled",
    domains=Domains(unit="records", sizes={"example.org": 10, "novels.example": 4}, total=2),
)

_WORDS = [
    f"{a}{b}{c}"
    for a in ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "ta", "wo")
    for b in ("l", "n", "r", "st", "m")
    for c in ("a", "e", "in", "o", "ur")
]


def paragraph(corpus: str, number: int, words: int = 70) -> str:
    """A text of drawn words, its own for each record."""
    drawn = random.Random(f"{corpus} {number}")
    return " ".join(drawn.choice(_WORDS) for _ in range(words)).capitalize() + ".\n"


def reworded(text: str, every: int = 30) -> str:
    """The text with each ``every``-th word replaced."""
    words = text.split(" ")
    words[every - 1 :: every] = ["changed"] * len(words[every - 1 :: every])
    return " ".join(words)


@dataclass
class Deployed:
    """Everything but the service: models by version, corpora and keys below ``folder``."""

    folder: Path
    world: World = field(init=False)
    models: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(corpora={name: (size,) for name, size in SIZES.items()}, secrets=SECRETS)
        world = self.world
        self.texts = {
            name: [paragraph(name, number) for number in range(size)]
            for name, size in SIZES.items()
        }
        for name, texts in self.texts.items():
            tokens = [each for part in world.records[name] for _, each in part]
            hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
            world.records[name] = [list(zip(hashes, tokens, strict=True))]
            records = [(f"{n:04}", text.encode()) for n, text in enumerate(texts)]
            corpus.build(self.corpora, name, records, secret=SECRETS[name])
        world.credentials = {name: world.issue(name, **self._stated(name)) for name in SIZES}
        self.deploy("1.0.0", world, "run-first")
        self._remove("1.1.0", "acme")
        self.deploy("2.0.0", self._only("alpha", "beta"), "run-second")
        self.deploy("2.1.0", self._only("acme", "beta"), "run-third")
        again = self._only("alpha", "beta")
        again.records["acme-again"] = world.records["acme"]
        # The same leaves, so the same root, under another name.
        again.secrets = {**again.secrets, "acme-again": SECRETS["acme"]}
        again.credentials["acme-again"] = again.issue(
            "acme-again", license="LicenseRef-acme", license_category="commercial"
        )
        self.deploy("3.0.0", again, "run-fourth")
        self.key = operator_key(self.folder, world)

    @property
    def corpora(self) -> Path:
        return self.folder / "corpora"

    def _stated(self, name: str) -> dict[str, Any]:
        return {"description": CRAWLED} if name == "alpha" else {}

    def _only(self, *corpora: str) -> World:
        world = copy.copy(self.world)
        world.records = {c: self.world.records[c] for c in corpora}
        world.credentials = {c: self.world.credentials[c] for c in corpora}
        return world

    def deploy(self, version: str, world: World, run: str) -> None:
        self.models[version] = world.deploy(self.folder / version, run=run)

    def verified(self, version: str) -> VerifiedModel:
        return self.world.verify(self.models[version])

    def _remove(self, version: str, adapter: str) -> None:
        """What ``govray adapter remove`` does, to a copy of the first version."""
        self.deploy(version, self.world, "run-first")
        folder, signer = self.models[version], self.world.keys.operator
        before = self.verified(version)
        signed = countersigned(folder, before.attestation, signer)
        after = without_adapter(
            before.attestation,
            before.routes,
            adapter,
            at="2026-11-19T00:00:00Z",
            replaced={name: canonical_json.sha256(data) for name, data in signed.items()},
        )
        kept = [each for each in before.subjects if f"adapters/{adapter}/" not in each.name]
        envelope = seal(after, kept, [signer])
        remove_adapter_files(folder, adapter, envelope, accept=lambda _: None, replaced=signed)

    def revoke(self, corpus: str, *, sequence: int = 1) -> bytes:
        """The list by which the archive revokes a corpus of its own."""
        entry = Revocation(corpus=corpus, since="2026-11-20T00:00:00Z", reason="asked for")
        listed = RevocationList(
            issuer="archive", sequence=sequence, issued="2026-11-20T00:00:00Z", entries=(entry,)
        )
        return listed.seal([self.world.keys.archive])


@dataclass
class CaseWorld:
    service: Service
    deployed: Deployed
    lists: Path

    def post(self, kind: str, path: str, body: Any = None, **headers: str) -> Any:
        return self.service.client(kind, **headers).post(f"/v1/cases{path}", json=body)

    def get(self, kind: str, path: str, **headers: str) -> Any:
        return self.service.client(kind, **headers).get(f"/v1/cases{path}")

    def opened(self, kind: str = "public", **asked: Any) -> tuple[str, dict[str, str]]:
        """The number of a new case, and the header with its key."""
        answer = self.post(kind, "", {"contact": "rights@example.org"} | asked)
        assert answer.status_code == 201, answer.text
        told = answer.json()
        return told["case"], {"Govray-Case-Key": told["key"]}

    def done(self, case: str, *steps: tuple[str, Any], kind: str = "admin") -> dict[str, Any]:
        """What the last of some steps answers; all of them succeed."""
        told: dict[str, Any] = {}
        for step, body in steps:
            answer = self.post(kind, f"/{case}:{step}", body)
            assert answer.status_code == 200, answer.text
            told = answer.json()
        return told

    def row(self, case: str) -> RightsCase:
        with Session(self.service.engine) as session:
            return session.get_one(RightsCase, case)

    def trained(self, corpus: str) -> str:
        """The text of a record that steps of the first version read."""
        digest = self.deployed.verified("1.0.0").digest
        with Session(self.service.engine) as session:
            found = session.exec(
                select(Record.record).where(
                    col(Record.attestation) == digest,
                    col(Record.corpus) == corpus,
                    col(Record.step_count) > 0,
                )
            ).first()
        assert found is not None
        return self.deployed.texts[corpus][found]


@contextmanager
def case_world(folder: Path, url: str | None = None, **settings: Any) -> Iterator[CaseWorld]:
    """A service with cases over a new store below ``folder``, or at ``url``."""
    url = url or f"sqlite:///{folder / 'store.db'}"
    engine = open_store(url, create=True)
    secret = folder / "store.key"
    secret.touch(0o600)
    secret.write_bytes(KEY)
    deployed = Deployed(folder)
    with Session(engine) as session:
        session.add(ModelRow(name=MODEL, labels={}, created=CREATED, user="engineer"))
        for version in deployed.models:
            add_version(session, deployed, version)
        session.commit()
    engine.dispose()
    lists = folder / "lists"
    lists.mkdir()
    cases = {"key": str(deployed.key), "without_token": True, "per_day": 10_000}
    cases |= {"corpora": deployed.corpora} | settings.pop("cases", {})
    with (
        pytest.MonkeyPatch.context() as patch,
        serve(
            url,
            near=near_records,
            cases=CaseSettings(**cases),
            **SUPPLIERS,
            **settings,
        ) as service,
    ):
        patch.setenv(KEY_ENV, str(secret))
        yield CaseWorld(service, deployed, lists)


def add_version(session: Session, deployed: Deployed, version: str) -> None:
    """Index a model and register it. The first is public."""
    model = deployed.verified(version)
    index_model(
        session,
        model,
        trust_root=deployed.world.root,
        key=KEY,
        public=version == "1.0.0",
        folder=str(deployed.models[version]),
        secrets=deployed.world.secrets | {"acme-again": SECRETS["acme"]},
    )
    session.flush()
    number = parse_version(version)
    session.add(
        ModelVersion(
            model=MODEL,
            version=version,
            major=number.major,
            minor=number.minor,
            patch=number.patch,
            attestation=session.get_one(AttestationRow, model.digest).digest,
            stage="none",
            labels={},
            created=CREATED,
            user="engineer",
        )
    )
