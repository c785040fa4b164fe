"""``--oidc FILE`` with the file of the docs, as it stands there, against a provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from govray.cli import main
from govray.platform.store.database import open_store
from tests.support.process import application
from tests.support.provider import EXAMPLE, Provided, documented, provided


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provided]:
    with provided(tmp_path_factory.mktemp("provider")) as made:
        yield made


def test_the_documented_file_starts_a_service_that_accepts_the_provider(
    provider: Provided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(store, create=True).dispose()
    monkeypatch.setenv("SSL_CERT_FILE", str(provider.certificate))
    app = application(monkeypatch, "--store", store, "--oidc", str(provider.file))
    with TestClient(app) as client:

        def status(path: str, token: str) -> int:
            return client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code

        assert status("/v1/runs", provider.token("ml-engineers")) == 200
        assert status("/v1/audit", provider.token("ml-engineers")) == 403
        assert status("/v1/audit", provider.token("compliance")) == 200
        assert status("/v1/corpora", provider.token("suppliers", supplier="acme")) == 200
        assert status("/v1/runs", provider.token("others")) == 401
        assert status("/v1/runs", provider.token("ml-engineers", iss=EXAMPLE)) == 401


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("audience: govray\n", ""), "field 'audience': field required"),
        (("audience: govray", "audience: 7"), "field 'audience'"),
        (("role_claim", "role_claims"), "field 'role_claims'"),
        (("engineer", "owner"), "'owner' is no role"),
        ((documented(), "[1, 2]"), "object"),
        ((documented(), "issuer: [}"), ""),
        ((documented(), ""), "empty"),
    ],
)
def test_a_file_that_is_wrong_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], said: str
) -> None:
    file = tmp_path / "provider.yaml"
    file.write_text(documented().replace(*change))
    store = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(store, create=True).dispose()
    assert main(["serve", "--store", store, "--oidc", str(file)]) in (1, 2)
    told = capsys.readouterr().err
    assert said in " ".join(told.split())
    assert "Traceback" not in told
