"""One service over HTTP: what is sent, and what an answer or a problem becomes.

By the standard library, so that the base install has a client. A token goes to the server that it
is for and nowhere else: over https or to this machine, through no redirect, into no message. An
answer is read up to `LARGEST_ANSWER`. Problem details (RFC 9457) become errors of `govray.errors`.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError

from govray.errors import GovrayError, InfrastructureFailed, Malformed, Refused, UsageError

Told = Callable[[int, int], None]
"""Called with the bytes that were read so far, and with all that there are."""


class CountedBody:
    """Bytes that `http.client` reads piece by piece."""

    def __init__(self, data: bytes, told: Told) -> None:
        self._data = memoryview(data)
        self._told = told
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, count: int = -1) -> bytes:
        """The next bytes; none at the end."""
        stop = len(self._data) if count < 0 else min(len(self._data), self._at + count)
        piece = bytes(self._data[self._at : stop])
        if piece:
            self._at = stop
            self._told(self._at, len(self._data))
        return piece


LARGEST_ANSWER = 64 * 1024 * 1024
SILENT_S = 60.0
"""Without a byte, until a request fails."""
PAGE = 500
"""Rows that an iterator asks for at once."""

PARTIAL, _ELSEWHERE = 206, 307
"""Statuses: a range of a file; and that it lies at another address."""

_KINDS: Mapping[int, type[GovrayError]] = {
    401: Refused,
    403: Refused,
    409: Refused,
    421: Refused,
    429: InfrastructureFailed,
    502: InfrastructureFailed,
    503: InfrastructureFailed,
    504: InfrastructureFailed,
}
"""Status → error; other statuses from 500 are the server's failure, below that the caller's."""


class Connection:
    """A service at one address.

    Args:
        server: ``https://govray.example``; ``http://`` for this machine alone.
        token: Sent as ``Authorization: Bearer``; None: what everybody may read.
    """

    def __init__(self, server: str, token: str | None) -> None:
        self.server = checked_url(server)
        self._token = token
        self._opener = opener(urlsplit(self.server).hostname or "")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r})"

    def ask(
        self,
        method: str,
        path: str,
        answer: Any,
        *,
        query: Mapping[str, Any] | None = None,
        header: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        data: bytes | CountedBody | None = None,
        kind: str = "application/json",
    ) -> Any:
        """Send one request, and read its answer.

        Args:
            answer: What it is: ``bytes``, ``str``, or a type that its JSON is validated as; None
                where it has no body.
            query: Parameters; those that are None are not sent. Likewise of ``header`` and
                ``body``, the fields of a JSON object.
            data: A body of another ``kind``, in the place of ``body``.

        Raises:
            Refused: The caller may not, or the state of things does not allow it.
            UsageError: There is no such thing, or a field is not valid.
            InfrastructureFailed: The service does not answer, or cannot at the moment.
            Malformed: The answer is not what the service's description says.
        """
        if body is not None:
            data = json.dumps(_given(body)).encode()
        headers = {key: str(value) for key, value in _given(header or {}).items()}
        if data is not None:
            headers["Content-Type"] = kind
            headers["Content-Length"] = str(len(data))
        raw = self._read(method, _with_query(path, query), data, headers)
        if answer is None or answer is bytes:
            return raw if answer else None
        try:
            return raw.decode() if answer is str else _adapter(answer).validate_json(raw)
        except (ValidationError, UnicodeDecodeError):
            raise Malformed(
                f"the answer to {method} {path} is not what this client knows",
                where=self.server,
                do="Install the version of govray that the server has, see GET /v1/health",
            ) from None

    def pages(
        self,
        path: str,
        item: Any,
        *,
        query: Mapping[str, Any] | None = None,
        header: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:
        """The items of all pages, each page asked for when it is needed. Raises as `ask`."""
        cursor: str | None = None
        while True:
            more = {**(query or {}), "limit": PAGE, "cursor": cursor}
            page = self.ask("GET", path, dict[str, Any], query=more, header=header)
            try:
                yield from _adapter(list[item]).validate_python(page["items"])
            except (ValidationError, KeyError):
                raise Malformed(
                    f"the answer to GET {path} is not what this client knows", where=self.server
                ) from None
            cursor = page.get("next")
            if cursor is None:
                return

    def _read(
        self,
        method: str,
        path: str,
        data: bytes | CountedBody | None,
        headers: Mapping[str, str],
    ) -> bytes:
        request = self._request(method, path, data, headers)
        try:
            with self._opened(request) as response:
                raw: bytes = response.read(LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        if len(raw) > LARGEST_ANSWER:
            raise Malformed(f"the answer is larger than {LARGEST_ANSWER} bytes", where=self.server)
        return raw

    def open_file(self, path: str, *, start: int, tag: str) -> OpenedFile:
        """Ask for a file from the byte ``start`` on, as far as its tag is ``tag``.

        Where the service names an object store's URL, that is asked, without the token.

        Raises:
            Changed: The file has another tag by now.
            InfrastructureFailed: Neither answers, or not as asked. Else as `ask`.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = self._request("GET", path, None, {**headers, "If-Range": f'"{tag}"'})
        try:
            response = self._opener.open(request, timeout=SILENT_S)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != _ELSEWHERE:
                    raise self._problem(error.code, error.read(1 << 20)) from None
                place = checked_url(error.headers.get("Location", ""), query=True)
            return self._open_object(place, headers, start)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None
        if response.headers.get("ETag") != f'"{tag}"':
            response.close()
            raise Changed
        return OpenedFile(self, response, start)

    def _open_object(self, url: str, headers: Mapping[str, str], start: int) -> OpenedFile:
        request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 (`checked_url`)
        try:
            found = opener(urlsplit(url).hostname or "").open(request, timeout=SILENT_S)
        except urllib.error.HTTPError as error:
            with error:  # without its address, which is a secret
                raise InfrastructureFailed(
                    f"the object store of the service answered {error.code}", where=self.server
                ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error, "the object store of the service") from None
        return OpenedFile(self, found, start)

    def _request(
        self,
        method: str,
        path: str,
        data: bytes | CountedBody | None,
        headers: Mapping[str, str],
    ) -> urllib.request.Request:
        request = urllib.request.Request(  # noqa: S310 (`checked_url` has seen the scheme)
            self.server + path, data=data, method=method, headers=dict(headers)
        )
        request.add_header("Accept", "application/json, */*;q=0.5")
        if self._token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _opened(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        try:
            found: http.client.HTTPResponse = self._opener.open(request, timeout=SILENT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise self._problem(error.code, error.read(1 << 20)) from None
        return found

    def _silent(self, error: Exception, who: str = "the service") -> InfrastructureFailed:
        reason = getattr(error, "reason", error)
        return InfrastructureFailed(
            f"{who} does not answer ({reason})",
            where=self.server,
            do="Check the address, and whether the service runs",
        )

    def _problem(self, status: int, raw: bytes) -> GovrayError:
        try:
            told = json.loads(raw)
        except (ValueError, RecursionError):
            told = None
        told = told if isinstance(told, dict) else {}
        what, do = told.get("detail"), told.get("do")
        if fields := _wrong(told.get("errors")):  # The service's advice is to read its description.
            what, do = fields, "Mend what is named"
        if status < 400:
            what, do = "it answers with another address", "Give the address that it names"
        if status == 401:  # The service's advice is about a header, which nobody types here.
            do = f"Give a token that is good: govray login --server {self.server}"
        known = _KINDS.get(status, InfrastructureFailed if status >= 500 else UsageError)
        return known(
            what if isinstance(what, str) else f"the service answered {status}",
            where=self.server,
            do=do if isinstance(do, str) else None,
        )


def _wrong(errors: object) -> str:
    """What is wrong with which field of a request. Where it was in the request, nobody typed."""
    told = [
        f"{field.partition('.')[2] or field}: {each.get('message')}"
        for each in (errors if isinstance(errors, list) else ())
        if isinstance(each, dict) and isinstance(field := each.get("field"), str)
    ]
    return "; ".join(told)


def opener(host: str) -> urllib.request.OpenerDirector:
    """What sends requests to ``host``, and follows no redirect."""
    # A proxy on the way to this machine would see the token, which goes unencrypted.
    proxies = [urllib.request.ProxyHandler({})] if is_here(host) else []
    return urllib.request.build_opener(_RefusedRedirect, *proxies)


def checked_url(server: str, *, query: bool = False) -> str:
    """The address without its last slash. Raises `UsageError`: it cannot be read, holds a password,
    or is neither https nor this machine."""
    try:
        parts = urlsplit(server)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    plain = parts.scheme == "http" and is_here(host)
    rest = (parts.query and not query) or parts.fragment or parts.username or parts.password
    if not host or rest or not (parts.scheme == "https" or plain):
        raise UsageError(
            "this is no address that a token may be sent to",
            where=server.partition("@")[2][:200] or server[:200],
            do="Give an https:// address; http:// is for what runs on this machine",
        )
    return server.rstrip("/")


def is_here(host: str) -> bool:
    """Whether ``host`` is this machine, by a name or address that no other reaches."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def segment(value: object, *, slashes: bool = False) -> str:
    """``value`` as one segment of a path, or as several with ``slashes``."""
    text = quote(str(value), safe="/" if slashes else "")
    # What a server, or a proxy on the way, would take for a step up.
    if not text or any(part in (".", "..") for part in text.split("/")):
        raise UsageError(f"{str(value)[:80]!r} names nothing")
    return text


class Changed(Exception):
    """A file on the service has changed by now."""


class OpenedFile:
    """The bytes of a file as they come, from the byte ``start`` on."""

    def __init__(
        self, connection: Connection, response: http.client.HTTPResponse, asked: int
    ) -> None:
        self._connection, self._response = connection, response
        begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range") or "")
        self.start = int(begins[1]) if response.status == PARTIAL and begins else 0
        if self.start not in (0, asked):
            response.close()
            raise Malformed("the answer is of other bytes than asked for", where=connection.server)

    def read(self, count: int) -> bytes:
        """Some of the next bytes; none at the end, or where the connection broke.
        Raises `InfrastructureFailed`: the connection broke."""
        try:
            return self._response.read(count)
        except (OSError, http.client.HTTPException) as error:
            raise self._connection._silent(error) from None

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()


class _RefusedRedirect(urllib.request.HTTPRedirectHandler):
    """Makes an error of each redirect: it would take the request, and a body, somewhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _with_query(path: str, query: Mapping[str, Any] | None) -> str:
    given = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in _given(query or {}).items()
    }
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
