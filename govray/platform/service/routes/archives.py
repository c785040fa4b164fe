"""``/v1/archives``: the working directory of an experiment, sent by who has no shared storage.

An archive is named by the SHA-256 of its bytes, so the same folder is sent once. The body is
written to the storage while it comes, and checked before it has its name
(`govray.governance.submission.received_archive`). An archive is never sent back from here.

For who may submit, with the scope ``write``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from typing import Annotated

from anyio import fail_after, to_thread
from fastapi import APIRouter, Path, Request, Response
from sqlmodel import Session
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from govray.governance.submission.code_archive import (
    archive_place,
    archived_names,
    largest_archive,
    renew,
)
from govray.governance.submission.received_archive import ReceivedArchive, kept_bytes, receive
from govray.platform.service.http.limits import RequestBound
from govray.platform.service.http.problems import Problem, not_valid
from govray.platform.service.http.statuses import ANY_NAME, refusing
from govray.platform.service.identity.access import needs
from govray.platform.service.identity.audit_log import Audit
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.wire.answers import Archive
from govray.storage.place import Place

router = APIRouter(tags=["archives"], dependencies=[needs("submit")])

SECONDS = 900.0
"""For a whole upload: the largest archive takes 1.3 Mbit/s, which people have at home."""

STALL_SECONDS = 30.0
"""Without a byte until an upload has ended: its place is for others."""

AT_ONCE = 8
"""Uploads of all users. Each has a file of up to 144 MiB that nobody counts yet."""

AT_ONCE_EACH = 2
"""Uploads of one user, so that four of them fill the places, not one."""

_PIECE = 1 << 20

_Digest = Annotated[
    str,
    Path(
        pattern="^sha256:[0-9a-f]{64}$",
        description="The SHA-256 of the archive's bytes.",
        examples=["sha256:" + "5e" * 32],
    ),
]


class Uploads:
    """The uploads that are under way in one application, by user."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()

    @contextmanager
    def place(self, user: str) -> Iterator[None]:
        """Hold a place while one lasts. Raises 503: all are taken; 429: the user holds enough."""
        if self.held[user] >= AT_ONCE_EACH:
            raise Problem(
                429,
                "Too many uploads",
                f"{AT_ONCE_EACH} archives of yours are under way",
                "Wait until one is there",
                headers={"Retry-After": "10"},
            )
        if self.held.total() >= AT_ONCE:
            raise Problem(
                503,
                "Busy",
                f"{AT_ONCE} archives are under way",
                "Try again",
                headers={"Retry-After": "10"},
            )
        self.held[user] += 1
        try:
            yield
        finally:
            self.held[user] -= 1
            if not self.held[user]:
                del self.held[user]


def bound(scope: Scope) -> RequestBound | None:
    """What an upload may take, which is more than other requests; None for those."""
    above = str(scope["path"]).rpartition("/")[0]
    if scope["method"] != "PUT" or not above.endswith("/v1/archives"):
        return None
    return RequestBound(body=largest_archive(), seconds=SECONDS)


@router.get("/archives/{digest}", responses=refusing(409))
async def get_archive(request: Request, digest: _Digest) -> Archive:
    """Whether the archive of a digest is there, and whole. 404: send it."""
    storage = _storage(request)
    size = await _kept(request, storage, digest)
    if size is None:
        raise Problem(
            404,
            "Not found",
            f"There is no archive {digest}",
            "Send it with PUT to this address",
        )
    return Archive(digest=digest, bytes=str(size))


@router.put(
    "/archives/{digest}",
    status_code=201,
    dependencies=[ANY_NAME],
    responses={
        200: {"model": Archive, "description": "It is there already: no body was read."},
        **refusing(409),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "A zip, as `govray --server URL train --working-dir` makes it: files "
            "alone, stored, by name. No link, no private key, no `.env`.",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_archive(visit: VisitDep, response: Response, digest: _Digest) -> Archive:
    """Send the archive of a working directory, once for each content.

    It is there when the answer says so: whole, with its digest, and checked. Before, nothing has
    its name.
    """
    storage, uploads = _storage(visit.request), visit.request.app.state.archive_uploads
    size = await _kept(visit.request, storage, digest)
    if size is not None:
        await to_thread.run_sync(renew, archive_place(storage, digest))
        response.status_code = 200
        return Archive(digest=digest, bytes=str(size))
    with (
        uploads.place(visit.caller.name),
        _available(),
        closing(await to_thread.run_sync(receive, storage, digest)) as received,
    ):
        async for piece in _pieces(visit.request):
            await to_thread.run_sync(received.add, piece)
        await to_thread.run_sync(
            _keep,
            visit.request,
            visit.audit,
            received,
            digest,
            limiter=visit.request.app.state.checks,
        )
    return Archive(digest=digest, bytes=str(received.size))


def _keep(request: Request, audit: Audit, received: ReceivedArchive, digest: str) -> None:
    """Check it, record who sent it, and give it its name: nothing is there without an entry."""
    received.check()
    with Session(request.app.state.engine) as session:
        audit.write(session, "archive.upload", digest, {"bytes": received.size})
        session.commit()
    received.keep()


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body, in pieces that are worth a write. Raises 400: it ended before it was whole; 503: it
    stalled. 413: by `limits`."""
    kept = bytearray()
    stream = request.stream()
    while True:
        try:
            with fail_after(STALL_SECONDS):
                piece = await anext(stream, None)
        except TimeoutError:
            raise Problem(
                503,
                "Too slow",
                f"Nothing of the body came for {STALL_SECONDS:g} s",
                "Send it again",
                headers={"Retry-After": "5", "Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise Problem(
                400, "Malformed", "The body ended before it was whole", "Send it again"
            ) from None
        if piece is None:
            break
        kept += piece
        if len(kept) >= _PIECE:
            yield bytes(kept)
            kept.clear()
    if kept:
        yield bytes(kept)


async def _kept(request: Request, storage: Place, digest: str) -> int | None:
    with _available():
        return await to_thread.run_sync(
            kept_bytes, storage, digest, limiter=request.app.state.checks
        )


def check_there(visit: Visit, digest: str | None, kind: str | None = None) -> None:
    """Return if what is submitted may name this archive: it is there, or no storage is here. It has
    what starts a run of this ``kind``, if one is given.

    Whether its bytes are those of the digest is looked at when its job starts.

    Raises:
        Problem: 422, it is not there, or lacks that; 503, the storage does not answer.
    """
    storage: Place | None = visit.request.app.state.settings.storage
    if storage is None or digest is None:
        return
    place = archive_place(storage, digest)
    with _available():
        data = place.read_bytes() if place.is_file() else None
    if data is None:
        raise not_valid(
            "body.archive", f"There is no archive {digest}", "Send it with PUT /v1/archives/DIGEST"
        )
    if kind is not None and f"jobs/{kind}.py" not in archived_names(data, "archive"):
        raise not_valid(
            "body.archive",
            f"The archive has no jobs/{kind}.py, which starts the job",
            "Send a folder of `govray init`, such as by --working-dir .",
        )
    renew(place)


def _storage(request: Request) -> Place:
    """Where archives lie. Raises 409: this service has no storage."""
    storage: Place | None = request.app.state.settings.storage
    if storage is None:
        raise Problem(
            409,
            "No storage",
            "This service has no storage, so it takes no working directory",
            "Ask who runs it to start it with --storage; or archive the folder on the cluster, and "
            "submit with the digest",
        )
    return storage


@contextmanager
def _available() -> Iterator[None]:
    """What the storage refuses is the operator's to mend. Raises 503."""
    try:
        yield
    except OSError as error:
        raise Problem(
            503,
            "The storage is not available",
            f"The storage refuses: {error.strerror or type(error).__name__}",
            "Try again later, or tell who runs the service",
            headers={"Retry-After": "30"},
        ) from error
