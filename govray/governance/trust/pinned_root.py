"""A person's own trust root: where it is kept, and that a given one never goes behind it.

`govray verify --pin` keeps a copy of a root in the person's configuration folder. From then on no
verb accepts an older root of that name, from anyone. An older root names keys and policy versions
that its owner has withdrawn since. A root of another name is somebody else's, and none of the
pinned one's business.
"""

from __future__ import annotations

import os
from pathlib import Path

from govray.errors import Refused, UsageError
from govray.governance.trust.trust_state import check_follows, root_name


def pinned_trust_root() -> Path:
    """Where a person's own trust root is looked for when none is given."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "govray" / "trust-root.json"


def check_follows_pinned(root: bytes, *, where: str) -> None:
    """Refuse a root that does not follow the pinned one of the same name, if there is one.

    Raises:
        Refused: An older version, another content of the same version, or a newer one that the
            pinned keys did not sign. Or one of the two is not a trust root; the error names it.
    """
    pinned = pinned_trust_root()
    try:
        previous = pinned.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"the pinned trust root cannot be read: {error.strerror}", where=str(pinned)
        ) from None
    if previous == root:
        return
    try:
        name = root_name(previous)
    except Refused as error:
        raise Refused(
            f"the pinned trust root is damaged: {error.what}",
            where=str(pinned),
            do=f"Get the root from its owner again, remove {pinned}, and pin the new one with "
            "govray verify --pin.",
        ) from None
    if root_name(root) != name:
        return
    try:
        check_follows(root, previous)
    except Refused as error:
        raise Refused(
            f"does not follow the pinned root: {error.what}",
            where=where,
            do=f"If its owner confirms the change to you in person, remove {pinned} first.",
        ) from None
