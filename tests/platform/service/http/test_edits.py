"""Two people who edit the same thing: the slower one is told, if it asks to be."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from govray.platform.service.routes import projects
from tests.support.people import OWN_PAGE, Service
from tests.support.place import Place, place

__all__ = ["place"]

CHANGES: dict[str, list[dict[str, Any]]] = {
    "PUT /v1/projects/default/settings": [{"max_slots": 4}, {"max_slots": 5}],
    "PATCH /v1/models/first/versions/1.0.0": [{"notes": "a"}, {"notes": "b"}],
    "PUT /v1/experiments/e1/tags": [{"tags": ["a"]}, {"tags": ["b"]}],
    "PATCH /v1/users/engineer": [{"disabled": True}, {"disabled": False}],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_change_is_refused(place: Place, change: str) -> None:
    service: Service = place.service
    client, bodies = service.client("admin"), CHANGES[change]
    verb, _, changed = change.partition(" ")
    path = changed.removesuffix("/tags")
    tag = client.get(path).headers["ETag"]

    def change_to(body: Any, **headers: str) -> int:
        return client.request(verb, changed, json=body, headers=headers).status_code

    assert change_to(bodies[0], **{"If-Match": tag}) == 200
    assert change_to(bodies[1], **{"If-Match": tag}) == 412
    assert client.get(path).headers["ETag"] != tag
    now = client.get(path).headers["ETag"]
    # A compressed answer has a weak tag. Without the header a change goes through.
    assert change_to(bodies[1], **{"If-Match": f'"other", W/{now}'}) == 200
    assert change_to(bodies[0]) == 200


FORMS: dict[str, tuple[str, str, str]] = {
    "/models/first/1.0.0/edit": ("/models/first/1.0.0/edit", "notes", "note {}"),
    "/experiments/e1": ("/experiments/e1/tags", "tags", "tag-{}"),
}


@pytest.mark.parametrize("page", FORMS)
def test_a_stale_form_is_refused(place: Place, page: str) -> None:
    client, (path, field, text) = place.service.client("admin", **OWN_PAGE), FORMS[page]

    def send(number: int, shown: str) -> int:
        form = {field: text.format(number), "shown": shown}
        return client.post(path, data=form, follow_redirects=False).status_code

    [shown] = re.findall('name="shown" value="([^"]*)"', client.get(page).text)
    assert [send(number, unescape(shown)) for number in (6, 7)] == [303, 412]
    assert text.format(6) in client.get(page).text
    assert send(8, "") == 303


def test_without_the_check_the_slower_one_wins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{projects.__name__}.check_unchanged", lambda *_: None)
    answer = place.service.client("admin").put(
        "/v1/projects/default/settings", json={}, headers={"If-Match": '"stale"'}
    )
    assert answer.status_code == 200
