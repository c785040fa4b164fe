"""Files of attested models and of checkpoints: listed with size and digest, and fetched by ranges.

A model's are for who reads its run or model, not for everybody who reads a public attestation. A
checkpoint's are for who reads the run. Adapters go out by the operator's rights
(`govray.platform.service.visible.given_files`). The entity tag of a file is its digest. Each answer
of a file is in the audit log before it begins.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request, Response
from starlette.responses import RedirectResponse

from govray.platform.service.http.answer import Answer, Decimal
from govray.platform.service.http.file_answer import FileAnswer
from govray.platform.service.http.problems import not_found
from govray.platform.service.http.statuses import header, refusing
from govray.platform.service.identity.access import CallerDep, needs
from govray.platform.service.identity.rights import is_within
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.routes.live_metrics import Streams
from govray.platform.service.routes.pins import Step
from govray.platform.service.routes.runs import KnownRun
from govray.platform.service.routes.tasks import KnownTask, check_opens
from govray.platform.service.visible.given_files import (
    Allowed,
    GivenFile,
    GivenFiles,
    checkpoint_files,
    model_files,
)
from govray.platform.service.visible.lookup import SEE_MODELS, DigestPath, absent
from govray.platform.service.visible.task_files import kept_files, open_kept
from govray.platform.service.visible.visible_models import find_attestation
from govray.platform.store import tables
from govray.platform.wire.answers import File, Files
from govray.storage.bucket_path import BucketPath

router = APIRouter(tags=["files"])

URL_LASTS = timedelta(minutes=10)
"""How long a URL of an object store is good for."""

FilePath = Annotated[
    str,
    Path(
        max_length=1024,
        description="The name of a file of the listing.",
        examples=["model.safetensors"],
    ),
]
_HEADERS = {
    "range": "Of one range; of several, the whole file is the answer.",
    "if-range": "The tag that the range belongs to. With another, the whole file is the answer.",
}
_BYTES: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file.", "content": _BYTES, "headers": header("ETag")},
    206: {
        "description": "The range that was asked for.",
        "content": _BYTES,
        "headers": header("ETag"),
    },
    307: {"description": "The file lies on an object store.", "headers": header("Location")},
    **refusing(409, 416),
}


class TaskFile(Answer):
    """A file that a task keeps, as long as it is now."""

    name: str
    bytes: Decimal


class TaskFiles(Answer):
    """What a task keeps, by name."""

    items: list[TaskFile]


async def _place(request: Request, caller: CallerDep) -> AsyncIterator[None]:
    """Hold a place among the downloads, for as long as an answer lasts."""
    downloads: Streams = request.app.state.downloads
    with downloads.place(caller):
        yield


def _ranges(
    range_: Annotated[
        str | None, Header(alias="Range", max_length=200, description=_HEADERS["range"])
    ] = None,
    if_range: Annotated[
        str | None, Header(alias="If-Range", max_length=200, description=_HEADERS["if-range"])
    ] = None,
) -> None:
    """The headers that `FileAnswer` reads."""


_FILE: dict[str, Any] = {"response_class": Response, "responses": _ANSWERS}
_ONE = [Depends(_place), Depends(_ranges)]


@router.get("/attestations/{digest}/files", responses=refusing(409))
def of_model(visit: VisitDep, digest: DigestPath) -> Files:
    """The files of an attested model that the attestation names, and the attestation.

    What others signed later, such as timestamps, no attestation names.
    """
    return _listing(_model(visit, digest))


@router.get("/attestations/{digest}/files/{path:path}", dependencies=_ONE, **_FILE)
def model_file(visit: VisitDep, digest: DigestPath, path: FilePath) -> Response:
    """One file of an attested model, or a range of it."""
    return _answer(visit, _model(visit, digest, path), path, digest)


@router.get(
    "/runs/{run}/checkpoints/{step}/files", dependencies=[needs("view")], responses=refusing(409)
)
def of_checkpoint(visit: VisitDep, known: KnownRun, step: Step) -> Files:
    """The files that a checkpoint's manifest names, and the manifest."""
    return _listing(_checkpoint(visit, known, step))


@router.get(
    "/runs/{run}/checkpoints/{step}/files/{path:path}",
    dependencies=[needs("view"), *_ONE],
    **_FILE,
)
def checkpoint_file(visit: VisitDep, known: KnownRun, step: Step, path: FilePath) -> Response:
    """One file of a checkpoint, or a range of it."""
    return _answer(visit, _checkpoint(visit, known, step), path, f"{known.id} step {step}")


@router.get("/tasks/{task}/files", dependencies=[needs("view")], responses=refusing(409))
def of_task(visit: VisitDep, row: KnownTask) -> TaskFiles:
    """What a task keeps, the first 500 by name. For who may open it."""
    check_opens(visit, row)
    found = kept_files(visit.request.app.state.settings.storage, row.id)
    return TaskFiles(items=[TaskFile(name=e.name, bytes=str(e.size)) for e in found])


@router.get(
    "/tasks/{task}/files/{path:path}",
    dependencies=[needs("view"), *_ONE],
    response_class=Response,
    responses={status: told for status, told in _ANSWERS.items() if status != 307},
)
def task_file(visit: VisitDep, row: KnownTask, path: FilePath) -> Response:
    """One file of a task. It may change, so a range of it counts for one answer alone."""
    check_opens(visit, row)
    opened = open_kept(visit.request.app.state.settings.storage, row.id, path)
    visit.audit.read("file read", row.id, {"file": path, "range": "all"})
    return FileAnswer(visit.request, opened, secrets.token_hex(16))


def _model(visit: Visit, digest: str, only: str | None = None) -> GivenFiles:
    row = find_attestation(visit.session, visit.caller, digest)
    if not is_within(visit.session, visit.caller, row.digest):
        raise absent(visit.caller, "attestation", digest, SEE_MODELS)
    return model_files(row, _allowed(visit), only=only)


def _checkpoint(visit: Visit, run: tables.RunRow, step: int) -> GivenFiles:
    storage = visit.session.get_one(tables.ExperimentRow, run.experiment).storage
    found = checkpoint_files(storage, run.folder, step, _allowed(visit))
    if found is None:
        raise not_found("checkpoint", str(step), f"See /v1/runs/{run.id}/checkpoints")
    return found


def _allowed(visit: Visit) -> Allowed:
    """The adapters whose files the caller may have; without authentication it may have all."""
    state = visit.request.app.state
    allowed: frozenset[str] = state.rights.of(visit.caller)
    return allowed if state.settings.auth else None


def _listing(found: GivenFiles) -> Files:
    items = [File(name=e.name, bytes=str(e.size), digest=e.digest) for e in found.sized()]
    return Files(items=items, whole=found.whole)


def _answer(visit: Visit, found: GivenFiles, path: str, of: str) -> Response:
    file = found.files.get(path)
    if file is None:
        raise absent(visit.caller, "file", path, "See the list of files")
    answer = _opened(visit, found, file)
    asked = visit.request.headers.get("range", "all")
    visit.audit.read("file read", of, {"file": path, "range": asked})
    return answer


def _opened(visit: Visit, found: GivenFiles, file: GivenFile) -> Response:
    opened = found.open(file)
    where = found.place(file)
    if visit.request.app.state.settings.presigned and isinstance(where, BucketPath):
        try:
            url = where.signed_url(URL_LASTS)
        except OSError:
            pass  # credentials that sign nothing: it is streamed
        else:
            opened.close()
            return RedirectResponse(url, 307, {"Cache-Control": "no-store"})
    return FileAnswer(visit.request, opened, file.digest)
