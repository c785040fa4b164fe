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


@dataclass(frozen=True)
class Case:
    """One request and who gets an answer to it.

    ``refused`` is the status of tokens that do not, ``public`` that of no token. Who is in
    ``unseen`` is told 404. Ended tokens are
    401 everywhere, unless the route asks nobody who they are (``open``). ``sends``: the body is the
    envelope of the public attestation.
    """

    method: str
    template: str
    answered: tuple[str, ...]
    path: str = ""
    body: dict[str, Any] | None = None
    refused: int = 403
    public: int = 401
    ok: tuple[int, ...] = (200,)
    open: bool = False
    sends: bool = False
    params: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

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


def get(template: str, answered: tuple[str, ...], path: str = "", **more: Any) -> Case:
    return Case("GET", template, answered, path or template, **more)


def hidden(template: str, answered: tuple[str, ...], path: str = "", **more: Any) -> Case:
    """Whoever may not read it is not told that it exists."""
    return get(template, answered, path, **({"refused": 404, "public": 404} | more))


def seen(
    method: str, template: str, answered: tuple[str, ...], path: str = "", **more: Any
) -> Case:
    """Who has no role in the place is not told that it exists; who has another role is refused."""
    path = path or template.format(
        workspace="default", project="default", name="small", binding="{binding}"
    )
    return Case(method, template, answered, path, **({"unseen": OUTSIDE} | more))


PROJECT = "/v1/projects/{project}"
VERSION = "/v1/models/{model}/versions/{version}"
WRITERS = ("admin", "engineer")
_RUN = "experiments/e1"
WEBHOOK = "w-000000000000"
"""There is none of this name."""

CASES = [
    get("/v1/health", ALL, open=True),
    get("/v1/live", ALL, open=True),
    get("/v1/ready", ALL, open=True),
    get("/v1/openapi.json", ALL, open=True),
    get("/v1/sign-in", ALL, open=True),
    get("/metrics", STAFF),
    get("/v1/audit", ("admin", "auditor")),
    get("/v1/usage", STAFF),
    get("/v1/usage.csv", STAFF),
    get("/v1/versions", ALL),
    get("/v1/experiments", STAFF),
    get("/v1/experiments/{experiment}", STAFF, "/v1/experiments/e1"),
    Case(
        "PUT",
        "/v1/experiments/{experiment}/tags",
        WRITERS,
        "/v1/experiments/e2/tags",
        {"tags": ["baseline"]},
    ),
    get("/v1/runs", STAFF),
    get("/v1/runs/{run}/metrics.csv", STAFF, "/v1/runs/done/metrics.csv"),
    get("/v1/runs/{run}", STAFF, "/v1/runs/done"),
    get("/v1/runs/{run}/metrics", STAFF, "/v1/runs/done/metrics"),
    get("/v1/runs/{run}/metrics/stream", STAFF, "/v1/runs/done/metrics/stream"),
    get("/v1/runs/{run}/decisions", STAFF, "/v1/runs/done/decisions"),
    get("/v1/runs/{run}/checkpoints", STAFF, "/v1/runs/done/checkpoints"),
    get("/v1/runs/{run}/pins", STAFF, "/v1/runs/done/pins", ok=(409,)),  # no folder
    *(
        Case(
            "POST",
            f"/v1/runs/{{run}}/checkpoints/{{step}}:{verb}",
            WRITERS,
            f"/v1/runs/done/checkpoints/999:{verb}",
            body,
            ok=(404, 403),  # there is none; of an admin's run the engineer is told no first
        )
        for verb, body in (("pin", {}), ("unpin", None))
    ),
    get("/v1/deletions", STAFF),
    get("/v1/deletions/{run}", STAFF, "/v1/deletions/done", ok=(404,)),  # it is not marked
    *(
        # It has no folder, and of an admin's run the engineer is told no.
        Case(method, f"/v1/{noun}{verb}", WRITERS, f"/v1/{path}{verb}", ok=(409, 403))
        for noun, path in (("runs/{run}", "runs/done"), ("experiments/{experiment}", _RUN))
        for method, verb in (("DELETE", ""), ("POST", ":restore"))
    ),
    get("/v1/pools", STAFF),
    Case("POST", "/v1/experiments", WRITERS, "/v1/experiments", {"forkOf": "s-one"}, ok=(201,)),
    # This service has no storage; `test_archives.py` has one that does.
    *(
        Case(
            method,
            "/v1/archives/{digest}",
            WRITERS,
            f"/v1/archives/sha256:{0:064x}",
            ok=(409,),
        )
        for method in ("GET", "PUT")
    ),
    Case("POST", "/v1/experiments:check", WRITERS, "/v1/experiments:check", {"forkOf": "s-one"}),
    *(
        Case(
            "POST",
            f"/v1/experiments/{{experiment}}:{verb}",
            WRITERS,
            f"/v1/experiments/s-one:{verb}",
            ok=(200, 409),  # the second finds it so
        )
        for verb in ("stop", "kill", "archive", "unarchive", "resume")
    ),
    get("/v1/runs/{run}/logs", STAFF, "/v1/runs/done/logs"),
    # There is no such checkpoint on storage.
    *(
        get(
            f"/v1/runs/{{run}}/checkpoints/{{step}}/files{template}",
            STAFF,
            f"/v1/runs/done/checkpoints/1/files{part}",
            ok=(404,),
        )
        for template, part in (("", ""), ("/{path}", "/state.json"))
    ),
    # The run keeps none.
    get(
        "/v1/runs/{run}/logs/{name}",
        STAFF,
        "/v1/runs/done/logs/rank-0-1.log",
        ok=(404,),
    ),
    get(
        "/v1/runs/{run}/logs/{name}/text",
        STAFF,
        "/v1/runs/done/logs/rank-0-1.log/text",
        ok=(404,),
    ),
    get(
        "/v1/runs/{run}/logs/{name}/stream",
        STAFF,
        "/v1/runs/done/logs/rank-0-1.log/stream",
    ),
    get("/runs/{run}/logs", STAFF, "/runs/done/logs"),
    # ``first`` used acme-legal's corpus too, ``guarded`` only the archive's; ``narrow`` is public.
    get("/v1/models", ALL),
    hidden("/v1/models/{model}", TOKENS, "/v1/models/first"),
    hidden("/v1/models/{model}", THEIRS, "/v1/models/guarded"),
    hidden("/v1/models/{model}", ALL, "/v1/models/narrow"),
    hidden("/v1/models/{model}/versions", THEIRS, "/v1/models/guarded/versions"),
    hidden(VERSION, TOKENS, "/v1/models/first/versions/1.0.0"),
    hidden(VERSION, THEIRS, "/v1/models/guarded/versions/1.0.0"),
    Case(
        "POST",
        "/v1/models/{model}/versions",
        WRITERS,
        "/v1/models/first/versions",
        {"version": "{n}.0.0", "attestation": "{first}"},
        ok=(201,),
    ),
    Case("PATCH", VERSION, WRITERS, "/v1/models/first/versions/1.0.0", {"notes": "x"}),
    Case(
        "POST",
        VERSION + ":promote",
        WRITERS,
        "/v1/models/first/versions/1.0.0:promote",
        {"stage": "archived"},
        ok=(200, 409),  # the second finds it archived
    ),
    # Lineage, whole or the caller's own rows.
    *(
        hidden(template, answered, template.format(model=model, version="1.0.0", group="{group}"))
        for template in (
            VERSION + "/lineage",
            VERSION + "/layers/{group}",
            VERSION + "/memorization",
        )
        for model, answered in (("first", TOKENS), ("guarded", THEIRS), ("narrow", ALL))
    ),
    *(
        hidden(
            f"/v1/attestations/{{digest}}{part}", answered, f"/v1/attestations/{{{model}}}{part}"
        )
        for part in ("/lineage", "/layers/{group}", "/memorization")
        for model, answered in (("first", TOKENS), ("guarded", THEIRS), ("narrow", ALL))
    ),
    # The signed bytes name every corpus: staff, or public.
    hidden("/v1/attestations/{digest}", STAFF, "/v1/attestations/{first}"),
    hidden("/v1/attestations/{digest}", ALL, "/v1/attestations/{narrow}"),
    # The files of models are for staff, whoever may read the attestation.
    *(
        hidden(
            f"/v1/attestations/{{digest}}/files{template}",
            STAFF,
            f"/v1/attestations/{{{model}}}/files{part}",
        )
        for template, part in (("", ""), ("/{path}", "/model.safetensors"))
        for model in ("first", "narrow")
    ),
    get("/v1/attestations", ALL),
    get("/v1/attestations:by-subject", ALL, params={"sha256": "{weights}"}),
    Case("POST", "/v1/attestations:verify", ALL, "/v1/attestations:verify", sends=True),
    # A corpus and its records, for its supplier.
    get("/v1/corpora", TOKENS),
    get("/v1/corpora/{corpus}", MINE, "/v1/corpora/acme", unseen=("other supplier",)),
    get("/v1/corpora/{corpus}", THEIRS, "/v1/corpora/alpha", unseen=("supplier",)),
    get("/v1/records/{sha256}", TOKENS, "/v1/records/{acme record}"),
    get("/v1/records/{sha256}", TOKENS, "/v1/records/{alpha record}"),
    Case("POST", "/v1/records:search", TOKENS, "/v1/records:search", {"text": "anything"}),
    # A ledger's head and proofs for whom its model concerns; its leaves name every corpus.
    *(
        hidden(
            f"/v1/ledgers/{{run}}{part}", answered, f"/v1/ledgers/run-{model}{part}", params=more
        )
        for part, more in (
            ("", {}),
            ("/checkpoint", {}),
            ("/proofs/inclusion", {"index": "0"}),
            ("/proofs/consistency", {"first": "1"}),
        )
        for model, answered in (("first", TOKENS), ("guarded", THEIRS), ("narrow", ALL))
    ),
    *(
        hidden("/v1/ledgers/{run}/tile/{path}", answered, f"/v1/ledgers/run-{model}/{{tile}}")
        for model, answered in (("first", TOKENS), ("guarded", THEIRS))
    ),
    get(
        "/v1/ledgers/{run}/entries/{index}",
        STAFF,
        "/v1/ledgers/run-first/entries/0",
        public=404,
        unseen=("member",),
    ),
    # Policies and roots of what is public.
    get("/v1/policies", ALL),
    hidden("/v1/policies/{digest}", ALL, "/v1/policies/{policy}"),
    get("/v1/policies:diff", ALL, params={"from": "{policy}", "to": "{policy}"}),
    Case(
        "POST",
        "/v1/policies/{digest}:explain",
        ALL,
        "/v1/policies/{policy}:explain",
        {"license": "MIT"},
    ),
    get("/v1/trust-roots", ALL),
    hidden("/v1/trust-roots/{digest}", ALL, "/v1/trust-roots/{root}"),
    # Workspaces, projects and roles, as far as one sees them.
    get("/v1/workspaces", PEOPLE),
    Case("POST", "/v1/workspaces", ("admin",), "/v1/workspaces", {"name": "w{n}"}, ok=(201,)),
    seen("GET", "/v1/workspaces/{workspace}", STAFF),
    seen("PATCH", "/v1/workspaces/{workspace}", ("admin",), body={"description": "x"}),
    get("/v1/projects", PEOPLE),
    seen(
        "POST", "/v1/projects", ("admin",), body={"name": "p{n}", "workspace": "default"}, ok=(201,)
    ),
    seen("GET", PROJECT, STAFF),
    seen("PATCH", PROJECT, ("admin",), body={"description": "x"}),
    get(PROJECT + "/space", STAFF, "/v1/projects/default/space"),
    *(
        Case(method, PROJECT + verb, ("admin",), "/v1/projects/default" + verb, ok=(409,))
        for method, verb in (("DELETE", ""), ("POST", ":restore"))
    ),
    seen("GET", PROJECT + "/settings", STAFF),
    seen("PUT", PROJECT + "/settings", ("admin",), body={}),
    get("/v1/role-bindings", PEOPLE),
    seen(
        "POST",
        "/v1/role-bindings",
        ("admin",),
        body={"user": "engineer", "role": "viewer", "scope": "project", "place": "default"},
        ok=(201,),
    ),
    # The admin, who comes first, takes it away from all.
    seen(
        "DELETE",
        "/v1/role-bindings/{binding}",
        ("admin",),
        ok=(204,),
        unseen=(*OUTSIDE, "engineer", "auditor"),
    ),
    get("/v1/whoami", PEOPLE),
    get("/v1/users", ("admin", "auditor")),
    get("/v1/users/{user}", ("admin", "auditor"), "/v1/users/engineer"),
    Case("PATCH", "/v1/users/{user}", ("admin",), "/v1/users/engineer", {"disabled": False}),
    get("/v1/tokens", PEOPLE),
    Case("POST", "/v1/tokens", PEOPLE, "/v1/tokens", {"name": "mine"}, ok=(201,)),
    Case(
        "POST",
        "/v1/tokens/{token}:revoke",
        PEOPLE,
        f"/v1/tokens/{'0' * 12}:revoke",
        ok=(404,),  # nobody's
    ),
    # Webhooks: what is told leaves the house.
    get("/v1/alerts", STAFF),
    get("/v1/webhooks", ("admin",)),
    Case(
        "POST",
        "/v1/webhooks",
        ("admin",),
        "/v1/webhooks",
        {"url": "https://hooks.example/"},
        ok=(201,),
    ),
    Case("DELETE", "/v1/webhooks/{webhook}", ("admin",), f"/v1/webhooks/{WEBHOOK}", ok=(404,)),
    Case(
        "POST",
        "/v1/webhooks/{webhook}:test",
        ("admin",),
        f"/v1/webhooks/{WEBHOOK}:test",
        ok=(404,),
    ),
    get(
        "/v1/webhooks/{webhook}/deliveries",
        ("admin",),
        f"/v1/webhooks/{WEBHOOK}/deliveries",
        ok=(404,),
    ),
    Case(
        "POST",
        "/v1/webhooks/{webhook}/deliveries/{event}:resend",
        ("admin",),
        f"/v1/webhooks/{WEBHOOK}/deliveries/{0:064x}:resend",
        ok=(404,),
    ),
    # Cases: of people with a token. Who reads them is told of a number; no one else is.
    Case("POST", "/v1/cases", PEOPLE, "/v1/cases", {"contact": "a", "text": "b"}, ok=(201,)),
    get("/v1/cases", WATCHERS),
    get("/v1/cases/{case}", WATCHERS, "/v1/cases/{case}"),
    hidden("/v1/cases/{case}/standing", WATCHERS, "/v1/cases/{case}/standing"),
    hidden("/v1/cases/{case}/answer", WATCHERS, "/v1/cases/{case}/answer", ok=(404,)),
    *(
        Case(
            "POST",
            f"/v1/cases/{{case}}:{verb}",
            ("admin",),
            f"/v1/cases/{{case}}:{verb}",
            body,
            ok=ok,
        )
        for verb, body, ok in (
            ("search", None, (200,)),
            ("answer", {}, (200,)),
            ("link", {"model": "first", "version": "1.0.0"}, (409,)),  # nothing is decided
            ("decide", {"decision": "refused", "reason": "It is a test."}, (200,)),
        )
    ),
    # Tasks: as experiments; nobody here has one. This service shows none.
    get("/v1/tasks", STAFF),
    Case(
        "POST",
        "/v1/tasks",
        WRITERS,
        "/v1/tasks",
        {"name": "look", "config": "kind: notebook\n"},
        ok=(201,),
    ),
    get("/v1/tasks/{task}", STAFF, "/v1/tasks/s-none", ok=(404,)),
    get("/v1/tasks/{task}/files", STAFF, "/v1/tasks/s-none/files", ok=(404,)),
    get("/v1/tasks/{task}/files/{path}", STAFF, "/v1/tasks/s-none/files/output.log", ok=(404,)),
    *(
        Case("POST", f"/v1/tasks/{{task}}:{verb}", WRITERS, f"/v1/tasks/s-none:{verb}", ok=(404,))
        for verb in ("open", "stop", "kill", "archive", "unarchive", "resume")
    ),
    # The pages: the same rules.
    get("/", ALL),
    get("/search", ALL),
    Case("POST", "/search", TOKENS, "/search", ok=(403,)),
    get("/sign-in", ALL, open=True),
    # A form is taken from our own pages only, whoever sends it.
    Case("POST", "/sign-in", ALL, "/sign-in", ok=(403,), open=True),
    Case("POST", "/sign-out", ALL, "/sign-out", ok=(403,), open=True),
    # There is no provider here.
    get("/sign-in/provider", ALL, ok=(404,), open=True),
    get("/sign-in/callback", ALL, ok=(404,), open=True),
    get("/models", ALL),
    get("/versions", ALL),
    get("/policies", ALL),
    hidden("/policies/{digest}", ALL, "/policies/{policy}"),
    *(
        hidden(template, answered, template.format(model=model, version="1.0.0"))
        for template in ("/models/{model}", "/models/{model}/{version}")
        for model, answered in (("first", TOKENS), ("guarded", THEIRS), ("narrow", ALL))
    ),
    *(
        hidden("/attestations/{digest}", answered, f"/attestations/{{{model}}}")
        for model, answered in (("first", TOKENS), ("guarded", THEIRS), ("narrow", ALL))
    ),
    get("/corpora", TOKENS),
    get("/corpora/{corpus}", MINE, "/corpora/acme", unseen=("other supplier",)),
    get("/corpora/{corpus}", THEIRS, "/corpora/alpha", unseen=("supplier",)),
    # Forms, again: none of these is from a page of ours.
    get("/ask", ALL),
    Case("POST", "/ask", ALL, "/ask", ok=(403,)),
    hidden("/ask/{case}/{key}", WATCHERS, "/ask/{case}/no-key"),
    hidden("/ask/{case}/{key}/answer.dsse.json", WATCHERS, "/ask/{case}/no-key/answer.dsse.json"),
    get("/cases", WATCHERS),
    get("/cases/{case}", WATCHERS, "/cases/{case}"),
    get("/cases/{case}/answer.dsse.json", WATCHERS, "/cases/{case}/answer.dsse.json"),
    *(
        Case("POST", f"/cases/{{case}}/{verb}", WATCHERS, f"/cases/{{case}}/{verb}", ok=(403,))
        for verb in ("search", "answer", "decide", "link")
    ),
    get("/experiments", STAFF),
    get("/experiments/{experiment}", STAFF, "/experiments/e1"),
    get("/queue", STAFF),
    get("/new", WRITERS),
    get("/tasks", STAFF),
    get("/tasks/{task}", STAFF, "/tasks/s-none", ok=(404,)),
    # Forms: whoever may, sends none from our own page here.
    *(
        Case("POST", template, WRITERS, path, ok=(403,))
        for template, path in (
            ("/new", "/new"),
            ("/experiments", "/experiments"),
            ("/experiments/{experiment}/{verb}", "/experiments/s-one/stop"),
            ("/tasks", "/tasks"),
            ("/tasks/{task}/open", "/tasks/s-one/open"),
            ("/tasks/{task}/{verb}", "/tasks/s-one/stop"),
            ("/models/{model}/{version}/promote", "/models/first/1.0.0/promote"),
            ("/models/{model}/{version}/edit", "/models/first/1.0.0/edit"),
            ("/attestations/{digest}/register", "/attestations/{first}/register"),
        )
    ),
    get("/models/{model}/{version}/edit", WRITERS, "/models/first/1.0.0/edit"),
    get("/attestations/{digest}/register", WRITERS, "/attestations/{first}/register"),
    get(
        "/models/{model}/{version}/promote",
        WRITERS,
        "/models/first/1.0.0/promote",
        params={"stage": "staging"},
    ),
    *(
        Case("POST", f"/runs/{{run}}/{verb}", WRITERS, f"/runs/done/{verb}", ok=(409, 403))
        for verb in ("delete", "restore")
    ),
    *(
        Case(
            "POST", f"/experiments/{{experiment}}/{verb}", WRITERS, f"/experiments/e1/{verb}", ok=ok
        )
        for verb, ok in (("tags", (403,)), ("delete", (409, 403)), ("restore", (409, 403)))
    ),
    get("/runs", STAFF),
    get("/compare", STAFF, "/compare?run=done&run=going"),
    get("/runs/{run}", STAFF, "/runs/done"),
    get(
        "/runs/{run}/figures/{file}",
        STAFF,
        f"/runs/done/figures/{0:016x}-{7:09d}.json",
        ok=(404,),  # the run keeps none
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
