"""An API server of Kubernetes: the few requests that the queue makes, and what their answers mean.

By the standard library. The official client is 1.5 MB of generated classes for what is JSON here.

Nothing is watched. A pass of the queue asks what is so, and a watch would have to be started again
whenever it ends. A list comes in pages. Where its snapshot is too old for the next page (410), it
is begun again.

Three kinds of answer are kept apart. An object is not there if the server names it in its 404.
An object is refused if the server, or a webhook that it asks, finds fault with it. After anything
else nothing is known (`Unreachable`).

Source: Kubernetes API Concepts; k8s.io/apimachinery, meta/v1, Status.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from govray.platform.queue.job import JobRefused, Unreachable

TIMEOUT_S = 20.0
"""Without a byte."""

LARGEST = 64 << 20
"""Bytes of an answer."""

_PAGE = 250
_RESTARTS = 3
_REFUSED = frozenset({400, 413, 422})
_DENIED = "denied the request"
"""What an API server says for a webhook. Its status is the webhook's, 403 in most cases."""

Object = dict[str, Any]


class KubernetesApi:
    """An API server.

    Args:
        address: Such as ``https://kubernetes.default.svc``.
        token: Read for each request: the kubelet renews it.
        ca_file: The authority of the server's certificate; None: those that this machine trusts.
    """

    def __init__(self, address: str, *, token: Callable[[], str], ca_file: Path | None) -> None:
        self.address = address
        self._token = token
        self._parts = urlsplit(address)
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None

    def get(self, path: str) -> Object | None:
        """An object; None where the server knows the kind, and not the name."""
        status, answer = self._asked("GET", path)
        return None if _is_away(status, answer) else self._good(status, answer, path)

    def items(self, path: str, selector: str) -> list[Object]:
        """All objects of a collection that have these labels."""
        for _ in range(_RESTARTS):
            found = list(self._pages(path, selector))
            if None not in found:
                return [each for page in found if page is not None for each in page]
        raise Unreachable("a list is too old before it is read", where=path)

    def create(self, path: str, value: Object) -> Object | None:
        """Make an object; None if there is one of that name. Raises `JobRefused`."""
        status, answer = self._asked("POST", path, value)
        if status == 409 and _reason(answer) == "AlreadyExists":
            return None
        return self._good(status, answer, path, writes=True)

    def replace(self, path: str, value: Object) -> None:
        """Put an object in the place of one, whatever that has become. Raises `JobRefused`."""
        self._good(*self._asked("PUT", path, value), path, writes=True)

    def merge(self, path: str, change: Object) -> None:
        """Change what is named of an object (RFC 7396). Raises `JobRefused`."""
        kind = "application/merge-patch+json"
        self._good(*self._asked("PATCH", path, change, kind=kind), path, writes=True)

    def delete(self, path: str) -> None:
        """Let an object go once all that it owns is gone, such as pods; nothing if it is not there.

        Foreground deletion keeps it visible until then (Kubernetes, Garbage Collection)."""
        status, answer = self._asked("DELETE", path, {"propagationPolicy": "Foreground"})
        if not _is_away(status, answer):
            self._good(status, answer, path)

    def text(self, path: str, **query: str) -> str:
        """An answer that is no object, such as a log; empty if it is not there."""
        status, data = self._exchange("GET", f"{path}?{urlencode(query)}", None, "")
        return data.decode("utf-8", "replace") if status == 200 else ""

    def _pages(self, path: str, selector: str) -> Iterator[list[Object] | None]:
        """The pages of a list; None as the last one if there is no telling what follows."""
        query = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            status, answer = self._asked("GET", f"{path}?{urlencode(query)}")
            if status == 410:
                yield None
                return
            page = self._good(status, answer, path)
            yield [dict(each) for each in page.get("items") or []]
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return
            query["continue"] = str(following)

    def _good(self, status: int, answer: Object, path: str, *, writes: bool = False) -> Object:
        if 200 <= status < 300 and answer:
            return answer
        said = str(answer.get("message") or "nothing")[:500]
        if writes and (status in _REFUSED or _DENIED in said):
            raise JobRefused(f"Kubernetes refuses the job: {said}", where=path)
        raise Unreachable(
            f"the API server answers {status}: {said}",
            where=f"{self.address}{path}",
            do="Check the address, and what the queue's account may do there: docs/queue.md",
        )

    def _asked(
        self, method: str, path: str, value: Object | None = None, *, kind: str = "application/json"
    ) -> tuple[int, Object]:
        """The status, and the object that came; an empty one if something else came."""
        status, data = self._exchange(method, path, value, kind)
        try:
            answer = json.loads(data)
        except ValueError:
            answer = {}
        return status, answer if isinstance(answer, dict) else {}

    def _exchange(
        self, method: str, path: str, value: Object | None, kind: str
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json, */*", "User-Agent": "govray"}
        body = None if value is None else json.dumps(value).encode()
        if body is not None:
            headers["Content-Type"] = kind
        try:
            headers["Authorization"] = f"Bearer {self._token()}"
            with closing(self._connection()) as connection:
                connection.request(method, f"{self._parts.path}{path}", body, headers)
                response = connection.getresponse()
                data = response.read(LARGEST + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(
                f"the API server does not answer: {error}",
                where=self.address,
                do="Check the address, its certificate's authority, and the token",
            ) from None
        if len(data) > LARGEST:
            raise Unreachable(f"an answer is larger than {LARGEST >> 20} MiB", where=self.address)
        return response.status, data

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = self._tls or ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)


def _is_away(status: int, answer: Object) -> bool:
    """Whether the server knows the kind, and has no such object. A 404 of a proxy names nothing,
    nor does that of a server without the operator's definitions."""
    details = answer.get("details")
    named = isinstance(details, dict) and bool(details.get("name"))
    return status == 404 and _reason(answer) == "NotFound" and named


def _reason(answer: Object) -> str:
    return str(answer.get("reason", "")) if answer.get("kind") == "Status" else ""
