"""Who asks: a name, a role and what the token is good for. Pure; ``access.py`` finds out.

========== ==================================================================================
admin      everything
engineer   reads everything but others' tokens and the audit log, writes the registry
auditor    reads everything, the audit log too, writes nothing
supplier   its own corpora, and of the models that used them what concerns those
member     what is public, and what the roles bound to workspaces and projects allow
public     no token: attestations marked public, their policies and roots, ledger proofs
========== ==================================================================================

These are the roles in the whole organisation. Of several the first counts, and none takes away what
another allows. Further roles are bound to parts of it, and say there what
`govray.platform.service.identity.roles` has in a table.

A scope narrows what a token of that role is good for: ``admin`` includes ``write``, which
includes ``read``. Searches and checks that change nothing are reads, whatever their method.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

Role = Literal["admin", "engineer", "auditor", "supplier", "member", "public"]
BoundRole = Literal["admin", "engineer", "steward", "auditor", "viewer", "supplier"]
Reach = Literal["organisation", "workspace", "project", "model", "case"]
Scope = Literal["read", "write", "admin"]

ROLES: tuple[Role, ...] = get_args(Role)
SCOPES: tuple[Scope, ...] = get_args(Scope)

STAFF: tuple[Role, ...] = ("admin", "engineer", "auditor")
"""The roles that read every corpus."""


@dataclass(frozen=True, kw_only=True)
class PlaceRole:
    """A role in ``place``, which is a ``reach``; ``until`` ends it: ``YYYY-MM-DDTHH:MM:SSZ``."""

    role: BoundRole
    reach: Reach
    place: str = ""
    until: str | None = None


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks. ``token`` is the token's public id, if one was given.

    ``role_until`` ends a role that a binding gave. ``bound`` are roles in parts of the organisation
    that were in force when the caller was found. ``groups`` are those that an identity provider
    names.
    """

    name: str
    role: Role
    supplier: str | None = None
    scopes: frozenset[str] = frozenset({"read"})
    token: str | None = None
    role_until: str | None = None
    bound: tuple[PlaceRole, ...] = ()
    groups: frozenset[str] = frozenset()

    @property
    def public(self) -> bool:
        """Whether no token was given."""
        return self.role == "public"

    @property
    def roles(self) -> frozenset[str]:
        """All roles in the whole organisation: ``role``, and what adds to it."""
        return frozenset({self.role, *(b.role for b in self.bound if b.reach == "organisation")})

    def has(self, scope: Scope) -> bool:
        """Whether the token is good for ``scope``."""
        return any(each in self.scopes for each in SCOPES[SCOPES.index(scope) :])

    def facts(self) -> dict[str, Any]:
        """What they may know of themselves, beside the roles in parts of the organisation."""
        return {
            "name": self.name,
            "role": self.role,
            "role_until": self.role_until,
            "supplier": self.supplier,
            "scopes": [each for each in SCOPES if self.has(each)],
        }


PUBLIC = Caller(name="public", role="public")
"""A caller without a token."""

LOCAL = Caller(name="local", role="admin", scopes=frozenset(SCOPES))
"""The caller of a service without authentication."""


def permitted(caller: Caller, roles: Iterable[str], scope: Scope) -> bool:
    """Whether ``caller`` has one of ``roles`` and a token that is good for ``scope``."""
    return not caller.roles.isdisjoint(roles) and caller.has(scope)
