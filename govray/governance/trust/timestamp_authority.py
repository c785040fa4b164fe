"""Whose timestamps count: a name and the certificates that its tokens have to lead to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from govray.governance.formats.certificate import CertificateField
from govray.governance.formats.document import Document, Name


class TimestampAuthority(Document):
    """A timestamp authority (TSA) of RFC 3161.

    Attributes:
        name: Unique in the trust root.
        certificates: Of its certification authorities, or its own: a token's chain ends in one of
            them. Each has to be valid at the time that the token states.
    """

    name: Name
    certificates: Annotated[tuple[CertificateField, ...], Field(min_length=1, max_length=8)]
