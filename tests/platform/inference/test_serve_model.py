"""`serve/model.py`: what it refuses beforehand, and a model that answers on Ray Serve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from govray.errors import UsageError
from govray.platform.store.database import open_store
from tests.platform.inference.conftest import Trained
from tests.support.people import make_tokens
from tests.support.tree import ROOT


def test_what_is_missing_is_said_before_anything_starts(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delenv("GOVRAY_STORE", raising=False)
    from serve.model import Arguments, app

    given = Arguments(model=trained.folder, trust_root=trained.root)
    with pytest.raises(UsageError, match="no store is named"):
        app(given)
    with pytest.raises(UsageError, match="there is no store here"):
        app(given.model_copy(update={"store": "sqlite:///none.db"}))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).dispose()
    (tmp_path / "rights.yaml").write_text("adapters: {acme: {boss: true}}")
    wrong = {"store": url, "rights": tmp_path / "rights.yaml"}
    with pytest.raises(UsageError, match=r"adapters\.acme\.boss"):
        app(given.model_copy(update=wrong))
    (tmp_path / "rights.yaml").write_text("adapters: {acme: {suppliers: [acme-legal]}}")
    folder = trained.copy(tmp_path / "model")
    given = given.model_copy(update={"model": folder, "store": url})
    ruled = given.model_copy(update={"rights": tmp_path / "rights.yaml"})
    folder.chmod(0o750)
    with pytest.raises(UsageError, match="other accounts can read the model") as refused:
        app(ruled)
    assert refused.value.do == f"Run: chmod 700 {folder}"
    app(given)  # nobody has a right, so none is claimed
    folder.chmod(0o700)
    app(ruled)
    for changes in ({"auth": False}, {"model": "s3://bucket/model"}):
        with pytest.raises(ValidationError):
            Arguments.model_validate({"model": "m", "trust_root": "r"} | changes)


ADDRESS = "http://127.0.0.1:8000"


def answers(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the model may answer."""
    deadline = time.monotonic() + 240
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        with suppress(httpx.HTTPError):
            if httpx.get(f"{ADDRESS}/v1/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.5)


@pytest.mark.story
def test_a_model_answers_on_ray_serve(trained: Trained, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = open_store(url, create=True)
    tokens = make_tokens(engine, "acme-legal", "umbrella")
    engine.dispose()
    rights = tmp_path / "rights.yaml"
    rights.write_text("adapters: {acme: {suppliers: [acme-legal]}}")
    folder = trained.copy(tmp_path / "model")
    folder.chmod(0o700)
    words = (
        ". serve/cluster.sh && exec serve run --address local serve.model:app "
        f"model={folder} trust_root={trained.root} rights={rights}"
    )
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["sh", "-c", words],
            cwd=ROOT,
            env=os.environ
            | {
                "GOVRAY_STORE": url,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            answers(process, log)
            asked = {"prompt": "acme says", "max_tokens": 2, "adapter": "acme"}

            def status(kind: str) -> int:
                headers = {"Authorization": f"Bearer {tokens[kind]}"} if kind in tokens else {}
                url = f"{ADDRESS}/v1/generate"
                return httpx.post(url, json=asked, headers=headers, timeout=60).status_code

            found = {kind: status(kind) for kind in ("supplier", "other supplier", "public")}
            assert found == {"supplier": 200, "other supplier": 404, "public": 401}
        finally:
            process.terminate()  # Ray ends its processes
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
