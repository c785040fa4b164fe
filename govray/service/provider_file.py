"""The file that states an identity provider, as docs/service.md has it: `read_provider`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pydantic

from govray.errors import UsageError
from govray.governance.formats.strict_yaml import MAX_BYTES, read_yaml
from govray.service.code_flow import code_flow
from govray.service.oidc import Oidc
from govray.service.settings import OidcSettings

_PROVIDER = pydantic.TypeAdapter(OidcSettings)


def read_provider(path: Path) -> OidcSettings:
    """The identity provider that a YAML file states.

    A relative ``client_secret_file`` lies beside that file.

    Raises:
        UsageError: There is no such file; a field is missing, unknown or of another type; or it
            states no provider that is accepted.
        Malformed: It is not YAML.
    """
    do = "See docs/service.md, An identity provider"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the file cannot be read ({error.strerror})", where=str(path), do=do
        ) from None
    value = read_yaml(data, name=str(path)).value
    try:
        # As JSON: strictly read, Python's own dict would be no dataclass.
        settings = _PROVIDER.validate_json(json.dumps(value), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        what = first["msg"][:1].lower() + first["msg"][1:]
        raise UsageError(
            f"field '{field}': {what}" if field else what, where=str(path), do=do
        ) from None
    if settings.client_secret_file is not None:
        beside = path.parent / settings.client_secret_file
        settings = replace(settings, client_secret_file=beside)
    code_flow(settings, Oidc(settings))  # refuses here what it would when a service starts
    return settings
