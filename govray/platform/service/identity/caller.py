"""Who asks: a name, roles, and what the token is good for. Pure; ``access.py`` finds out.

========== ==================================================================================
admin      everything
engineer   reads everything but others' tokens and the audit log, writes the registry
auditor    reads everything, the audit log too, writes nothing
supplier   its own corpora, and of the models that used them what concerns those
member     what is public, and what the roles bound to workspaces and projects allow
public     no token: attestations marked public, their policies and roots, ledger proofs
========== ==================================================================================

An account has one of these. Further roles are bound to the organisation or to parts of it. Roles
add up, and none takes away what another allows. What they allow is in
`govray.platform.service.identity.rights`.

A scope narrows what a token of that role is good for: ``admin`` includes ``write``, which
includes ``read``. Searches and checks that change nothing are reads, whatever their method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Role = Literal["admin", "engineer", "auditor", "supplier", "member", "public"]
BoundRole = Literal["admin", "engineer", "steward", "auditor", "viewer"]
Reach = Literal["organisation", "workspace", "project"]
Scope = Literal["read", "write", "admin"]

ROLES: tuple[Role, ...] = get_args(Role)
SCOPES: tuple[Scope, ...] = get_args(Scope)


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

    ``account`` is the role of the account. ``bound`` are roles that were in force when the caller
    was found. ``groups`` are those that an identity provider names.
    """

    name: str
    account: Role
    supplier: str | None = None
    scopes: frozenset[str] = frozenset({"read"})
    token: str | None = None
    bound: tuple[PlaceRole, ...] = ()
    groups: frozenset[str] = frozenset()

    @property
    def public(self) -> bool:
        """Whether no token was given."""
        return self.account == "public"

    @property
    def roles(self) -> frozenset[str]:
        """All roles in the whole organisation."""
        return frozenset({self.account, *(b.role for b in self.bound if b.reach == "organisation")})

    @property
    def role(self) -> Role:
        """The first of `ROLES` that the caller has in the whole organisation."""
        return next(each for each in ROLES if each in self.roles)

    @property
    def role_until(self) -> str | None:
        """When `role` ends by itself; None: never."""
        ends = [b.until for b in self.bound if b.reach == "organisation" and b.role == self.role]
        lasting = self.role == self.account or None in ends
        return None if lasting else max(each for each in ends if each is not None)

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


PUBLIC = Caller(name="public", account="public")
"""A caller without a token."""

LOCAL = Caller(name="local", account="admin", scopes=frozenset(SCOPES))
"""The caller of a service without authentication."""
