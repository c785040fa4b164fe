"""The file that turns cases on, and the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from govray.errors import GovrayError
from govray.governance.formats.keys import LocalSigner
from govray.platform.service.acting.case_desk import read_cases
from govray.platform.service.app import create_app
from govray.platform.service.http.settings import CaseSettings, Settings
from govray.platform.service.visible.near_records import LEAST_OVERLAP
from govray.platform.store import cases
from govray.platform.store.database import open_store
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "cases.md").read_text()


def test_the_file_of_the_page_is_one(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    path = tmp_path / "cases.yaml"
    path.write_text(shown)
    assert read_cases(path) == CaseSettings(
        key=str(tmp_path / "operator.pem"),
        corpora=tmp_path / "data" / "corpora",
        without_token=True,
        per_day=5,
    )


def test_what_the_page_says_is_so() -> None:
    assert CaseSettings(key="k").without_token is False
    assert "At most 500 cases" in PAGE
    assert cases.MOST_OPEN == 500
    assert "has 4 MiB at most" in PAGE
    assert cases.MOST_BYTES == 4 << 20
    assert "share half of the shorter text" in PAGE
    assert LEAST_OVERLAP == 0.5
    for decision in ("removed", "revoked", "refused", "nothing_found"):
        assert f"| `{decision}` |" in PAGE


@pytest.mark.parametrize("key", ["env:CASE_KEY", "command:sign", "pkcs11:object=key"])
def test_a_key_elsewhere_is_left_as_it_is(tmp_path: Path, key: str) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(f"key: {key}\ncorpora: s3://bucket/corpora\n")
    found = read_cases(path)
    assert (found.key, str(found.corpora)) == (key, "s3://bucket/corpora")


def test_a_service_without_its_key_does_not_start(tmp_path: Path) -> None:
    url, key = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "operator.pem"
    open_store(url, create=True).dispose()
    settings = Settings(store=url, cases=CaseSettings(key=str(key)))
    with pytest.raises(GovrayError):
        create_app(settings)
    key.touch(0o600)
    key.write_bytes(LocalSigner.generate().to_pem())
    create_app(settings).state.engine.dispose()
