"""A witness over HTTP: ``POST /add-checkpoint`` of C2SP tlog-witness, and nothing else."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from govray.errors import GovrayError
from govray.evidence.notaries.witness_state import WitnessState
from govray.governance.notary.add_checkpoint import MAX_REQUEST, Declined

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
