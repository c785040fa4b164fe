"""A URL that a credential states, as an IRI (RFC 3987): other readers refuse what is none."""

from __future__ import annotations

from urllib.parse import quote

# What URI syntax uses (RFC 3986, section 2), and the mark of what is escaped already.
_SYNTAX = ":/?#[]@!$&'()*+,;=-._~%"


def iri(url: str) -> str:
    """``url`` with every character escaped that no URI may hold."""
    return quote(url, safe=_SYNTAX)
