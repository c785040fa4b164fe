"""Whether a loaded model may still answer.

Revocation lists are files that others replace. They are read again every `LOOK_S` seconds, when
somebody asks. If one changed, or `AGAIN_S` have gone by, the folder is verified again. A list may
have become too old meanwhile, or a credential may have ended. A model that no longer verifies
answers nothing until it does. The folder must still be the one that was loaded.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from govray.errors import GovrayError, Refused
from govray.governance.trust.anchor import read_lists
from govray.governance.verify.verifier import verify
from govray.platform.inference.served_model import ServedModel

LOOK_S = 2.0
AGAIN_S = 3600.0


class ModelStanding:
    """The verdict on one loaded model, looked at again and again. ``revocations``: files of lists,
    or folders of them."""

    def __init__(
        self,
        served: ServedModel,
        *,
        trust_root: Path | bytes,
        revocations: Sequence[Path] = (),
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._served = served
        self._trust_root = trust_root
        self._revocations = tuple(revocations)
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._withdrawn: GovrayError | None = None
        # So that the first question verifies: a list may have come since the model was loaded.
        self._lists: bytes | None = None
        self._looked = self._verified = -AGAIN_S

    def require(self) -> ServedModel:
        """The model, if it may answer; otherwise raises a `GovrayError` that says why."""
        with self._lock:
            now = self._elapsed()
            if now - self._looked >= LOOK_S:
                self._look(now)
                self._looked = now
            if self._withdrawn is not None:
                raise self._withdrawn
        return self._served

    def _look(self, now: float) -> None:
        try:
            lists = _digest(read_lists(self._revocations))
            if lists == self._lists and now - self._verified < AGAIN_S:
                return
            found = verify(
                self._served.verified.path,
                trust_root=self._trust_root,
                revocations=self._revocations,
                at=datetime.now(UTC),
            )
            if found.digest != self._served.attestation:
                raise Refused(
                    "the folder holds another model now",
                    where=str(found.path),
                    do="Start the service again to serve it",
                )
        except GovrayError as error:
            # Looked at again next time: what is missing may come back.
            self._withdrawn, self._lists = error, None
        else:
            self._withdrawn, self._lists, self._verified = None, lists, now


def _digest(lists: Sequence[bytes]) -> bytes:
    whole = hashlib.sha256()
    for each in sorted(lists):
        whole.update(hashlib.sha256(each).digest())
    return whole.digest()
