"""Versions found by what their attestations state, over HTTP: what is open is never absent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlmodel import Session, select

from govray.platform.client import Client
from govray.platform.store import tables, version_search
from govray.platform.store.database import open_store
from tests.support.databases import on_both
from tests.support.licensed_versions import register_all
from tests.support.listening import listening
from tests.support.people import Service, serve

BEST = "best=true&withoutLicense=copyleft&group=block.*"
"""The best validation among versions where no copyleft reached a block."""


def filled(url: str) -> None:
    engine = open_store(url, create=True)
    with Session(engine) as session:
        register_all(session, public="1.1.0")
    engine.dispose()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path_factory.mktemp('search') / 'store.db'}"
    filled(url)
    with serve(url) as service:
        yield service


def found(service: Service, query: str, kind: str = "auditor") -> list[str]:
    answer = service.client(kind).get(f"/v1/versions?model=gpt&{query}")
    assert answer.status_code == 200, answer.text
    return [each["version"] for each in answer.json()["items"]]


@on_both
def test_the_best_without_copyleft_in_a_block_on_both_databases(store_url: str) -> None:
    filled(store_url)
    with serve(store_url) as service:
        assert found(service, BEST) == ["1.1.0", "1.0.0", "1.7.0"]
        assert found(service, f"{BEST}&limit=1") == ["1.1.0"]
        assert found(service, "withoutCorpus=gamma&group=block.*&metric=loss&atMost=1.5") == [
            "1.3.0",
            "1.1.0",
        ]


def test_what_is_left_open_is_not_absent(
    searched: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small weight, an unknown licence and an unknown start, each with the better number."""
    better = {"1.2.0", "1.3.0", "1.4.0"}
    assert not better & set(found(searched, BEST))
    assert "1.2.0" in found(searched, "license=copyleft&group=block.0")
    assert "1.2.0" not in found(searched, "license=copyleft&group=block.1")
    monkeypatch.setattr(version_search, "UNKNOWN", "permissive-in-name")
    assert {"1.3.0", "1.4.0"} <= set(found(searched, BEST)), "the control"


def test_layer_groups_that_a_model_has_not_say_nothing(
    searched: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("layer.*", "block.7", "BLOCK.*"):
        assert found(searched, f"withoutLicense=commercial&group={group}") == []
        assert found(searched, f"withoutCorpus=gamma&group={group}") == []
    everything = version_search.matching
    monkeypatch.setattr(
        version_search,
        "matching",
        lambda q: ~everything(version_search.VersionSearch(license=q.license)),
    )
    assert found(searched, "withoutLicense=commercial&group=layer.*") == []


def test_paths_corpora_and_what_ran_it(searched: Service) -> None:
    assert found(searched, f"{BEST}&path=any") == ["1.0.0", "1.7.0"], "the head's came by the trunk"
    assert found(searched, "withoutCorpus=gamma&path=any&best=true") == ["1.3.0", "1.0.0", "1.7.0"]
    assert found(searched, "best=true&withoutCorpus=gamma&withoutCorpus=beta") == ["1.7.0"]
    assert len(found(searched, "assurance=selfAttested&isolation=machine")) == 8
    assert found(searched, "assurance=witnessed") == found(searched, "isolation=run") == []
    assert found(searched, "metric=loss&validatedOn=held-out&atLeast=2") == ["1.7.0", "1.0.0"]
    assert found(searched, "metric=loss&validatedOn=other") == []
    assert found(searched, "stage=production") == []
    typed = searched.client("auditor").get("/v1/versions?withoutCorpus=gama")
    assert (typed.status_code, "gama" in typed.json()["detail"]) == (422, True)


def test_pages_of_the_best_are_one_list(searched: Service) -> None:
    client, query, listed = searched.client("auditor"), f"{BEST}&model=gpt&limit=1", []
    cursor = ""
    while True:
        answer = client.get(f"/v1/versions?{query}{cursor}").json()
        listed += [each["version"] for each in answer["items"]]
        if answer["next"] is None:
            break
        cursor = f"&cursor={answer['next']}"
    assert listed == ["1.1.0", "1.0.0", "1.7.0"]


def test_only_versions_that_are_read_whole_are_found(searched: Service) -> None:
    for kind in ("public", "member", "supplier"):
        assert found(searched, "", kind) == found(searched, BEST, kind) == ["1.1.0"]
        hidden = searched.client(kind).get("/v1/versions?withoutCorpus=beta")
        assert hidden.status_code == 422, "no attestation that it reads names that corpus"
        assert found(searched, "stage=none", kind) == [], "nor is it told a stage by asking"
    assert "1.1.0" in found(searched, "stage=none")
    [shown] = searched.client("public").get("/v1/versions").json()["items"]
    assert (shown["stage"], shown["validation"]["value"]) == (None, 1.5)


def test_numbers_that_do_not_compare_have_no_best(searched: Service) -> None:
    with Session(searched.engine) as session:
        row = session.exec(
            select(tables.AttestationRow).where(tables.AttestationRow.run == "run-1.0.0")
        ).one()
        row.metric, row.goal = "accuracy", "max"
        session.add(row)
        session.commit()
        refused = searched.client("auditor").get("/v1/versions?best=true&model=gpt")
        assert (refused.status_code, "accuracy (max)" in refused.json()["detail"]) == (400, True)
        assert found(searched, "best=true&metric=accuracy") == ["1.0.0"]
        row.metric, row.goal = "loss", "min"
        session.commit()


def test_the_client_asks_it_in_one_line(searched: Service) -> None:
    with listening(searched.app) as address:
        client = Client(address, searched.tokens["auditor"])
        best = next(
            client.models.find(model="gpt", best=True, without_license="copyleft", group="block.*")
        )
    assert (best.version, best.validation and best.validation.value) == ("1.1.0", 1.5)
    assert best.validation
    assert best.validation.corpora == ["held-out"]


def test_the_page_asks_it_too(searched: Service) -> None:
    client = searched.client("auditor", accept="text/html")
    empty = ("metric", "validatedOn", "atLeast", "withoutCorpus", "stage", "assurance")
    form = "".join(f"{name}=&" for name in empty)
    page = client.get(f"/versions?model=gpt&{form}{BEST}").text
    rows = page.partition("<tbody>")[2].split("<tr>")[1:]
    assert [row.split("/models/gpt/")[1][:5] for row in rows] == ["1.1.0", "1.0.0", "1.7.0"]
    assert 'name="withoutLicense" value="copyleft" checked' in page
    assert "No version is like that" in client.get("/versions?group=layer.*").text
