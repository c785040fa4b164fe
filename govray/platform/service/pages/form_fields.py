"""What a form sends: fields by name, taken from our own pages only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ValidationError

from govray.governance.formats.field_errors import field_errors
from govray.platform.service.http.edits import SHOWN
from govray.platform.service.http.problems import Problem, not_valid, unprocessable
from govray.platform.service.identity.access import is_own_page, needs
from govray.platform.service.identity.visit import Visit, VisitDep
from govray.platform.service.pages.rendering import HEADERS

MOST_FIELDS = 32

Fields = dict[str, str]


def from_own_page(request: Request) -> None:
    """Refuse a form that another site sent."""
    if not is_own_page(request):
        raise Problem(
            403,
            "Another site",
            "This form was not sent by a page of this service",
            "Open this service yourself and try again",
        )


async def form_of(request: Request) -> Fields:
    """The fields of a form, each once, as somebody typed them: a browser sends lines with CRLF.

    The one parser of forms: what cannot be read has the same answer everywhere.

    Raises:
        Problem: 403, another site sent it; 400, it is no form, or has more than `MOST_FIELDS`.
    """
    from_own_page(request)
    try:
        text = (await request.body()).decode("ascii")
        given = parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise Problem(400, "Malformed", "This is no form of a page of this service") from None
    fields = {name: values[-1].replace("\r\n", "\n") for name, values in given.items()}
    setattr(request.state, SHOWN, fields.pop(SHOWN, "") or None)
    return fields


async def _fields(request: Request) -> Fields:
    return {name: value.strip() for name, value in (await form_of(request)).items()}


FormDep = Annotated[Fields, Depends(_fields)]


def field(fields: Fields, name: str) -> str:
    if not fields.get(name):
        raise unprocessable(f"{name}: it is empty", "Fill the field in")
    return fields[name]


def then(path: str) -> RedirectResponse:
    """The answer to a form that changed something: the page that shows it."""
    return RedirectResponse(path, status_code=303, headers=HEADERS)


def deleting(
    router: APIRouter,
    path: str,
    find: Callable[..., Any],
    delete: Callable[[Visit, Any], object],
    restore: Callable[[Visit, Any], object],
) -> None:
    """Add the forms that delete what ``find`` finds, whose page is at ``path``, and restore it."""
    page = path.partition("{")[0]

    def add(verb: str, act: Callable[[Visit, Any], object], found: Any) -> None:
        @router.post(f"{path}/{verb}", dependencies=[needs("submit"), Depends(form_of)])
        def answer(visit: VisitDep, known: Any = found) -> Response:
            name = getattr(known, "id", known)
            act(visit, known)
            return then(f"{page}{quote(name, safe='')}")

    add("delete", delete, Depends(find))
    add("restore", restore, Depends(find))


Form = TypeVar("Form")


def filled_in(form: type[Form], fields: Fields) -> Form:
    """A form as somebody filled it in: a dataclass of texts, with what its page left out."""
    return form(**{name: fields[name] for name in form.__annotations__ if name in fields})


Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """The request that ``fields`` make."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = field_errors(error)[0]
        raise not_valid(first.field or "form", first.what, "Go back and mend it") from None
