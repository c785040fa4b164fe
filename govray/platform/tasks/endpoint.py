"""Where a task answers: a small file in the storage, written by the task, read by the proxy.

``<storage>/tasks/<id>/endpoint.json`` has the address and a token that the program demands. On a
disk only the user that runs both may read it (mode 0600); in a bucket, whoever may read the bucket.
When the task ends, `ended.json` takes its place.

A file and no row of the store: a task on a cluster has the storage, and must not have the store's
password. So whoever may write to the storage can name any address here. The proxy therefore
connects only to networks that its operator names, and only for whom it let in.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from govray.errors import Malformed
from govray.governance.formats.document import format_time
from govray.platform.tasks.task_file import check_id
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place
from govray.storage.regular_file import open_regular

ENDPOINT = "endpoint.json"
ENDED = "ended.json"
FOLDER = "tasks"

MAX_BYTES = 16 * 1024

Kind = Literal["notebook", "shell", "tensorboard"]
Why = Literal["idle", "stopped", "failed"]


class Endpoint(BaseModel):
    """What answers where.

    Attributes:
        address: ``http://IP:PORT`` of the program.
        token: What it demands; new for every start, and told to nobody but the proxy.
        landing: The path below the task's own that shows it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    task: Annotated[str, Field(max_length=63)]
    kind: Kind
    address: Annotated[str, Field(max_length=128)]
    token: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{32,128}$", repr=False)]
    landing: Annotated[str, Field(pattern=r"^[A-Za-z0-9/_-]{1,64}$")]
    started: Annotated[str, Field(max_length=32)]

    @field_validator("address")
    @classmethod
    def _plain(cls, address: str) -> str:
        parts = urlsplit(address)
        ipaddress.ip_address(parts.hostname or "")
        plain = parts.scheme == "http" and parts.port and not (parts.path or parts.query)
        if not plain or parts.username is not None or parts.fragment:
            raise ValueError("not http://IP:PORT")
        return address

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(urlsplit(self.address).hostname or "")


class Ended(BaseModel):
    """Why nothing answers any more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    why: Why
    at: Annotated[str, Field(max_length=32)]


def task_folder(storage: Place, task: str) -> Place:
    return storage / FOLDER / check_id(task)


def register(storage: Place, endpoint: Endpoint) -> None:
    folder = task_folder(storage, endpoint.task)
    make_folder(folder, mode=0o700)
    (folder / ENDED).unlink(missing_ok=True)
    write_whole(folder / ENDPOINT, endpoint.model_dump_json().encode(), mode=0o600)


def withdraw(storage: Place, task: str, why: Why, *, at: datetime) -> None:
    """Say that a task answers no more, and forget its token."""
    folder = task_folder(storage, task)
    (folder / ENDPOINT).unlink(missing_ok=True)
    ended = Ended(why=why, at=format_time(at))
    write_whole(folder / ENDED, ended.model_dump_json().encode(), mode=0o600)


def read_endpoint(storage: Place, task: str) -> Endpoint | Ended | None:
    """Where a task answers, why it does not, or None where it has not said so yet. Raises
    `Malformed`: the file says neither, or speaks of another task."""
    folder = task_folder(storage, task)
    endpoint = _read(folder / ENDPOINT, Endpoint)
    if endpoint is not None:
        if endpoint.task != task:
            raise Malformed("it speaks of another task", where=str(folder / ENDPOINT))
        return endpoint
    return _read(folder / ENDED, Ended)


_D = TypeVar("_D", Endpoint, Ended)


def _read(path: Place, kind: type[_D]) -> _D | None:
    try:
        if not path.is_file():
            return None
        with open_regular(path) as file:  # whatever it is by now
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Malformed(f"larger than {MAX_BYTES} bytes", where=str(path))
        return kind.model_validate_json(data)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        # Of the first error only the kind: its input may be the token.
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise Malformed(f"{field} is not what it should be", where=str(path)) from None
