"""A verified model over HTTP.

Every answer has the attestation's digest, in its body and in the header ``Govray-Attestation``. Who
may call, and by which token, is decided as in the service
(``platform/service/identity/access.py``).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from govray import __version__
from govray.errors import CouldNotCheck, GovrayError, Refused
from govray.governance.trust.anchor import read_lists
from govray.governance.verify.verifier import verify
from govray.platform.inference.generation import Finish, generate
from govray.platform.inference.served_model import ServedModel
from govray.platform.service.http import problems
from govray.platform.service.http.limits import Buckets, Limits
from govray.platform.service.http.parameters import known_parameters
from govray.platform.service.http.problems import CatchAll, Problem
from govray.platform.service.identity.access import AccessGate, CallerDep, needs
from govray.platform.service.identity.adapter_rights import AdapterRights
from govray.platform.service.identity.audit_log import Refusals
from govray.platform.service.identity.caller import Caller
from govray.platform.store.database import open_store

LOOK_S = 2.0
AGAIN_S = 3600.0


class ModelStanding:
    """The verdict on one loaded model, looked at again and again. ``revocations``: files of lists,
    or folders of them."""

    def __init__(
        self,
        served: ServedModel,
        *,
        trust_root: Path | bytes,
        revocations: Sequence[Path] = (),
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._served = served
        self._trust_root = trust_root
        self._revocations = tuple(revocations)
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._withdrawn: GovrayError | None = None
        # So that the first question verifies: a list may have come since the model was loaded.
        self._lists: bytes | None = None
        self._looked = self._verified = -AGAIN_S

    def require(self) -> ServedModel:
        """The model, if it may answer; otherwise raises a `GovrayError` that says why."""
        with self._lock:
            now = self._elapsed()
            if now - self._looked >= LOOK_S:
                self._look(now)
                self._looked = now
            if self._withdrawn is not None:
                raise self._withdrawn
        return self._served

    def _look(self, now: float) -> None:
        try:
            lists = _digest(read_lists(self._revocations))
            if lists == self._lists and now - self._verified < AGAIN_S:
                return
            found = verify(
                self._served.verified.path,
                trust_root=self._trust_root,
                revocations=self._revocations,
                at=datetime.now(UTC),
            )
            if found.digest != self._served.attestation:
                raise Refused(
                    "the folder holds another model now",
                    where=str(found.path),
                    do="Start the service again to serve it",
                )
        except GovrayError as error:
            # Looked at again next time: what is missing may come back.
            self._withdrawn, self._lists = error, None
        else:
            self._withdrawn, self._lists, self._verified = None, lists, now


def _digest(lists: Sequence[bytes]) -> bytes:
    whole = hashlib.sha256()
    for each in sorted(lists):
        whole.update(hashlib.sha256(each).digest())
    return whole.digest()


HEADER = "Govray-Attestation"

MAX_BODY = 1 << 16
MAX_TOKENS = 1024

DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """What an operator decides.

    Attributes:
        auth: False makes every caller admin: for one person on loopback.
        seconds: That an answer takes at most, waiting for others included.
        rate: Requests a second of one token.
        burst: Requests that may come at once before ``rate`` counts.
    """

    store: str
    auth: bool = True
    rights: AdapterRights = field(default_factory=AdapterRights)
    seconds: float = 30.0
    rate: float = 10.0
    burst: int = 20


class Prompt(BaseModel):
    """What to go on with."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[str, Field(max_length=MAX_BODY)]
    adapter: Annotated[str, Field(max_length=128)] | None = Field(
        None, description="The adapter to read with; the base alone by default."
    )
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 128
    temperature: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="0 takes the likeliest token each time."
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


class GeneratedText(BaseModel):
    """A text, and what gave it."""

    text: str
    tokens: int
    finish: Finish
    adapter: str | None
    attestation: str


class ModelFacts(BaseModel):
    """What answers."""

    run: str
    name: str
    signer: str
    attestation: str
    context: int
    adapters: list[str] = Field(description="Those that the caller may use.")


class Alive(BaseModel):
    """The answer to a probe; anything but 200 is a no."""

    status: Literal["ok"] = "ok"


router = APIRouter(prefix="/v1", tags=["inference"])

Users = needs("infer", whole=True)


def _standing(request: Request) -> ServedModel:
    standing: ModelStanding = request.app.state.standing
    try:
        return standing.require()
    except GovrayError as error:
        kept = "could not be checked" if isinstance(error, CouldNotCheck) else "no longer verifies"
        raise Problem(
            503,
            "Model withdrawn",
            f"The model {kept}: {error.what}",
            "Its operator sees to it; nothing is answered meanwhile",
        ) from None


ServedDep = Annotated[ServedModel, Depends(_standing)]


@router.get("/live", operation_id="live")
async def live() -> Alive:
    """Whether the process answers. For everyone."""
    return Alive()


@router.get("/ready", operation_id="ready")
def ready(_served: ServedDep) -> Alive:
    """Whether the model may answer: it verifies, and nothing of it is revoked. For everyone."""
    return Alive()


@router.get("/model", operation_id="get_model", dependencies=[Users])
def model(request: Request, response: Response, caller: CallerDep, served: ServedDep) -> ModelFacts:
    """What answers here, and which of its adapters the caller may use."""
    run = served.verified.attestation.run
    response.headers[HEADER] = served.attestation
    return ModelFacts(
        run=run.id,
        name=run.name,
        signer=served.verified.signer,
        attestation=served.attestation,
        context=served.context,
        adapters=sorted(_allowed(request, caller, served)),
    )


@router.post("/generate", operation_id="generate", dependencies=[Users])
def answer(
    asked: Prompt, request: Request, response: Response, caller: CallerDep, served: ServedDep
) -> GeneratedText:
    """Go on with a text, by the base model or with one adapter.

    An adapter that the caller may not use is 404, whether the model has it or not.
    """
    settings: InferenceSettings = request.app.state.settings
    if asked.adapter is not None and asked.adapter not in _allowed(request, caller, served):
        raise Problem(
            404,
            "Not found",
            f"There is no adapter {asked.adapter!r} that you may use",
            "Look at /v1/model",
            refused=True,
        )
    until = time.monotonic() + settings.seconds
    lock: threading.Lock = request.app.state.one_at_a_time
    if not lock.acquire(timeout=settings.seconds):
        raise Problem(503, "Busy", "Others are being answered", "Ask again in a while")
    try:
        found = generate(
            served,
            **asked.model_dump(),
            seconds=until - time.monotonic(),
        )
    finally:
        lock.release()
    response.headers[HEADER] = served.attestation
    return GeneratedText(**vars(found), adapter=asked.adapter, attestation=served.attestation)


def _allowed(request: Request, caller: Caller, served: ServedModel) -> frozenset[str]:
    settings: InferenceSettings = request.app.state.settings
    return settings.rights.of(caller) & frozenset(served.names)


def create_inference_app(
    standing: ModelStanding,
    settings: InferenceSettings,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> FastAPI:
    engine = open_store(settings.store, statement_limit=settings.seconds)
    app = FastAPI(
        title="govray inference",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=problems.RESPONSES,
        dependencies=[Depends(known_parameters)],
    )
    app.state.settings = settings
    app.state.standing = standing
    app.state.engine = engine
    app.state.refusals = Refusals(engine)
    app.state.one_at_a_time = threading.Lock()
    app.state.gate = AccessGate(
        engine,
        Buckets(settings.rate, settings.burst, time.monotonic),
        auth=settings.auth,
        clock=clock,
    )
    problems.install(app)
    app.include_router(router)
    app.add_middleware(CatchAll, answering=problems.details)
    app.add_middleware(
        Limits,
        max_body=4 * MAX_BODY,
        max_stranger_body=MAX_BODY,
        known=app.state.gate.known,
        count=app.state.gate.count,
        time_limit=settings.seconds + 5,
    )
    return app
