"""Query parameters that an address does not have are refused: a misspelt filter filters nothing."""

from __future__ import annotations

from typing import Any

from fastapi import Request

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
