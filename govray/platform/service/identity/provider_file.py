"""The file that states an identity provider, as docs/service.md has it: `read_provider`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pydantic

from govray.platform.service.http.settings import OidcSettings
from govray.platform.service.http.stated_file import read_stated
from govray.platform.service.identity.code_flow import code_flow
from govray.platform.service.identity.oidc import Oidc

_PROVIDER = pydantic.TypeAdapter(OidcSettings)


def read_provider(path: Path) -> OidcSettings:
    """The identity provider that a YAML file states. A relative ``client_secret_file`` lies beside
    that file."""
    do = "See docs/service.md, An identity provider"
    settings = read_stated(path, _PROVIDER, do=do)
    if settings.client_secret_file is not None:
        beside = path.parent / settings.client_secret_file
        settings = replace(settings, client_secret_file=beside)
    code_flow(settings, Oidc(settings))  # refuses here what it would when a service starts
    return settings
