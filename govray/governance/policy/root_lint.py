"""Advice about a trust root that is valid: what its owner may not have meant.

Roles are kept apart so that no single key can vouch for data, decide what it may train, run the
training and witness it. A root that gives one key several of these parts is still a root; here it
is named. One combination is more than advice: `govray.governance.attestation.replay_check` takes no
operator's key for a witness's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from govray.governance.policy.lint import Finding
from govray.governance.trust.authority import Authority, TrustRoot


def lint_root(root: TrustRoot, delegated: Iterable[Authority] = ()) -> tuple[Finding, ...]:
    """Return the keys that have several roles; empty if none has."""
    return tuple(_shared_keys(root, (*root.authorities, *delegated)))


def _shared_keys(root: TrustRoot, authorities: Iterable[Authority]) -> Iterator[Finding]:
    held: dict[str, dict[str, str]] = {key.keyid: {"root": root.name} for key in root.keys}
    for authority in authorities:
        for key in authority.keys:
            held.setdefault(key.keyid, {}).setdefault(authority.role, authority.name)
    for keyid, roles in held.items():
        if len(roles) > 1:
            parts = ", ".join(f"{role} ({name})" for role, name in roles.items())
            yield Finding(
                "shared_key", keyid, f"one key has several roles: {parts}; give each its own"
            )
