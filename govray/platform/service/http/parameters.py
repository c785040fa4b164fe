"""Query parameters: those that an address lacks are refused; how OpenAPI names what it has."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute

from govray.platform.service.http.problems import Problem

LONGEST = 100
OPEN = frozenset({"/sign-in/callback"})
"""Addresses that ignore what they do not know: RFC 6749 section 4.1.2 asks it of an answer."""


async def known_parameters(request: Request) -> None:
    """A dependency of every route. Raises 422 for a parameter that the route does not take."""
    given = request.query_params.keys()
    if not given or request.url.path in OPEN:
        return
    known = sorted(_names(_dependant(request)))
    unknown = [name for name in given if name not in known]
    if unknown:
        errors = [
            {"field": f"query.{name[:LONGEST]}", "message": "This address has no such parameter"}
            for name in unknown[:20]
        ]
        raise Problem(
            422,
            "Not valid",
            f"{errors[0]['field']}: {errors[0]['message'].lower()}",
            f"It takes {', '.join(known)}" if known else "It takes none",
            errors=errors,
        )


def _dependant(request: Request) -> Any:
    """The route's own, with the dependencies of the routers that it is in."""
    context = (request.scope.get("fastapi") or {}).get("effective_route_context")
    return (context or request.scope["route"]).dependant


def _names(dependant: Any) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_names, dependant.dependencies))


PARAMETERS = {
    "action": "Entries of this action.",
    "by": "What usage is counted by.",
    "corpus": "A corpus's name.",
    "experiment": "An experiment's id.",
    "first": "The smaller size of the ledger, in leaves.",
    "from": "Digest of the policy that is replaced.",
    "group": "A layer group, such as `block.3`; of metrics, the group that they are in.",
    "if-none-match": "ETags of what you have.",
    "index": "A leaf's index, from 0.",
    "kind": "Decisions of this kind.",
    "model": "A model's name.",
    "name": "Of this name.",
    "outcome": "Entries of this outcome.",
    "path": "A tile's path, as C2SP tlog-tiles has it.",
    "policy": "Digest of a signed depth policy.",
    "pool": "In this pool.",
    "project": "Of this project.",
    "run": "A run's id.",
    "second": "The larger size; by default the ledger's.",
    "sha256": "A SHA-256 in hex.",
    "size": "The size that the proof is for; by default the ledger's.",
    "state": "In this state.",
    "subject": "Entries about this.",
    "to": "Digest of the policy that takes its place.",
    "user": "Of this user.",
    "version": "A semantic version: `1.4.0`.",
}
"""What a parameter is, where its route does not say it better."""


def operation_id(route: APIRoute) -> str:
    """A route's module and name, which no other has."""
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.name}"


def describe_parameters(description: dict[str, Any]) -> None:
    for methods in description["paths"].values():
        for operation in methods.values():
            for each in operation.get("parameters", ()):
                if not each.get("description") and each["name"].lower() in PARAMETERS:
                    each["description"] = PARAMETERS[each["name"].lower()]
