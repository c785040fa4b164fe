"""``govray runs tensorboard`` and its like, on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.process import COMMAND


@pytest.mark.story
def test_a_verb_prints_an_address_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    words = ["runs", "tensorboard", "--storage", str(tmp_path), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
        assert "TensorBoard" in httpx.get(url, follow_redirects=True, timeout=60).text
        bare = httpx.get(url.partition("?")[0], timeout=60)
        assert "TensorBoard" not in bare.text  # it sends to a page that asks for the token
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
