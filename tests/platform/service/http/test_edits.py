"""Two people who edit the same thing: the slower one is told, if it asks to be."""

from __future__ import annotations

from typing import Any

import pytest

from govray.platform.service.routes import projects
from tests.support.people import Service
from tests.support.place import Place, place

__all__ = ["place"]

PATHS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "/v1/projects/default/settings": ("put", [{"max_slots": 4}, {"max_slots": 5}]),
    "/v1/models/first/versions/1.0.0": ("patch", [{"notes": "a"}, {"notes": "b"}]),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_stale_change_is_refused(place: Place, path: str) -> None:
    service: Service = place.service
    client, (verb, bodies) = service.client("admin"), PATHS[path]
    seen = client.get(path)
    tag = seen.headers["ETag"]

    def change(body: Any, **headers: str) -> int:
        return client.request(verb, path, json=body, headers=headers).status_code

    assert change(bodies[0], **{"If-Match": tag}) == 200
    assert change(bodies[1], **{"If-Match": tag}) == 412
    assert client.get(path).headers["ETag"] != tag
    now = client.get(path).headers["ETag"]
    # A compressed answer has a weak tag. Without the header a change goes through.
    assert change(bodies[1], **{"If-Match": f'"other", W/{now}'}) == 200
    assert change(bodies[0]) == 200


def test_without_the_check_the_slower_one_wins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{projects.__name__}.check_unchanged", lambda *_: None)
    answer = place.service.client("admin").put(
        "/v1/projects/default/settings", json={}, headers={"If-Match": '"stale"'}
    )
    assert answer.status_code == 200
