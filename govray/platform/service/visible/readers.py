"""Who comes to what of the service at all: what routers demand of a caller, by roles alone."""

from __future__ import annotations

from fastapi import Depends

from govray.platform.service.identity.access import require
from govray.platform.service.identity.caller import STAFF, Caller, Role
from govray.platform.service.identity.roles import places, submits
from govray.platform.service.visible.reach import is_staff

_CORPUS_ROLES: tuple[Role, ...] = (*STAFF, "supplier")
AUDITING: tuple[Role, ...] = ("admin", "auditor")


def reads_runs(caller: Caller) -> bool:
    """Whether there may be runs that the caller reads, as `RUN_READERS`."""
    found = places(caller, "view")
    return is_staff(caller) or any(found[r] for r in ("organisation", "workspace", "project"))


def reads_corpora(caller: Caller) -> bool:
    """Whether there may be corpora that the caller reads, as `CORPUS_READERS`."""
    return caller.role in _CORPUS_ROLES or any(places(caller, "data").values())


def is_admin(caller: Caller) -> bool:
    return caller.role == "admin"


def administers(caller: Caller) -> bool:
    """Whether the caller is that, with a token that is good for it."""
    return is_admin(caller) and caller.has("admin")


def watches(caller: Caller) -> bool:
    """Whether the caller sees who is in the organisation, and has which roles."""
    return not caller.roles.isdisjoint(AUDITING)


def reads_audit(caller: Caller) -> bool:
    """Whether there may be entries of the audit log that the caller reads, as `AUDITORS`."""
    found = places(caller, "audit")
    return watches(caller) or any(found[r] for r in ("organisation", "workspace", "project"))


def promotes(caller: Caller) -> bool:
    """Whether roles in parts of the organisation let the caller write to the registry."""
    return any(places(caller, "promote").values())


def reads_public_only(caller: Caller) -> bool:
    """Whether the caller reads what everyone reads and no more, so that caches may keep it."""
    return caller.role == "public"


STAFF_ONLY = Depends(require(*STAFF))
"""What a router demands for what is nobody's alone: the numbers of the service itself."""


RUN_READERS = Depends(require(*STAFF, bound=reads_runs))
"""What a router demands for runs, what they measured and decided, and for usage."""


CORPUS_READERS = Depends(require(*_CORPUS_ROLES, bound=reads_corpora))


AUDITORS = Depends(require(*AUDITING, bound=reads_audit))


SIGNED_IN = Depends(require("admin", "engineer", "auditor", "supplier", "member"))
"""What a router demands for places, people and tokens; each route says who may do what there."""


SUBMITTERS = Depends(require("admin", "engineer", scope="write", bound=submits))
"""What a route demands that submits, or changes what was submitted; the project says the rest."""
