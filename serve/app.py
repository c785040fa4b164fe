"""The HTTP service on Ray Serve: ``serve run serve.app:app``, ``serve deploy serve/config.yaml``.

Each replica builds `govray.platform.service.app.create_app` for itself, over the same store.
Authentication is always on, since Ray's own token does not protect Serve's port. For one person
without tokens there is ``govray serve --no-auth``.

A replica that cannot reach its store is unhealthy, and Ray replaces it. Each replica counts rates
for itself. Numbers for Prometheus go to Ray's metrics agent, which has those of all replicas.
"""

import os
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from govray.cli.separation import refuse_several
from govray.errors import UsageError
from govray.governance.submission.register_client import RegisterDoor
from govray.platform.service.acting.case_desk import read_cases
from govray.platform.service.http.settings import Settings
from govray.platform.service.identity.code_flow import read_provider
from govray.platform.store.database import open_store
from govray.storage.storage_url import check_path

# No `from __future__ import annotations`: Ray Serve reads the class of `app`'s argument.


DiskPath = Annotated[Path, AfterValidator(check_path)]


class Arguments(BaseModel):
    """What ``serve run serve.app:app NAME=VALUE`` and the config file's ``args`` may say.

    Attributes:
        store: The store's URL; the environment's GOVRAY_STORE by default.
        promotion: The signed gates before a model's stages.
        trust_root: Says whose signature of the gates counts. Without it nothing is promoted.
        oidc: An identity provider's file, as in docs/service.md. Read when the service is deployed.
        cases: The file that turns rights holders' cases on (docs/cases.md). Nodes need its key.
        rights: Who may download which adapter (docs/acting.md); nobody by default.
        presigned: Let files on an object store be fetched there, by signed URLs.
        attestor: The attestor's register, by ``url`` and ``token_file``. Jobs of the same cluster
            may not be able to read that file (docs/attestor.md).
        jobs_account: Whom a queue's jobs run under: a name, or UID:GID. By default it is Ray's own
            account here, for which the service acts for one user alone.
        revocations: Files of revocation lists, or folders of them, that every node can read.
        proxies: Addresses or networks of the nodes, where HAProxy runs, and of proxies in front of
            them. The client address that they state is trusted.
    """

    model_config = ConfigDict(extra="forbid")

    store: str | None = None
    promotion: DiskPath = Path("policies/promotion.dsse.json")
    trust_root: DiskPath | None = None
    oidc: DiskPath | None = None
    cases: DiskPath | None = None
    rights: DiskPath | None = None
    presigned: bool = False
    attestor: RegisterDoor | None = None
    jobs_account: str | None = None
    revocations: list[DiskPath] = []
    proxies: list[str] = ["127.0.0.1"]


def app(arguments: Arguments) -> Application:
    """The application, for Ray Serve to run.

    Raises:
        UsageError: No store is named or found, or the provider's file is wrong.
        Refused: The store belongs to another version of govray. Or more than one user acts, and
            the account that runs jobs reaches what the service keeps.
        InfrastructureFailed: The store cannot be reached.
    """
    store = arguments.store or os.environ.get("GOVRAY_STORE")
    if not store:
        raise UsageError(
            "no store is named",
            where="GOVRAY_STORE",
            do="Set it before Ray starts, or say serve run serve.app:app store=URL.",
        )
    settings = Settings(
        store=store,
        promotion=arguments.promotion.resolve(),
        trust_root=arguments.trust_root.resolve() if arguments.trust_root else None,
        oidc=read_provider(arguments.oidc) if arguments.oidc else None,
        revocations=tuple(each.resolve() for each in arguments.revocations),
        cases=read_cases(arguments.cases.resolve()) if arguments.cases else None,
        rights=arguments.rights.resolve() if arguments.rights else None,
        presigned=arguments.presigned,
        attestor=arguments.attestor,
    )
    # A replica's error is raised here, for whoever starts the service.
    engine = open_store(store)
    refuse_several(engine, settings, None, arguments.jobs_account, "jobs_account")
    engine.dispose()
    proxies = arguments.proxies

    def build() -> FastAPI:
        from ray.serve import metrics
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

        from govray.platform.service.app import create_app
        from govray.platform.service.http.prometheus import Forwarded
        from govray.tune.experiment_cost import experiment_cost

        near = None
        if settings.cases is not None:
            from govray.data.similarity.near_copies import near_records as near
        service = create_app(
            settings, measures=Forwarded(metrics), check=experiment_cost, near=near
        )
        service.add_middleware(ProxyHeadersMiddleware, trusted_hosts=proxies)
        return service

    # Inside, so that Ray sends the class itself: replicas need govray, but not this folder.
    @serve.deployment(name="govray")
    @serve.ingress(build)
    class Service:
        def check_health(self) -> None:
            """Query the store. If that raises, Ray replaces the replica."""
            with self.app.state.engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")

    return Service.bind()
