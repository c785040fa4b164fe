"""Zips that govray has not written."""

from __future__ import annotations

import io
import stat
import zipfile


def entry(name: str, mode: int = stat.S_IFREG | 0o644, **fields: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def zipped(*infos: zipfile.ZipInfo, content: bytes = b"/etc/hosts", comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for info in infos:
            archive.writestr(info, content)
        archive.comment = comment
    return out.getvalue()
