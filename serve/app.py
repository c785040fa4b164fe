"""The HTTP service on Ray Serve: ``serve run serve.app:app``, ``serve deploy serve/config.yaml``.

A thin shell: what is served is `govray.service.app.create_app`, which each replica builds for
itself over the same store. Authentication is always on, since Ray's own token does not protect
what Serve listens on; for one person without tokens there is ``govray serve --no-auth``.

A replica that cannot ask its store is unhealthy, and Ray replaces it. Rates are counted by each
replica for itself.
"""

import os
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from govray.errors import UsageError

# No `from __future__ import annotations`: Ray Serve reads the class of `app`'s argument.


class Arguments(BaseModel):
    """What ``serve run serve.app:app NAME=VALUE`` and the config file's ``args`` may say.

    Attributes:
        store: The store's URL; the environment's GOVRAY_STORE by default.
        promotion: The gates before a model's stages.
    """

    model_config = ConfigDict(extra="forbid")

    store: str | None = None
    promotion: Path = Path("policies/promotion.yaml")


def app(arguments: Arguments) -> Application:
    """The application, for Ray Serve to run.

    Raises:
        UsageError: No store is named.
    """
    store = arguments.store or os.environ.get("GOVRAY_STORE")
    if not store:
        raise UsageError(
            "no store is named",
            where="GOVRAY_STORE",
            do="Set it before Ray starts, or say serve run serve.app:app store=URL.",
        )
    promotion = arguments.promotion.resolve()

    def build() -> FastAPI:
        from govray.service.app import create_app
        from govray.service.settings import Settings

        return create_app(Settings(store=store, promotion=promotion))

    # Inside, so that Ray sends the class itself: replicas need govray, and not this folder.
    @serve.deployment(name="govray")
    @serve.ingress(build)
    class Service:
        def check_health(self) -> None:
            """Ask the store; what it raises makes Ray replace the replica."""
            with self.app.state.engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")

    return Service.bind()
