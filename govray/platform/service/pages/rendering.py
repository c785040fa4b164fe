"""Templates to responses: escaping, the security headers, and how numbers and times are written.

Numbers are written for reading, in full where they are counts of record; a shortened one stands
beside its full form. A time is written as the store has it, in UTC.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from sqlmodel import col, select
from starlette.datastructures import QueryParams

from govray.governance.verify.trace import outcome
from govray.platform.service.identity import session_cookie
from govray.platform.service.identity.access import Caller
from govray.platform.service.identity.rights import somewhere
from govray.platform.service.identity.visit import Visit
from govray.platform.service.visible.visible_models import policies
from govray.platform.store.tables import PolicyRow

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    # What a page shows depends on who asks.
    "Cache-Control": "private, no-store",
}

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))

_GOOD = {"COMPLETED", "production"}
_WARN = {"INTERRUPTED", "STOPPING", "STOPPED", "KILLED", "KILLING"}
_WARN |= {"PREEMPTING"}

CATEGORY_WORDS = {
    "public_domain": "public domain",
    "permissive": "permissive",
    "copyleft_limited": "limited copyleft",
    "copyleft": "copyleft",
    "commercial": "commercial",
    "unknown": "unknown",
}


def count(value: int | str | None) -> str:
    """``1234567`` as ``1,234,567``; an en dash for nothing known."""
    return "–" if value is None else f"{int(value):,}"


def brief(value: int | str) -> str:
    """Three digits and a unit: ``2.15M``."""
    number = int(value)
    for size, unit in _UNITS:
        if number >= size:
            scaled = number / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return str(number)


def decimals(value: float | None, digits: int = 3) -> str:
    """A measured number with so many digits behind the point."""
    return "–" if value is None else f"{value:,.{digits}f}"


def plain(value: object) -> str:
    """A hyperparameter: a float to four significant digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def size(value: int) -> str:
    """Bytes, in units of 1000 as disks are sold."""
    return f"{brief(value)}B" if value >= 1000 else f"{value} B"


def digest(value: str) -> str:
    """A digest cut to what an eye compares; the template keeps the whole beside it."""
    bare = value.removeprefix("sha256:")
    return f"{bare[:10]}…{bare[-6:]}" if len(bare) > 20 else bare


def minute(value: str) -> str:
    """An instant of the store, to the minute."""
    return f"{value[:10]} {value[11:16]} UTC"


def sign(value: str) -> tuple[str, str]:
    """A state's kind and the sign beside its word, so that colour is not the only difference."""
    state = str(value)
    if state in _GOOD:
        return "good", "✓"
    if state == "ERROR":
        return "bad", "✕"
    if state in _WARN:
        return "warn", "‖" if state == "STOPPED" else "!"
    return "plain", "●"


def word(value: str) -> str:
    return str(value).replace("_", " ").lower()


def category(value: str) -> str:
    return CATEGORY_WORDS.get(value, value)


def is_below(path: str, places: list[str]) -> bool:
    """Whether a path is one of ``places``, or lies below one."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def following(given: QueryParams, cursor: str) -> str:
    """The query of the page that follows: the same filters, and the cursor."""
    kept = [(key, value) for key, value in given.multi_items() if key != "cursor"]
    return urlencode([*kept, ("cursor", cursor)])


def sorted_by(given: QueryParams, key: str, down: bool) -> str:
    """The query of the same listing in another order, from its first page."""
    kept = [
        (name, value)
        for name, value in given.multi_items()
        if name not in ("cursor", "sort", "order") and value
    ]
    return urlencode([*kept, ("sort", key), ("order", "down" if down else "up")])


def environment(*packages: str) -> Environment:
    """What renders the templates of this package, and before them those of ``packages``."""
    names = (*packages, "govray.platform.service.pages")
    made = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in names]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = (count, brief, decimals, plain, size, digest, minute, sign, word, category, outcome)
    for function in (*texts, is_below, following, sorted_by):
        made.filters[function.__name__] = function
    made.tests["allowed"] = somewhere
    return made


_TEMPLATES = environment()


def render(visit: Visit, name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """The page ``name``, for who visits it."""
    opens = partial(_opens_policy, visit)
    return page(visit.request, visit.caller, name, status=status, opens_policy=opens, **values)


def _opens_policy(visit: Visit, digest: str) -> bool:
    """Whether the page of this policy is there, and for who visits."""
    readable = select(PolicyRow.digest).where(
        col(PolicyRow.digest) == digest, policies(visit.caller)
    )
    return visit.session.scalar(readable) is not None


def page(
    request: Request, caller: Caller, name: str, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """The page ``name``, for who reads it. Templates know the caller as ``reader``: inside a call
    block ``caller`` is Jinja's own."""
    html = _TEMPLATES.get_template(name).render(
        request=request,
        reader=caller,
        answers_cases=getattr(request.app.state, "cases", None) is not None,
        signed_in=session_cookie.read(request, session_cookie.COOKIE) is not None,
        **values,
    )
    return HTMLResponse(html, status_code=status, headers=HEADERS)
