"""A verified model on Ray Serve: ``serve run serve.model:app model=DIR trust_root=FILE``.

Each replica verifies the folder itself, and loads what it verified. Authentication is always on:
tokens are those of the store, made by ``govray token new``.
"""

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from govray.errors import UsageError
from govray.platform.service.identity.adapter_rights import AdapterRights, read_rights
from govray.platform.store.database import open_store
from govray.storage.storage_url import check_path

# No `from __future__ import annotations`: Ray Serve reads the class of `app`'s argument.

DiskPath = Annotated[Path, AfterValidator(check_path)]


class Arguments(BaseModel):
    """What ``serve run serve.model:app NAME=VALUE`` and the config file's ``args`` may say.

    Attributes:
        model: The model folder, where every node can read it.
        trust_root: The envelope of the trust root.
        revocations: Files of revocation lists, or folders of them; read again while it answers.
        rights: Who may use which adapter (docs/inference.md); nobody by default. With it the
            model folder is open to this account alone, or rights would mean nothing.
        tokenizer: The tokenizer file, where the model was not trained on bytes.
        entrypoints: Classes besides govray's own that may be built, as ``module:Class``.
        store: The store's URL; the environment's GOVRAY_STORE by default.
        seconds: That an answer takes at most.
    """

    model_config = ConfigDict(extra="forbid")

    model: DiskPath
    trust_root: DiskPath
    revocations: list[DiskPath] = []
    rights: DiskPath | None = None
    tokenizer: DiskPath | None = None
    entrypoints: list[str] = []
    store: str | None = None
    seconds: float = 30.0


def app(arguments: Arguments) -> Application:
    """The application, for Ray Serve to run.

    Raises:
        UsageError: No store is named or found, the file of rights is wrong, or others can read
            the adapters that it is about.
    """
    store = arguments.store or os.environ.get("GOVRAY_STORE")
    if not store:
        raise UsageError(
            "no store is named, and tokens are in it",
            where="GOVRAY_STORE",
            do="Set it before Ray starts, or say serve run serve.model:app store=URL.",
        )
    # A replica's error is raised here, for whoever starts it.
    open_store(store).dispose()
    rights = read_rights(arguments.rights) if arguments.rights else AdapterRights()
    folder, root = arguments.model.resolve(), arguments.trust_root.resolve()
    if arguments.rights and folder.is_dir() and folder.stat().st_mode & 0o077:
        raise UsageError(
            "other accounts can read the model, so rights in its adapters would not hold",
            where=str(folder),
            do=f"Run: chmod 700 {quote(str(folder))}",
        )
    lists = [each.resolve() for each in arguments.revocations]
    tokenizer = arguments.tokenizer.resolve() if arguments.tokenizer else None
    entrypoints, seconds = list(arguments.entrypoints), arguments.seconds

    def build() -> FastAPI:
        from govray.platform.inference.app import (
            InferenceSettings,
            ModelStanding,
            create_inference_app,
        )
        from govray.platform.inference.served_model import load

        served = load(
            folder,
            trust_root=root,
            revocations=lists,
            tokenizer=tokenizer,
            entrypoints=entrypoints,
        )
        standing = ModelStanding(served, trust_root=root, revocations=lists)
        settings = InferenceSettings(store=store, rights=rights, seconds=seconds)
        return create_inference_app(standing, settings)

    # Inside, so that Ray sends the class itself: replicas need govray, but not this folder.
    @serve.deployment(name="model")
    @serve.ingress(build)
    class Model:
        """One replica."""

    return Model.bind()
