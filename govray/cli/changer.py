"""Who changes the store by a command: the user of this machine, now."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from govray.cli import trust

if TYPE_CHECKING:
    from govray.store.registry import ChangedBy


def changer() -> ChangedBy:
    """For the audit log."""
    from govray.governance.formats.document import format_time
    from govray.store.registry import ChangedBy

    return ChangedBy(user=getpass.getuser(), at=format_time(trust.reference_time(None)))
