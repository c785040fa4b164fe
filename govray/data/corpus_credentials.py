"""The credentials of a folder of corpora: read, then verified. No record is read for it.

Listing runs reads credentials too. So this imports neither Ray nor what packs records.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from govray.data.corpus import CREDENTIAL_FILE, list_corpora
from govray.data.prepared.object_ranges import at_once
from govray.errors import Refused
from govray.governance.policy.credential import Credential, verify_credential
from govray.governance.trust.trust_state import TrustState, Verified
from govray.storage.place import Place


def read_credentials(corpora: Place) -> dict[str, bytes]:
    """The envelope of every corpus's credential in a folder, by corpus name; not yet verified.
    Raises ``Refused``: a corpus without a credential."""
    names = list_corpora(corpora)
    return dict(zip(names, at_once(_envelope, [corpora / name for name in names]), strict=True))


def _envelope(corpus: Place) -> bytes:
    path = corpus / CREDENTIAL_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(
            f"no readable credential, so no licence is known ({error.strerror})",
            where=str(path),
            do="Have the corpus's authority sign one, or move the corpus elsewhere.",
        ) from error


def verify_credentials(
    corpora: Place, envelopes: Mapping[str, bytes], trust: TrustState, *, at: datetime
) -> dict[str, Verified[Credential]]:
    """The verified credential of every corpus, by corpus name."""
    verified: dict[str, Verified[Credential]] = {}
    for name, data in envelopes.items():
        where = str(corpora / name / CREDENTIAL_FILE)
        try:
            credential = verify_credential(trust, data, at=at)
        except Refused as error:  # the file says more than the kind of document
            raise type(error)(error.what, where=where, do=error.do) from error
        if credential.document.corpus != name:
            raise Refused(
                f"the credential is for corpus {credential.document.corpus!r}",
                where=where,
                do="Name the corpus's folder after the corpus.",
            )
        verified[name] = credential
    return verified
