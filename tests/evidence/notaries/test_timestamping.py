"""Asking a timestamp authority over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import InfrastructureFailed, Malformed, Refused, UsageError
from govray.evidence.notaries import asking
from govray.evidence.notaries.asking import ask_timestamp
from govray.governance.submission.http_exchange import HttpAnswer
from tests.support.distribution import require_openssl
from tests.support.timestamp_server import Tsa


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Tsa:
    require_openssl()
    return Tsa.make(tmp_path_factory.mktemp("tsa") / "tsa")


def test_a_token_comes_back_and_verifies_at_once(tsa: Tsa, tmp_path: Path) -> None:
    with tsa.serving() as url:
        token, stamp = ask_timestamp(url, b"attestation", [tsa.named])
        assert (stamp.authority, token[:1]) == ("tsa", b"\x30")
        other = Tsa.make(tmp_path / "other")
        with pytest.raises(Refused, match="of no timestamp authority"):
            ask_timestamp(url, b"attestation", [other.named])


def test_what_is_no_authority_is_told(tsa: Tsa, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfrastructureFailed, match="does not answer"):
        ask_timestamp("http://127.0.0.1:9", b"x", [tsa.named])
    with pytest.raises(UsageError, match="no address"):
        ask_timestamp("file:///etc/passwd", b"x", [tsa.named])
    for answer, error in (
        (HttpAnswer(200, "text/html", b"<html>"), Refused),
        (HttpAnswer(302, "application/timestamp-reply", b""), Refused),
        (HttpAnswer(200, "application/timestamp-reply", b"nothing"), Malformed),
    ):
        monkeypatch.setattr(asking, "post", lambda *_, answer=answer, **__: answer)
        with pytest.raises(error):
            ask_timestamp("http://tsa.example", b"x", [tsa.named])
