"""What a service, a queue and a job tell the attestor's register."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from govray.governance.submission.register_forms import AcceptanceForm, AttemptForm, PostForm
from govray.platform.attestor.door import register_door
from govray.platform.attestor.register import Register
from govray.train.run_folder.clock import instant

TOKEN = "t" * 40
SUBMISSION, RUN = "s-1", "tiny-s-1"


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


TRUST_ROOT = digest("root")


def acceptance(**changes: Any) -> AcceptanceForm:
    given: dict[str, Any] = {
        "submission": SUBMISSION,
        "run": RUN,
        "kind": "train",
        "user": "ada",
        "project": "research",
        "submitted": "2026-11-24T09:00:00Z",
        "config": digest("config"),
        "policy": digest("policy"),
        "isolation": "sharedCluster",
    }
    return AcceptanceForm(**given | changes)


def attempt(number: int, secret: str, **changes: Any) -> AttemptForm:
    given = {"number": number, "secret": digest(secret), "facts": acceptance().facts_digest}
    return AttemptForm(**given | changes)


def started(**changes: Any) -> PostForm:
    return PostForm(**{"run": RUN, "sequence": 0, "kind": "started"} | changes)


def committed(sequence: int, step: int, previous: str | None = None, **changes: Any) -> PostForm:
    """The commit of a step, whose digest follows from the step."""
    given: dict[str, Any] = {
        "run": RUN,
        "sequence": sequence,
        "kind": "committed",
        "step": step,
        "commit": digest(f"commit {step}"),
        "ledger_size": step,
        "ledger_root": digest(f"ledger {step}"),
        "previous": previous,
    }
    return PostForm(**given | changes)


@contextmanager
def door(register: Register, root: str = TRUST_ROOT) -> Iterator[str]:
    """The register's door on a free port of this machine; yields its address.
    ``root``: digest of the attestor's trust root."""
    app = register_door(register, TOKEN, root, instant)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        [listening] = server.servers
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
