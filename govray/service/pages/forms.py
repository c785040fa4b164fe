"""The fields of a form that a page of ours sent.

A form is taken from our own pages only (`signing_in.from_own_page`), and read as a browser without
scripts sends it: ``application/x-www-form-urlencoded``. What the pages offer is within these
bounds; the body's own bound is `govray.service.limits`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias
from urllib.parse import parse_qs

from fastapi import Depends, Request

from govray.service.pages.signing_in import from_own_page
from govray.service.problems import Problem

MOST_FIELDS = 32

Fields: TypeAlias = Mapping[str, str]


def read_fields(body: bytes) -> Fields:
    """The first value of each field; lines end with a line feed, as in files.

    Raises:
        Problem: 422, it is no form, or has too many fields.
    """
    try:
        found = parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise Problem(
            422, "Not valid", "This is no form of these pages", "Go back, and try again"
        ) from None
    return {name: values[0].replace("\r\n", "\n") for name, values in found.items()}


async def _fields(request: Request) -> Fields:
    from_own_page(request)
    return read_fields(await request.body())


FieldsDep = Annotated[Fields, Depends(_fields)]
"""The `Fields` of this request, which a page of ours sent."""
