"""A witness: its memory, the last head of each ledger that it cosigned, and its one route.

Invariants:
    * One process at a time uses a folder; a second one is refused.
    * From reading the last head until the new one is on the disk, nobody else decides.
    * What is returned was on the disk before. A power cut loses no head that anybody has.

A folder that is put back from an older copy forgets heads, and a witness that forgets can be shown
a second history. So it is never restored from a backup: begin anew, with a new key.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from govray.errors import Damaged, GovrayError, Refused, UsageError
from govray.governance.formats import signed_note
from govray.governance.formats.keys import PublicKey, Signer
from govray.governance.formats.signed_note import TreeHead, read_note
from govray.governance.notary.add_checkpoint import MAX_REQUEST, AddCheckpoint, Declined, decide
from govray.governance.notary.cosignature import cosign, key_id
from govray.governance.policy.globs import matches
from govray.storage.atomic_file import make_folder, write_whole

_LOCK = "lock"


class WitnessState:
    """One witness with its folder.

    Args:
        folder: Of this witness alone; made if it is not there.
        keys: Whoever signs with one of them may present ledgers.
        origins: Globs of the ledgers' names.

    Raises:
        UsageError: The folder cannot be used, or is in use; or the key is not Ed25519.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        signer: Signer,
        *,
        keys: Sequence[PublicKey],
        origins: Sequence[str],
        clock: Callable[[], datetime],
    ) -> None:
        key_id(name, signer.public_key)
        self._folder, self._name, self._signer = folder, name, signer
        self._keys, self._origins, self._clock = tuple(keys), tuple(origins), clock
        self._deciding = Lock()
        try:
            make_folder(folder, mode=0o700)
            self._held = (folder / _LOCK).open("ab")
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._held.close()
            raise UsageError(
                "another witness uses this folder",
                where=str(folder),
                do="Two witnesses with one memory would be none: give each a folder and a key",
            ) from None
        except OSError as error:
            raise UsageError(
                f"the folder cannot be used: {error.strerror}", where=str(folder)
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def add(self, body: bytes) -> Declined | str:
        """Answer one request: a cosignature's line, or why none is given. Raises `OSError`: the
        disk refuses, and nothing was cosigned."""
        try:
            request = AddCheckpoint.parse(body)
        except Refused as error:
            return Declined(400, f"{error.what}\n")
        head = request.note.head
        keys = self._keys if self._knows(head.origin) else None
        with self._deciding:
            declined = decide(request, keys, self.latest(head.origin))
            if declined is not None:
                return declined
            line = cosign(request.note.text, self._name, self._signer, at=self._clock())
            write_whole(self._file(head.origin), f"{request.note.text}\n{line}".encode())
        return line

    def latest(self, origin: str) -> TreeHead | None:
        """The last head of a ledger that was cosigned, if any."""
        file = self._file(origin)
        with suppress(FileNotFoundError):
            with file.open("rb") as opened:
                data = opened.read(signed_note.MAX_BYTES)
            try:
                head = read_note(data).head
            except Refused:
                head = None
            if head is None or head.origin != origin:
                raise Damaged(
                    "the witness's memory of a ledger is damaged",
                    where=str(file),
                    do="Begin anew with an empty folder and a new key",
                )
            return head
        return None

    def _knows(self, origin: str) -> bool:
        return any(matches(glob, origin) for glob in self._origins)

    def _file(self, origin: str) -> Path:
        # A ledger's name may hold what a file's name may not.
        return self._folder / f"{hashlib.sha256(origin.encode()).hexdigest()}.checkpoint"


_log = logging.getLogger(__name__)


def witness_app(state: WitnessState) -> Starlette:
    """The application; it answers with the statuses of the standard.

    413 is for a request that is larger than any can be. 500 is for a memory that is damaged or a
    disk that is full; nothing was cosigned then.
    """

    async def add_checkpoint(request: Request) -> Response:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_REQUEST:
                    return Response("too large\n", 413, media_type="text/plain")
        except ClientDisconnect:
            return Response(status_code=400)
        try:
            answer = await run_in_threadpool(state.add, bytes(body))
        except (GovrayError, OSError) as error:
            _log.error("no cosignature: %s", error)
            return Response("the witness cannot sign now\n", 500, media_type="text/plain")
        if isinstance(answer, Declined):
            # Not `media_type`, which adds a charset: the standard names the type alone.
            return Response(answer.body, answer.status, {"Content-Type": answer.kind})
        return Response(answer, media_type="text/plain")

    return Starlette(routes=[Route("/add-checkpoint", add_checkpoint, methods=["POST"])])
