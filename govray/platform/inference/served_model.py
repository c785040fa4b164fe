"""A model that was verified, loaded from the bytes that were verified.

1. `govray.verify` checks the folder: signatures, policy, ledger, revocations, every file's digest.
2. Each file that is loaded is read once, and its bytes are hashed again before they are used. So
   what answers is what was attested, whatever happened to the folder in between.

Weights are safetensors; nothing is unpickled. The model's class is one of govray's own, or one that
the operator names: a model folder must not choose the code that runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import safetensors.torch
from torch import Tensor, nn

from govray.data.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer
from govray.engine.model.adapters import Adapters
from govray.engine.model.stored_weights import fill
from govray.errors import CouldNotCheck, Refused, UsageError
from govray.extras import install
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.trust.anchor import TrustAnchor
from govray.governance.verify.verifier import VerifiedModel, verify

if TYPE_CHECKING:
    from govray.platform.inference.flax_text import FlaxText

OWN = "govray.engine."
"""Where the classes are that any attested model may name."""


class ReadAdapters(Protocol):
    def active(self, name: str | None) -> AbstractContextManager[None]:
        """Let forwards read this adapter, or none."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model in memory, and what was verified of it.

    Attributes:
        model: In evaluation mode, on the CPU.
        names: Of the adapters that were not removed, sorted.
        context: Tokens that the model sees at most.
    """

    verified: VerifiedModel
    model: nn.Module
    adapters: ReadAdapters
    names: tuple[str, ...]
    tokenizer: ByteTokenizer | FileTokenizer
    context: int

    @property
    def attestation(self) -> str:
        return self.verified.digest


def load(
    folder: Path,
    *,
    trust_root: TrustAnchor | Path | bytes,
    revocations: Sequence[Path | str | bytes] = (),
    tokenizer: Path | None = None,
    entrypoints: Collection[str] = (),
    at: datetime | None = None,
) -> ServedModel:
    """Verify a model folder, and load what was verified.

    Args:
        trust_root: Envelope of the trust root, its path, or what was read of both.
        tokenizer: The tokenizer file, where the model has none and was not trained on bytes.
        entrypoints: Classes besides govray's own that may be built, as ``module:Class``.

    Raises:
        CouldNotCheck: It could not be checked, or has a different tokenizer.
        Refused: A file changed after it was verified, or the weights do not fit the class.
        UsageError: The model was not trained by an experiment file, or its class is not allowed.
    """
    verified = verify(folder, trust_root=trust_root, revocations=revocations, at=at)
    files = _AttestedFiles(verified)
    config: Any = canonical_json.parse_canonical(files.read(model_folder.CONFIG))
    if "entrypoint" not in config:
        raise UsageError(
            "the model was trained by a script, so its config names no class to build",
            where=str(folder),
            do="Train it by an experiment file",
        )
    if "rows" in config:
        raise UsageError(
            "the model was trained on images or conversations, and only text is answered",
            where=str(folder),
            do="Load its weights with the program that it was trained for",
        )
    names = files.adapters()
    if config.get("framework") == "jax":
        answering = _over_jax(config, entrypoints, files, names)
        return ServedModel(
            verified=verified,
            model=answering,
            adapters=answering,
            names=names,
            tokenizer=_tokenizer(config["tokenizer"], tokenizer, files),
            context=config["context"],
        )
    model: nn.Module = _built(config, entrypoints, nn.Module)
    weights = files.tensors(model_folder.WEIGHTS)
    fill(
        model,
        weights,
        where=str(folder),
        error=Refused,
        do="Serve it by the code that it was trained with",
    )
    configs: dict[str, Any] = {
        name: canonical_json.parse_canonical(files.read(model_folder.adapter_files(name)[0]))
        for name in names
    }
    adapters = Adapters(model, {name: each["r"] for name, each in configs.items()}, seed=0)
    for name in names:
        adapters.load(name, configs[name], files.tensors(model_folder.adapter_files(name)[1]))
    return ServedModel(
        verified=verified,
        model=model.eval().requires_grad_(False),
        adapters=adapters,
        names=names,
        tokenizer=_tokenizer(config["tokenizer"], tokenizer, files),
        context=config["context"],
    )


class _AttestedFiles:
    def __init__(self, verified: VerifiedModel) -> None:
        self._folder = model_folder.Bundle(verified.path)
        self._digests = {each.name: each.sha256 for each in verified.subjects}

    def __contains__(self, name: str) -> bool:
        return name in self._digests

    def read(self, name: str) -> bytes:
        if name not in self:
            raise Refused("the attestation does not cover the file", where=name)
        data: bytes = (self._folder.root / name).read_bytes()
        if canonical_json.sha256(data) != self._digests[name]:
            raise Refused(
                "the file changed after it was verified",
                where=name,
                do="See who writes into the model folder",
            )
        return data

    def tensors(self, name: str) -> Mapping[str, Tensor]:
        found: dict[str, Tensor] = safetensors.torch.load(self.read(name))
        return found

    def adapters(self) -> tuple[str, ...]:
        """The adapters whose files are attested, which removed ones' are not."""
        prefix, suffix = f"{model_folder.ADAPTERS}/", f"/{model_folder.ADAPTER_CONFIG}"
        names = (n for n in self._digests if n.startswith(prefix) and n.endswith(suffix))
        return tuple(sorted(name[len(prefix) : -len(suffix)] for name in names))


def _over_jax(
    config: Mapping[str, Any],
    entrypoints: Collection[str],
    files: _AttestedFiles,
    names: Sequence[str],
) -> FlaxText:
    """The model and its adapters, where JAX trained them."""
    try:
        import safetensors.flax
        from flax import nnx

        from govray.platform.inference.flax_text import FlaxText
    except ImportError as error:
        raise CouldNotCheck(
            f"JAX trained the model, and it can't be imported: {error}",
            where=model_folder.CONFIG,
            do=f"Run {install('jax')}",
        ) from None

    def arrays(name: str) -> Any:
        return safetensors.flax.load(files.read(name))

    return FlaxText(
        _built(config, entrypoints, nnx.Module, rngs=nnx.Rngs(0)),
        arrays(model_folder.WEIGHTS),
        {name: arrays(model_folder.adapter_files(name)[1]) for name in names},
        config["context"],
    )


def _built(config: Mapping[str, Any], entrypoints: Collection[str], kind: type, **more: Any) -> Any:
    """The model that a config names, of this kind, with weights that say nothing yet."""
    entrypoint = config["entrypoint"]
    if not entrypoint.startswith(OWN) and entrypoint not in entrypoints:
        raise UsageError(
            f"the model's class is {entrypoint}, which is not one of govray's own",
            where=model_folder.CONFIG,
            do="Read that class, and name it among the entrypoints",
        )
    module, _, name = entrypoint.partition(":")
    try:
        made: object = getattr(importlib.import_module(module), name)(
            **config["hyperparameters"], **more
        )
    except (ImportError, AttributeError, TypeError) as error:
        raise Refused(
            f"the model's class can't be built: {error}", where=f"entrypoint {entrypoint}"
        ) from None
    if not isinstance(made, kind):
        raise UsageError("the entrypoint is a training loop", where=f"entrypoint {entrypoint}")
    return made


def _tokenizer(
    identity: Mapping[str, Any], path: Path | None, files: _AttestedFiles
) -> ByteTokenizer | FileTokenizer:
    found = load_tokenizer(path)
    if path is None and model_folder.TOKENIZER in files:
        found = FileTokenizer(identity["name"], files.read(model_folder.TOKENIZER))
    if found.digest != identity["digest"]:
        raise CouldNotCheck(
            f"the model's tokenizer is {identity['name']}, {identity['digest']}",
            where=str(path or "bytes"),
            do="Give that file as the tokenizer",
        )
    return found
