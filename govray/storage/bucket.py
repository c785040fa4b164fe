"""Buckets of object stores, opened by URL with obstore: S3, Google Cloud Storage, Azure.

Credentials come from the environment, in the variables of the store's own tools, or from the
machine's or pod's role. Profiles of the AWS command line are not read.

Source: https://developmentseed.org/obstore; its requests retry what a network drops.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl

from govray.extras import install

_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}

# Where credentials are asked for if the environment has none.
_ROLES = re.compile(
    r"performing \w+ https?://(169\.254\.|metadata\.google\.|[^/]+/(\S+/)?latest/api/token\b)"
)


class Replaced(OSError):
    """An object was not the expected one any more, so nothing was written."""


def bucket_store(url: str) -> Any:
    """The store of a bucket.

    Args:
        url: ``scheme://bucket?options``, as `govray.storage.storage_url.check_url` accepts.

    Raises:
        OSError: obstore is not installed.
        obstore.exceptions.BaseError: The store cannot be set up.
    """
    try:
        from obstore.store import from_url
    except ImportError:
        raise OSError(
            errno.ENOPKG, f"URLs of object stores need obstore: {install('trace')}", url
        ) from None
    base, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    scheme, _, bucket = base.partition("://")
    given: dict[str, Any] = {"retry_config": _RETRIES}
    if endpoint := options.get("endpoint_override"):
        name = "base_url" if scheme in ("gs", "gcs") else "endpoint"
        given[name] = f"{options.get('scheme', 'https')}://{endpoint}"
    if scheme == "s3" and "region" in options:
        given["region"] = options["region"]
    named = options.get("scheme") or os.environ.get("AWS_ENDPOINT_URL", "")
    if named.startswith("http:") or named == "http":
        given["client_options"] = {"allow_http": True}
    return from_url(f"{scheme.replace('gcs', 'gs')}://{bucket}", **given)


def asks_roles(text: str) -> bool:
    """Whether a store's error says that no credentials were found, and roles were asked."""
    return bool(_ROLES.search(text)) or "Account must be specified" in text


class StoreFailed(OSError):
    """A store did not answer, or failed."""


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turn a store's errors into those that a disk would raise, with ``where`` as file name.

    Raises:
        FileNotFoundError: No such object, or no such bucket.
        FileExistsError: An object that was to be new is there.
        Replaced: An object that was to be replaced has changed.
        PermissionError: The credentials are missing or refused.
        StoreFailed: The store does not answer, or fails.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such object", where) from None
    except OSError:
        raise
    except Exception as error:
        kind = type(error).__name__
        if kind not in _KINDS and type(error).__module__.partition(".")[0] != "obstore":
            raise
        # The first line names the request. Signed URLs hold a secret behind the question mark.
        text = re.sub(r"\?\S*", "", str(error).partition("\n")[0])
        if asks_roles(text):
            missing = "no credentials for the store were found in the environment"
            raise PermissionError(errno.EACCES, missing, where) from error
        if "status code: 404" in text:
            raise FileNotFoundError(errno.ENOENT, "no such bucket", where) from error
        made, number, what = _KINDS.get(
            kind, (StoreFailed, errno.EIO, f"the storage failed: {text}")
        )
        raise made(number, what, where) from error


_KINDS: dict[str, tuple[type[OSError], int, str]] = {
    "AlreadyExistsError": (FileExistsError, errno.EEXIST, "the object exists already"),
    "PreconditionError": (Replaced, errno.EBUSY, "another process has replaced the object"),
    "PermissionDeniedError": (PermissionError, errno.EACCES, "the store refuses the credentials"),
    "UnauthenticatedError": (PermissionError, errno.EACCES, "the store refuses the credentials"),
}
