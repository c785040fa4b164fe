"""Who changes the store by a command: the user of this machine, now."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from govray.cli import trust

if TYPE_CHECKING:
    from govray.platform.store.audit_log import ChangedBy


def changer(user: str | None = None) -> ChangedBy:
    """For the audit log. ``user``: in whose name; the user of this machine without."""
    from govray.governance.formats.document import format_time
    from govray.platform.store.audit_log import ChangedBy

    return ChangedBy(user=user or getpass.getuser(), at=format_time(trust.reference_time(None)))
