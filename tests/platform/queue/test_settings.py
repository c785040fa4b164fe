"""``queue.yaml``: read strictly, with errors that name the line, and no token in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from govray.errors import Refused
from govray.platform.queue.placement import Slot
from govray.platform.queue.settings import Queue, read_queue

GOOD = """\
address: http://head:8265/
storage: /shared/runs
store: sqlite:///govray.db
pools:
  default: {slots: 8}
  gpu: {slots: 2, labels: {pool: gpu}, cpus: 2, gpus: 1, memory_gb: 4}
projects:
  research: {share: 2, max_slots: 6}
  evaluation: {max_slots: {gpu: 1}}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "queue.yaml"
    path.write_text(text)
    return path


def test_the_file_says_pools_and_limits(tmp_path: Path) -> None:
    queue = read_queue(written(tmp_path, GOOD))
    assert queue.address == "http://head:8265"
    assert queue.limits.pools == {"default": 8, "gpu": 2}
    assert queue.slots["gpu"] == Slot(labels={"pool": "gpu"}, cpus=2.0, gpus=1.0, memory=4 * 10**9)
    assert queue.slots["default"] == Slot(cpus=1.0)  # anywhere
    research, evaluation = (queue.limits.project(name) for name in ("research", "evaluation"))
    assert (research.share, research.most("gpu")) == (2.0, 6)
    assert (evaluation.share, evaluation.most("gpu"), evaluation.most("default")) == (1.0, 1, None)
    assert queue.limits.project("nobody").most("gpu") is None
    assert (queue.retries.most, queue.working_dir) == (5, None)


def test_a_token_is_read_from_a_file_of_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    token = tmp_path / "token"
    token.write_text("abc\n")
    token.chmod(0o600)
    here = GOOD.replace("http://head", "http://127.0.0.1")
    queue = read_queue(written(tmp_path, f"{here}token_file: {token}\n"))
    assert queue.token() == "abc"
    token.chmod(0o640)
    with pytest.raises(Refused, match="others than its owner may read the cluster's token"):
        queue.token()
    plain = read_queue(written(tmp_path, here))
    assert plain.token() is None
    monkeypatch.setenv("RAY_AUTH_TOKEN", "def")
    assert plain.token() == "def"


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("http://head:8265", False),
        ("http://127.0.0.1.example", False),
        ("http://0.0.0.0:8265", False),
        ("https://head:8265", True),
        ("http://localhost:8265", True),
        ("http://[::1]:8265", True),
    ],
)
def test_a_token_is_never_sent_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, private: bool
) -> None:
    (token := tmp_path / "token").write_text("abc")
    token.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "def")
    plain = GOOD.replace("http://head:8265/", address)
    named = written(tmp_path, f"{plain}token_file: {token}\n")
    if private:
        assert read_queue(named).token() == "abc"
        assert read_queue(written(tmp_path, plain)).token() == "def"
        return
    with pytest.raises(Refused, match="the token of token_file would be sent"):
        read_queue(named)
    # Negative control: without the check it is what Ray's client would be given.
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "check_address", lambda *_: None)
        assert read_queue(named).token() == "abc"
    from_variable = read_queue(written(tmp_path, plain))
    with pytest.raises(Refused, match="the token of RAY_AUTH_TOKEN would be sent"):
        from_variable.token()
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert from_variable.token() is None  # a cluster that asks for none


def test_the_attestor_has_a_token_of_its_own(tmp_path: Path) -> None:
    token = tmp_path / "attestor-token"
    token.write_text("t" * 40)
    token.chmod(0o600)
    section = f"attestor: {{url: 'URL', token_file: {token}}}\n"
    here = section.replace("URL", "http://127.0.0.1:8686/")
    attestor = read_queue(written(tmp_path, GOOD + here)).attestor
    assert attestor is not None
    at = attestor.client().address("s-1")
    assert at == "http://127.0.0.1:8686/v1/register/submissions/s-1"
    token.chmod(0o644)
    with pytest.raises(Refused, match="others than its owner may read the attestor's token"):
        attestor.client()
    far = section.replace("URL", "http://attestor:8686")
    with pytest.raises(Refused, match="would be sent to http://attestor:8686 in"):
        read_queue(written(tmp_path, GOOD + far))
    secure = section.replace("URL", "https://attestor:8686")
    assert read_queue(written(tmp_path, GOOD + secure)).attestor is not None
    assert read_queue(written(tmp_path, GOOD)).attestor is None
