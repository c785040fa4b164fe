"""``govray doctor``, and for how many users queue and service act: each defence found, and missed.

`tests/platform/test_accounts.py` has it under accounts of their own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from sqlmodel import Session

from govray.cli import doctor, separation
from govray.errors import Refused, UsageError
from govray.platform.queue.settings import read_queue
from govray.platform.service.identity import tokens
from govray.platform.store import pools
from govray.platform.store.database import open_store
from govray.platform.store.tables import PoolRow
from govray.train.run_folder.clock import instant
from tests.support.command import Run
from tests.support.deployment import Deployment
from tests.support.process import application
from tests.support.tree import ROOT
from tests.support.web_server import certified

OTHERS = "64103:64103"
OWN = f"{os.geteuid()}:{os.getegid()}"


def queue_file(folder: Path, **changes: Any) -> Path:
    token = folder / "token"
    token.write_text("t" * 40)
    token.chmod(0o600)
    value = {
        "address": "http://127.0.0.1:1",
        "storage": str(folder),
        "store": f"sqlite:///{folder}/govray.db",
        "pools": {"default": {"slots": 2}},
        "attestor": {"url": "https://attestor.example", "token_file": str(token)},
    }
    path = folder / "queue.yaml"
    path.write_text(yaml.safe_dump(value | changes))
    return path


def findings(run: Run, *words: object, code: int = 0) -> dict[str, dict[str, str]]:
    """State and words of each finding, by check and state."""
    said = run("doctor", *words, "--json", code=code).json["findings"]
    return {f"{each['check']} {each['state']}": each for each in said}


def refusals(file: Path) -> list[Refused]:
    queue = read_queue(file)
    return [*separation.queue_findings(queue, file, separation.jobs_of(queue))]


def test_a_queue_of_one_account_says_each_file_that_jobs_reach(tmp_path: Path) -> None:
    found = refusals(queue_file(tmp_path))

    reached = {str(each.where) for each in found}
    assert {str(tmp_path / name) for name in ("govray.db", "token", "prepared")} <= reached
    assert all("jobs_account" in str(each.do) for each in found)
    assert refusals(queue_file(tmp_path, jobs_account=OTHERS)) == []


@pytest.mark.parametrize(
    ("attestor", "what"),
    [
        (None, "jobs sign with the operator's key"),
        ({"url": "http://127.0.0.1:1", "token_file": "token"}, "cannot be looked at"),
    ],
)
def test_a_queue_whose_key_cannot_be_judged_acts_for_one_user(
    tmp_path: Path, attestor: dict[str, str] | None, what: str
) -> None:
    [found] = refusals(queue_file(tmp_path, jobs_account=OTHERS, attestor=attestor))

    assert what in found.what


def test_an_account_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no account 'ray-of-nobody'"):
        refusals(queue_file(tmp_path, jobs_account="ray-of-nobody"))


@pytest.mark.parametrize(
    ("people", "worked_off", "words", "served"),
    [
        (("ada", "mallory"), True, (), False),
        (("ada",), True, (), True),
        (("ada", "mallory"), False, (), True),
        (("ada", "mallory"), True, ("--jobs-account", OTHERS), True),
        (("ada", "mallory"), True, ("--jobs-account", OWN), False),
    ],
)
def test_a_service_acts_for_two_only_where_a_queue_s_jobs_are_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    people: tuple[str, ...],
    worked_off: bool,
    words: tuple[str, ...],
    served: bool,
) -> None:
    url = f"sqlite:///{tmp_path}/govray.db"
    engine = open_store(url, create=True)
    with Session(engine) as session:
        for each in people:
            tokens.new(session, each, role="engineer", scopes=("write",), at=instant())
        tokens.new(session, "reader", role="auditor", at=instant())  # submits nothing
        if worked_off:
            pools.state(session, [PoolRow(name="default", slots=2)])
        session.commit()
    engine.dispose()

    try:
        application(monkeypatch, "--store", url, *words).state.engine.dispose()
        done = True
    except AssertionError:  # the command ended with another code
        done = False

    assert done is served
    assert ("can read and write the store" in capsys.readouterr().err) is not served


class Head(BaseHTTPRequestHandler):
    """Ray's dashboard, or what stands for it: with a token, and a clock, of the test's choice."""

    status = 401
    date: str | None = None

    def do_GET(self) -> None:
        self.send_response_only(self.status)
        self.send_header("Date", self.date or self.date_time_string())
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def head(status: int, date: str | None = None, host: str = "127.0.0.1") -> Iterator[str]:
    handler = type("Handler", (Head,), {"status": status, "date": date})
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = type("Server", (ThreadingHTTPServer,), {"address_family": family})
    with kind((host, 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "state"), [(401, "ok"), (200, "WRONG")])
def test_the_doctor_asks_ray_as_a_stranger(
    run: Run, tmp_path: Path, status: int, state: str
) -> None:
    with head(status) as address:
        file = queue_file(tmp_path, address=address, jobs_account=OWN)
        found = findings(run, "--queue", file, code=1)  # jobs are not apart

    assert f"token {state}" in found
    assert "accounts not seen" not in found


def test_the_doctor_sees_another_account_s_ray_and_another_clock(run: Run, tmp_path: Path) -> None:
    with head(401, "Thu, 01 Jan 2026 00:00:00 GMT") as address:
        file = queue_file(tmp_path, address=address, jobs_account=OTHERS)
        found = findings(run, "--queue", file, code=1)
        [refused] = refusals(file)  # the queue acts for one user alone, too

    assert refused.what == f"Ray runs under UID {os.geteuid()}, not under {OTHERS}"
    assert refused.what in found["accounts WRONG"]["what"]
    assert "Ray is" in found["clock WRONG"]["what"]


def test_a_head_that_is_down_is_said_and_not_counted(run: Run, tmp_path: Path) -> None:
    found = findings(run, "--queue", queue_file(tmp_path, jobs_account=OTHERS))

    assert {"token not seen", "accounts not seen", "accounts ok"} <= found.keys()


@pytest.mark.parametrize(("days", "state"), [(60, "ok"), (1, "ends soon"), (-0.5, "WRONG")])
def test_the_doctor_sees_a_certificate_that_ends_soon(
    run: Run, tmp_path: Path, days: float, state: str
) -> None:
    certified(tmp_path, days=days)
    value = yaml.safe_load((ROOT / "deploy/attestor.yaml").read_text())
    file = tmp_path / "attestor.yaml"
    file.write_text(
        yaml.safe_dump(value | {"certificate": "tls.crt", "certificate_key": "tls.key"})
    )
    words = ("--attestor", file, "--jobs-account", OTHERS)
    found = findings(run, *words, code=int(state == "WRONG"))[f"register {state}"]
    assert "tls.crt" in found["what"]
    assert ("in 1.0 days" in found["what"]) == (days == 1)
    assert ("has ended" in found["what"]) == (days < 0)
    (tmp_path / "tls.crt").write_text("none")
    assert "no X.509 certificate" in findings(run, *words, code=1)["register WRONG"]["what"]


@pytest.mark.parametrize(("days", "state"), [(60, "ok"), (1, "ends soon")])
def test_the_doctor_sees_a_root_and_authorities_that_end_soon(
    run: Run, tmp_path: Path, days: int, state: str
) -> None:
    here = Deployment(tmp_path / "here", rooted=timedelta(days=days))
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "root.json").write_bytes(here.root.read_bytes())
    said = run("doctor", "--json").json["findings"]  # a service that asks starts all the same
    trust = [each["what"] for each in said if each["check"] == "trust" and each["state"] == state]
    assert len(trust) == (1 if state == "ok" else 5)
    assert any("operator authority" in each for each in trust) == (state == "ends soon")


@pytest.mark.parametrize(
    ("files", "wrong"), [(("train", "tune"), ()), (("train",), ("tune",)), ((), ("train", "tune"))]
)
def test_the_doctor_sees_a_folder_that_starts_no_run(
    run: Run, tmp_path: Path, files: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    (tmp_path / "code" / "jobs").mkdir(parents=True)
    for each in files:
        (tmp_path / "code" / "jobs" / f"{each}.py").touch()
    file = queue_file(tmp_path, jobs_account=OTHERS, working_dir=str(tmp_path / "code"))
    said = run("doctor", "--queue", file, "--json", code=int(bool(wrong))).json["findings"]
    found = [each for each in said if each["check"] == "folder"]
    assert [each["state"] for each in found] == ([doctor.WRONG] * len(wrong) or [doctor.OK])
    for each, name in zip(found, wrong, strict=False):
        assert f"has no jobs/{name}.py" in each["what"]


@pytest.mark.parametrize(
    ("host", "state"), [("127.0.0.1", "ok"), ("0.0.0.0", "WRONG"), ("::1", "ok"), ("::", "WRONG")]
)
def test_the_doctor_sees_what_is_open_to_other_machines(
    run: Run, tmp_path: Path, host: str, state: str
) -> None:
    with head(404, host=host) as address:
        port = address.rpartition(":")[2]
        file = tmp_path / "attestor.yaml"
        text = (ROOT / "deploy/attestor.yaml").read_text().replace("port: 8686", f"port: {port}")
        file.write_text(text)
        words = ("--attestor", file, "--jobs-account", OTHERS)
        done = run("doctor", *words, "--json", code=int(state == "WRONG"))

    said = done.json["findings"]
    assert {each["state"] for each in said if str(port) in each["what"]} == {state}


def test_the_doctor_needs_neither_ray_nor_torch_but_for_the_queue(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("ray", "torch"):
        monkeypatch.setitem(sys.modules, each, None)

    words = ("--attestor", ROOT / "deploy/attestor.yaml", "--jobs-account", OTHERS)
    assert {"versions ok", "accounts ok"} <= findings(run, *words).keys()
    file = queue_file(tmp_path, jobs_account=OTHERS)
    [found] = findings(run, "--queue", file, code=1).values()
    assert found["what"] == "ray is not installed"


def test_the_doctor_sees_a_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "disk ok" in findings(run)
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 62)

    assert "disk WRONG" in findings(run, code=1)
    text = run("doctor", code=1).out
    assert "WRONG      disk" in text
    assert json.loads(run("doctor", "--json", code=1).out)["findings"]
