"""Every route × everyone who may knock, own and others' resources, against a table."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from httpx import ASGITransport, AsyncClient
from sqlalchemy import true
from sqlmodel import Session, select

from govray.platform.service.identity import access
from govray.platform.service.routes import corpora
from govray.platform.service.visible import record_index, visible_corpora, visible_models
from govray.platform.store.tables import AuditEntry
from tests.support.place import FOREIGN, Place

ENDED = ("expired", "revoked", "disabled")
STAFF = ("admin", "engineer", "auditor")
MINE = (*STAFF, "supplier")
"""Who reads what concerns acme-legal's corpus alone."""
THEIRS = (*STAFF, "other supplier")
"""Who reads what concerns the archive's corpora alone."""
TOKENS = (*STAFF, "supplier", "other supplier")
PEOPLE = (*TOKENS, "member")
WATCHERS = ("admin", "auditor")
ALL = (*PEOPLE, "public")
OUTSIDE = ("supplier", "other supplier", "member")
"""Who has no role in the project."""


WRITERS = ("admin", "engineer")
ADMIN = ("admin",)

NAMES = {
    **{"run": "done", "experiment": "e1", "step": "1", "name": "rank-0-1.log", "task": "s-none"},
    **{"model": "first", "version": "1.0.0", "digest": "{first}", "group": "{group}"},
    **{"workspace": "default", "project": "default", "binding": "{binding}", "user": "engineer"},
    **{"case": "{case}", "key": "no-key", "corpus": "acme", "sha256": "{acme record}"},
    **{"token": "0" * 12, "webhook": "w-" + "0" * 12, "event": "0" * 64, "index": "0"},
    **{"path": "model.safetensors", "file": f"{0:016x}-{7:09d}.json", "verb": "stop"},
}
"""What stands for a field of a path, unless a row says another. Some are nowhere."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request and who gets an answer to it.

    ``refused`` is the status of tokens that do not, ``public`` that of no token. Who is in
    ``unseen`` is told 404. Ended tokens are
    401 everywhere, unless the route asks nobody who they are (``open``). ``sends``: the body is the
    envelope of the public attestation. ``at`` names other things than `NAMES`.
    """

    method: str
    template: str
    answered: tuple[str, ...]
    body: dict[str, Any] | None = None
    refused: int = 403
    public: int = 401
    ok: tuple[int, ...] = (200,)
    open: bool = False
    sends: bool = False
    params: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    at: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.template.format_map(NAMES | self.at)

    @property
    def about_public(self) -> bool:
        """It is about ``narrow`` or its policy, which everyone may read whole, or an example."""
        return "public" in self.answered and any(
            each in self.path for each in ("narrow", "{policy}", ":verify", "openapi")
        )

    def expected(self, kind: str) -> tuple[int, ...]:
        if kind in ENDED:
            return self.ok if self.open else (401,)
        if kind in self.answered:
            return self.ok
        if kind in self.unseen:
            return (404,)
        return (self.public,) if kind == "public" else (self.refused,)


def rows(answered: tuple[str, ...], *requests: str, **more: Any) -> list[Case]:
    """A row for each of ``requests``, which are a method and a template: ``GET /v1/runs/{run}``."""
    split = (each.split(" ") for each in requests)
    return [Case(method=m, template=path, answered=answered, **more) for m, path in split]


def get(answered: tuple[str, ...], *templates: str, **more: Any) -> list[Case]:
    return rows(answered, *(f"GET {each}" for each in templates), **more)


def hidden(answered: tuple[str, ...], *templates: str, **more: Any) -> list[Case]:
    """Whoever may not read it is not told that it exists."""
    return get(answered, *templates, **{"refused": 404, "public": 404, **more})


def seen(answered: tuple[str, ...], *requests: str, **more: Any) -> list[Case]:
    """Who has no role in the place is not told that it exists; who has another role is refused."""
    return rows(answered, *requests, **{"unseen": OUTSIDE, **more})


def of_models(*templates: str, **more: Any) -> list[Case]:
    """``first`` used acme-legal's corpus too, ``guarded`` only the archive's; ``narrow`` is
    public."""
    concerns = (("first", TOKENS), ("guarded", THEIRS), ("narrow", ALL))
    return [
        each
        for model, answered in concerns
        for each in hidden(answered, *templates, at=names_of(model), **more)
    ]


def names_of(model: str) -> dict[str, str]:
    return {"model": model, "run": f"run-{model}", "digest": f"{{{model}}}", "path": "{tile}"}


VERSION = "/v1/models/{model}/versions/{version}"
ATTESTATION = "/v1/attestations/{digest}"
LEDGER = "/v1/ledgers/{run}"
EXPERIMENT = "/v1/experiments/{experiment}"
RUN = "/v1/runs/{run}"
STEP = RUN + "/checkpoints/{step}"
PROJECT = "/v1/projects/{project}"
TASK = "/v1/tasks/{task}"
LINEAGES = ("/lineage", "/layers/{group}", "/memorization")
SUBMITTED = {"experiment": "s-one"}

CASES = [
    *get(ALL, "/v1/health", "/v1/live", "/v1/ready", open=True),
    *get(ALL, "/v1/openapi.json", "/v1/sign-in", open=True),
    *get(STAFF, "/metrics", "/v1/usage", "/v1/usage.csv"),
    *get(WATCHERS, "/v1/audit"),
    *get(ALL, "/v1/versions"),
    *get(STAFF, "/v1/experiments", EXPERIMENT, "/v1/runs", RUN, "/v1/pools", "/v1/deletions"),
    *rows(WRITERS, f"PUT {EXPERIMENT}/tags", body={"tags": []}, at={"experiment": "e2"}),
    *get(STAFF, *(f"{RUN}/metrics{part}" for part in ("", ".csv", "/stream"))),
    *get(STAFF, RUN + "/decisions", RUN + "/checkpoints", RUN + "/logs", "/runs/{run}/logs"),
    *get(STAFF, RUN + "/pins", ok=(409,)),  # no folder
    # There is no such step; of an admin's run the engineer is told no first.
    *rows(WRITERS, f"POST {STEP}:pin", body={}, at={"step": "999"}, ok=(404, 403)),
    *rows(WRITERS, f"POST {STEP}:unpin", at={"step": "999"}, ok=(404, 403)),
    *get(STAFF, "/v1/deletions/{run}", ok=(404,)),  # it is not marked
    # It has no folder, and of an admin's run the engineer is told no.
    *rows(WRITERS, f"DELETE {RUN}", f"POST {RUN}:restore", ok=(409, 403)),
    *rows(WRITERS, f"DELETE {EXPERIMENT}", f"POST {EXPERIMENT}:restore", ok=(409, 403)),
    *rows(WRITERS, "POST /v1/experiments", body={"forkOf": "s-one"}, ok=(201,)),
    # This service has no storage; `test_archives.py` has one that does.
    *rows(
        WRITERS,
        *("GET /v1/archives/{digest}", "PUT /v1/archives/{digest}"),
        at={"digest": f"sha256:{0:064x}"},
        ok=(409,),
    ),
    *rows(WRITERS, "POST /v1/experiments:check", body={"forkOf": "s-one"}),
    *rows(
        WRITERS,
        *(f"POST {EXPERIMENT}:{verb}" for verb in ("stop", "kill")),
        *(f"POST {EXPERIMENT}:{verb}" for verb in ("archive", "unarchive", "resume")),
        at=SUBMITTED,
        ok=(200, 409),  # the second finds it so
    ),
    # There is no such checkpoint on storage, and the run keeps no logs.
    *get(STAFF, STEP + "/files", STEP + "/files/{path}", ok=(404,)),
    *get(STAFF, RUN + "/logs/{name}", RUN + "/logs/{name}/text", ok=(404,)),
    *get(STAFF, RUN + "/logs/{name}/stream"),
    *get(ALL, "/v1/models"),
    *of_models("/v1/models/{model}", "/v1/models/{model}/versions", VERSION),
    *rows(
        WRITERS,
        "POST /v1/models/{model}/versions",
        body={"version": "{n}.0.0", "attestation": "{first}"},
        ok=(201,),
    ),
    *rows(WRITERS, f"PATCH {VERSION}", body={"notes": "x"}),
    # The second finds it archived.
    *rows(WRITERS, f"POST {VERSION}:promote", body={"stage": "archived"}, ok=(200, 409)),
    # Lineage, whole or the caller's own rows.
    *of_models(*(above + part for above in (VERSION, ATTESTATION) for part in LINEAGES)),
    # The signed bytes name every corpus: staff, or public.
    *hidden(STAFF, ATTESTATION),
    *hidden(ALL, ATTESTATION, at={"digest": "{narrow}"}),
    # The files of models are for staff, whoever may read the attestation.
    *hidden(STAFF, ATTESTATION + "/files", ATTESTATION + "/files/{path}"),
    *hidden(
        STAFF,
        *(ATTESTATION + "/files", ATTESTATION + "/files/{path}"),
        at={"digest": "{narrow}"},
    ),
    *get(ALL, "/v1/attestations"),
    *get(ALL, "/v1/attestations:by-subject", params={"sha256": "{weights}"}),
    *rows(ALL, "POST /v1/attestations:verify", sends=True),
    # A corpus and its records, for its supplier.
    *get(TOKENS, "/v1/corpora", "/corpora", "/v1/records/{sha256}"),
    *get(TOKENS, "/v1/records/{sha256}", at={"sha256": "{alpha record}"}),
    *get(MINE, "/v1/corpora/{corpus}", "/corpora/{corpus}", unseen=("other supplier",)),
    *get(
        THEIRS,
        *("/v1/corpora/{corpus}", "/corpora/{corpus}"),
        unseen=("supplier",),
        at={"corpus": "alpha"},
    ),
    *rows(TOKENS, "POST /v1/records:search", body={"text": "anything"}),
    # A ledger's head and proofs for whom its model concerns; its leaves name every corpus.
    *of_models(LEDGER, LEDGER + "/checkpoint", LEDGER + "/tile/{path}"),
    *of_models(LEDGER + "/proofs/inclusion", params={"index": "0"}),
    *of_models(LEDGER + "/proofs/consistency", params={"first": "1"}),
    *get(
        STAFF,
        LEDGER + "/entries/{index}",
        at=names_of("first"),
        public=404,
        unseen=("member",),
    ),
    # Policies and roots of what is public.
    *get(ALL, "/v1/policies", "/v1/trust-roots"),
    *hidden(ALL, "/v1/policies/{digest}", "/policies/{digest}", at={"digest": "{policy}"}),
    *hidden(ALL, "/v1/trust-roots/{digest}", at={"digest": "{root}"}),
    *get(ALL, "/v1/policies:diff", params={"from": "{policy}", "to": "{policy}"}),
    *rows(
        ALL,
        "POST /v1/policies/{digest}:explain",
        body={"license": "MIT"},
        at={"digest": "{policy}"},
    ),
    # Workspaces, projects and roles, as far as one sees them.
    *get(PEOPLE, "/v1/workspaces", "/v1/projects", "/v1/role-bindings", "/v1/whoami", "/v1/tokens"),
    *rows(ADMIN, "POST /v1/workspaces", body={"name": "w{n}"}, ok=(201,)),
    *seen(STAFF, "GET /v1/workspaces/{workspace}", f"GET {PROJECT}", f"GET {PROJECT}/settings"),
    *seen(
        ADMIN,
        *("PATCH /v1/workspaces/{workspace}", f"PATCH {PROJECT}"),
        body={"description": "x"},
    ),
    *seen(ADMIN, "POST /v1/projects", body={"name": "p{n}", "workspace": "default"}, ok=(201,)),
    *get(STAFF, PROJECT + "/space"),
    *rows(ADMIN, f"DELETE {PROJECT}", ok=(409,)),
    *seen(ADMIN, f"PUT {PROJECT}/settings", body={}),
    *seen(
        ADMIN,
        "POST /v1/role-bindings",
        body={"user": "engineer", "role": "viewer", "scope": "project", "place": "default"},
        ok=(201,),
    ),
    # The admin, who comes first, takes it away from all.
    *seen(
        ADMIN,
        "DELETE /v1/role-bindings/{binding}",
        ok=(204,),
        unseen=(*OUTSIDE, "engineer", "auditor"),
    ),
    *get(WATCHERS, "/v1/users", "/v1/users/{user}"),
    *rows(ADMIN, "PATCH /v1/users/{user}", body={"disabled": False}),
    *rows(PEOPLE, "POST /v1/tokens", body={"name": "mine"}, ok=(201,)),
    *rows(PEOPLE, "POST /v1/tokens/{token}:revoke", ok=(404,)),  # nobody's
    # Webhooks: what is told leaves the house. There is none of this name.
    *get(STAFF, "/v1/alerts"),
    *get(ADMIN, "/v1/webhooks"),
    *rows(ADMIN, "POST /v1/webhooks", body={"url": "https://hooks.example/"}, ok=(201,)),
    *rows(
        ADMIN,
        *("DELETE /v1/webhooks/{webhook}", "POST /v1/webhooks/{webhook}:test"),
        "GET /v1/webhooks/{webhook}/deliveries",
        "POST /v1/webhooks/{webhook}/deliveries/{event}:resend",
        ok=(404,),
    ),
    # Cases: of people with a token. Who reads them is told of a number; no one else is.
    *rows(PEOPLE, "POST /v1/cases", body={"contact": "a", "text": "b"}, ok=(201,)),
    *get(WATCHERS, "/v1/cases", "/v1/cases/{case}"),
    *hidden(WATCHERS, "/v1/cases/{case}/standing"),
    *hidden(WATCHERS, "/v1/cases/{case}/answer", ok=(404,)),
    *rows(ADMIN, "POST /v1/cases/{case}:search"),
    *rows(ADMIN, "POST /v1/cases/{case}:answer", body={}),
    # Nothing is decided yet.
    *rows(
        ADMIN,
        "POST /v1/cases/{case}:link",
        body={"model": "first", "version": "1.0.0"},
        ok=(409,),
    ),
    *rows(
        ADMIN,
        "POST /v1/cases/{case}:decide",
        body={"decision": "refused", "reason": "It is a test."},
    ),
    # Tasks: as experiments; nobody here has one. This service shows none.
    *get(STAFF, "/v1/tasks", "/tasks"),
    *rows(
        WRITERS,
        "POST /v1/tasks",
        body={"name": "look", "config": "kind: notebook\n"},
        ok=(201,),
    ),
    *get(STAFF, TASK, TASK + "/files", TASK + "/files/{path}", "/tasks/{task}", ok=(404,)),
    *rows(
        WRITERS,
        *(f"POST {TASK}:{verb}" for verb in ("open", "stop", "kill")),
        *(f"POST {TASK}:{verb}" for verb in ("archive", "unarchive", "resume")),
        ok=(404,),
    ),
    # The pages: the same rules.
    *get(ALL, "/", "/search", "/models", "/versions", "/policies", "/ask"),
    *get(ALL, "/sign-in", open=True),
    # There is no provider here.
    *get(ALL, "/sign-in/provider", "/sign-in/callback", ok=(404,), open=True),
    *of_models("/models/{model}", "/models/{model}/{version}", "/attestations/{digest}"),
    *hidden(WATCHERS, "/ask/{case}/{key}", "/ask/{case}/{key}/answer.dsse.json"),
    *get(WATCHERS, "/cases", "/cases/{case}", "/cases/{case}/answer.dsse.json"),
    *get(STAFF, "/experiments", "/experiments/{experiment}", "/queue", "/runs", "/runs/{run}"),
    *get(STAFF, "/compare", params={"run": "done"}),
    *get(STAFF, "/runs/{run}/figures/{file}", ok=(404,)),  # the run keeps none
    *get(WRITERS, "/new", "/models/{model}/{version}/edit", "/attestations/{digest}/register"),
    *get(WRITERS, "/models/{model}/{version}/promote", params={"stage": "staging"}),
    # A form is taken from our own pages only, whoever sends it.
    *rows(ALL, "POST /sign-in", "POST /sign-out", ok=(403,), open=True),
    *rows(ALL, "POST /ask", ok=(403,)),
    *rows(TOKENS, "POST /search", ok=(403,)),
    *rows(
        WATCHERS,
        *(f"POST /cases/{{case}}/{verb}" for verb in ("search", "answer", "decide", "link")),
        ok=(403,),
    ),
    *rows(
        WRITERS,
        *("POST /new", "POST /experiments", "POST /experiments/{experiment}/{verb}"),
        *("POST /tasks", "POST /tasks/{task}/open", "POST /tasks/{task}/{verb}"),
        *(f"POST /models/{{model}}/{{version}}/{verb}" for verb in ("promote", "edit")),
        *("POST /attestations/{digest}/register", "POST /experiments/{experiment}/tags"),
        at={**SUBMITTED, "task": "s-one"},
        ok=(403,),
    ),
    *rows(
        WRITERS,
        *(f"POST /runs/{{run}}/{verb}" for verb in ("delete", "restore")),
        *(f"POST /experiments/{{experiment}}/{verb}" for verb in ("delete", "restore")),
        ok=(409, 403),
    ),
]


def differences(place: Place, part: str = "") -> list[str]:
    """Where an answer is not what the table says, of cases whose path has ``part``."""
    return asyncio.run(_differences(place, [case for case in CASES if part in case.path]))


async def _differences(place: Place, cases: list[Case]) -> list[str]:
    found = []
    transport = ASGITransport(place.service.app, raise_app_exceptions=False)
    async with AsyncClient(
        transport=transport, base_url="http://testserver", follow_redirects=True
    ) as client:
        for number, case in enumerate(cases):
            path = place.filled(case.path)
            # One of the ended tokens in turn: `test_access` has that they are all nobody's.
            for kind in (*ALL, ENDED[number % len(ENDED)]):
                body = case.body and {
                    key: place.filled(value) if isinstance(value, str) else value
                    for key, value in case.body.items()
                }
                sent = (
                    {"content": place.library.envelope("narrow")} if case.sends else {"json": body}
                )
                token = place.service.tokens.get(kind)
                answer = await client.request(
                    case.method,
                    path,
                    params={key: place.filled(value) for key, value in case.params.items()},
                    headers={"Authorization": f"Bearer {token}"} if token else {},
                    **sent,
                )
                client.cookies.clear()
                if answer.status_code not in case.expected(kind):
                    found.append(
                        f"{case.method} {path} by {kind}: {answer.status_code}, "
                        f"not {case.expected(kind)}"
                    )
                told = () if case.about_public else FOREIGN.get(kind, ())
                found += [
                    f"{case.method} {path} tells {kind} of {w}" for w in told if w in answer.text
                ]
    return found


def test_every_route_is_in_the_table_and_no_other(place: Place) -> None:
    served = {
        (method, context.path_format or context.path)
        for context in iter_route_contexts(place.service.app.routes)
        for method in (context.methods or set()) - {"HEAD"}
    }
    assert served == {(case.method, case.template) for case in CASES}


def test_everyone_gets_what_the_table_says(place: Place) -> None:
    assert differences(place) == []


@pytest.mark.parametrize("path", ["/v1/corpora/acme", "/corpora/acme", "/v1/records/{acme record}"])
def test_a_read_of_a_confidential_corpus_is_in_the_audit_log(place: Place, path: str) -> None:
    def entries() -> list[str]:
        with Session(place.service.engine) as session:
            rows = session.exec(select(AuditEntry).where(AuditEntry.subject == "acme")).all()
        return [f"{row.user} {row.outcome}" for row in rows]

    before = len(entries())
    place.service.client("supplier").get(place.filled(path))
    place.service.client("auditor").get(place.filled(path))
    assert entries()[before:] == ["supplier done", "auditor done"]


def test_without_the_check_of_roles_the_table_does_not_hold(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("everywhere", "somewhere"):
        monkeypatch.setattr(access, name, lambda *_: True)
    assert any("by engineer" in each for each in differences(place, "/v1/audit"))
    found = differences(place, "/v1/runs/done/decisions")
    assert any("by supplier" in each for each in found)
    assert any("by public" in each for each in found)


def test_without_the_condition_on_corpora_the_table_does_not_hold(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (corpora, record_index):
        monkeypatch.setattr(module, "own_corpora", lambda _: true())
    for module in (visible_corpora, visible_models):
        monkeypatch.setattr(module, "supplied", lambda _: true())
    assert any("200, not" in each for each in differences(place, "/v1/corpora/"))
    for part in ("/first/versions/1.0.0/lineage", "/v1/corpora", "/v1/records/"):
        assert any("tells supplier of" in each for each in differences(place, part)), part
