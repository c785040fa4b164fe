"""Causal language models of the transformers library, as an experiment's entrypoint.

``entrypoint: govray.engine.huggingface:CausalLM``, with ``hyperparameters`` that
name a folder to start from or an architecture to start afresh:

    {context: 256, path: models/gpt2}
    {context: 256, config: {model_type: llama, hidden_size: 256, num_hidden_layers: 4}}

Parameters keep the names that transformers gives them. So a model's weights
load into the library's own class, and its adapters with peft.

Invariants:

* Nothing is downloaded and no code of a model folder runs. ``path`` is a local folder. Only its
  ``config.json`` and ``model.safetensors`` (or the shards) are read.
* A folder's weights fit its configuration exactly, tensor by tensor.
* Weights are float32, whatever the folder holds.
* Under ``torch.device("meta")`` no weights are read: names and shapes follow
  from the configuration.
* With a separator, records of a row are kept apart (``document_mask.py``). transformers masks by
  the positions that it is given. A model whose records still meet is refused when it is built.
* Dropout inside attention, and dropping of whole layers, is off: their masks come
  from a generator that all rows of a call share. Other dropout is as configured.

Encoders are not trained: their attention sees the tokens to be predicted.

Source: Wolf et al. 2020, "Transformers: State-of-the-Art Natural Language
Processing"; the layout of a model folder is that of ``save_pretrained``.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from govray.engine.model import document_mask
from govray.engine.model.gpt import loss
from govray.engine.model.past import Past
from govray.engine.model.stored_weights import equal
from govray.errors import CouldNotCheck, GovrayError, UsageError, nearest, suggestion
from govray.extras import install
from govray.governance.formats.row_schema import CHAT_MARKERS

__all__ = ["CausalLM", "loss"]

_CONFIG, _PATH = "hyperparameters.config", "hyperparameters.path"

_UNKEYED_DROPOUT = re.compile(r"att(n|ention)_\w*drop\w*|layer_?drop")
# Fields of a folder's configuration that say how to run a model, not what it is: some
# name code to fetch.
_HOW_TO_RUN = {"attn_implementation", "_attn_implementation", "auto_map", "transformers_weights"}


_OWN_IDS = (1, 1 + CHAT_MARKERS)
"""Ids that govray adds behind a tokenizer's: the separator, and the markers of conversations."""


class CausalLM(nn.Module):
    """A causal language model of transformers, from token ids to logits.

    Args:
        context: Longest sequence, in tokens.
        vocabulary: Number of token ids, the tokenizer's separator included.
        path: Folder with ``config.json`` and safetensors, as ``save_pretrained``
            writes it. If the separator alone lacks a row of the embedding, one is
            added; of conversations, also for their markers.
        config: ``model_type`` and fields of that architecture's configuration;
            weights are fresh, from torch's global generator. ``vocab_size`` is
            ``vocabulary`` unless given.
        separator: The token id that begins a record, if records of a row are kept apart.

    Attributes:
        language_model: The model as transformers has it. It and this module hold the
            same submodules and parameters, under the same names.

    Raises:
        UsageError: A field or the folder can't be used; the message names it.
        CouldNotCheck: transformers is not installed.
    """

    loss = staticmethod(loss)
    language_model: Any

    def __init__(
        self,
        context: int,
        vocabulary: int,
        path: str | None = None,
        config: Mapping[str, Any] | None = None,
        separator: int | None = None,
    ) -> None:
        super().__init__()
        if (path is None) == (config is None):
            raise UsageError(
                f"{'neither path nor config is' if path is None else 'path and config are both'} "
                "given",
                where="hyperparameters",
                do="Give `path` to start from a folder's weights, or `config` for fresh ones",
            )
        transformers = _transformers()
        model: Any
        if path is not None:
            model = _from_folder(transformers, Path(path), context, vocabulary)
        else:
            model = _from_fields(transformers, dict(config or {}), context, vocabulary)
        self.context = context
        self.separator = separator
        # Not a child: that would put a prefix before every name. Both share what they hold,
        # so a submodule or parameter replaced in one is replaced in the other.
        object.__setattr__(self, "language_model", model)
        self._learns_positions = "position_ids" in signature(model.forward).parameters and any(
            isinstance(module, nn.Embedding) and module is not model.get_input_embeddings()
            for module in model.modules()
        )
        self._modules, self._parameters = model._modules, model._parameters
        self._buffers = model._buffers
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        self.train()
        if separator is not None:
            self._refuse_mixing(separator)

    @staticmethod
    def starts_from(hyperparameters: Mapping[str, Any]) -> list[Path]:
        """The files whose weights a model of these hyperparameters starts from."""
        path = hyperparameters.get("path")
        return [] if path is None else _weight_files(Path(path))

    def train(self, mode: bool = True) -> CausalLM:
        """Switch both views of the model to training (or evaluation) mode."""
        self.language_model.training = mode
        return super().train(mode)

    def forward(self, tokens: Tensor, past: Past | None = None) -> Tensor:
        """Logits of the next token.

        Args:
            tokens: Integer ids of shape (rows, tokens), at most ``context`` long, on the
                model's device.
            past: What these tokens come after, in every row; an empty one is filled, by the
                library's own cache. It holds no separator, and the tokens neither.

        Returns:
            Logits of shape (rows, tokens, ids), of the model's dtype, with an entry for every
            id that the model knows: at least ``vocabulary``.

        Raises:
            UsageError: If the rows are longer than the context, or the model keeps no past.
        """
        before = past.length if past else 0
        if before + tokens.shape[1] > self.context:
            raise UsageError(
                f"rows of {before + tokens.shape[1]} tokens exceed the context of {self.context}",
                where="CausalLM",
                do="Prepare the data with the model's context",
            )
        if past is not None:
            return self._after(tokens, past)
        places = {}
        if self.separator is not None:
            places["position_ids"] = document_mask.places(tokens, self.separator)
        elif self._learns_positions:
            # A learned position is looked up once for all rows, so a row's part of the gradient is
            # unknown. Given as ids, it is looked up for every row.
            places["position_ids"] = torch.arange(tokens.shape[1], device=tokens.device).expand_as(
                tokens
            )
        return self.language_model(input_ids=tokens, use_cache=False, **places).logits

    def _after(self, tokens: Tensor, past: Past) -> Tensor:
        if past.length:
            # A forward writes into the cache it is given, and every row needs one of its own.
            cache = copy.deepcopy(past.cache)
            cache.batch_repeat_interleave(len(tokens))
            return self.language_model(
                input_ids=tokens, past_key_values=cache, use_cache=True
            ).logits
        output = self.language_model(input_ids=tokens, use_cache=True)
        past.cache = getattr(output, "past_key_values", None)
        if not _repeats(past.cache):
            raise UsageError(
                "the architecture keeps no keys and values that rows could share",
                where=type(self.language_model).__name__,
                do="Read whole rows",
            )
        past.length = tokens.shape[1]
        return output.logits

    def _refuse_mixing(self, separator: int) -> None:
        """Return if a record's logits do not depend on the record before it."""
        parameters = [*self.parameters()]
        takes_positions = "position_ids" in signature(self.language_model.forward).parameters
        apart = takes_positions
        if takes_positions and not any(parameter.is_meta for parameter in parameters):
            one, other, *_ = (each for each in range(3) if each != separator)
            # Rows of one shape, so that nothing but the first record can tell them apart.
            rows = [torch.tensor([[separator, each, separator, one]]) for each in (one, other)]
            self.eval()
            try:
                with torch.no_grad():
                    first, second = (self(row.to(parameters[0].device))[:, 2:] for row in rows)
            except RuntimeError as error:  # sizes that don't fit each other show in a forward
                raise _refused(error, {}, "hyperparameters") from error
            self.train()
            # Experts add up their tokens in another order when others come to them.
            rounding = 64 * torch.finfo(first.dtype).eps * first.abs().max()
            apart = bool((first - second).abs().max() <= rounding)
        if not apart:
            raise UsageError(
                f"{type(self.language_model).__name__} does not keep the records of a row apart",
                where="data.attention",
                do="Leave the field out, or choose a model whose attention masks by position_ids",
            )


def saved_config(model: nn.Module) -> dict[str, str]:
    """The JSON files by which transformers builds a model before it reads its weights.
    Empty where the model's class is not of the library."""
    built = model.language_model if isinstance(model, CausalLM) else model
    library: Any = sys.modules.get("transformers")  # who has a model of it has imported it
    if library is None or not isinstance(built, library.PreTrainedModel):
        return {}
    if not type(built).__module__.startswith("transformers."):
        return {}  # somebody's own class, whose code no folder carries
    configuration = copy.deepcopy(built.config)
    configuration.architectures = [type(built).__name__]
    configuration.dtype = next(each.dtype for each in built.parameters())
    found = {"config.json": configuration, "generation_config.json": built.generation_config}
    return {name: each.to_json_string() for name, each in found.items() if each is not None}


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise CouldNotCheck(
            f"this needs {error.name}, which is not installed",
            where="entrypoint govray.engine.huggingface:CausalLM",
            do=f"Run {install('huggingface')}",
        ) from error
    return transformers


def _from_fields(
    transformers: ModuleType, fields: dict[str, Any], context: int, vocabulary: int
) -> nn.Module:
    """A model with fresh weights."""
    kind = _config_class(transformers, fields, _CONFIG)
    known = kind().to_dict().keys() | kind.attribute_map.keys()
    for name, value in fields.items():
        if name not in known:
            raise UsageError(
                f"{kind.model_type} has no field {name!r}{suggestion(name, known)}",
                where=f"{_CONFIG}.{name}",
            )
        if _UNKEYED_DROPOUT.fullmatch(name) and value:
            raise UsageError(
                f"{name} is {value}, but such masks can't be keyed by row",
                where=f"{_CONFIG}.{name}",
                do="Leave it out, or set it to 0.0",
            )
    configuration = _configuration(kind, {"vocab_size": vocabulary} | fields, _CONFIG)
    if configuration.vocab_size < vocabulary:
        raise UsageError(
            f"vocab_size is {configuration.vocab_size}, the tokenizer has {vocabulary} ids",
            where=f"{_CONFIG}.vocab_size",
            do="Leave it out, or give at least as many",
        )
    return _build(transformers, configuration, context, _CONFIG)


def _from_folder(
    transformers: ModuleType, folder: Path, context: int, vocabulary: int
) -> nn.Module:
    """A model with the folder's weights; on the meta device, with none."""
    fields = _read_json(folder / "config.json")
    if fields.get("quantization_config") is not None:
        raise UsageError(
            "the weights are quantised, and such weights can't be trained",
            where=f"{_PATH}: {folder}",
            do="Start from the model's full weights",
        )
    files = _weight_files(folder)
    where = f"{_PATH}: {folder}"
    kind = _config_class(transformers, fields, where)
    fields = {name: value for name, value in fields.items() if name not in _HOW_TO_RUN}
    configuration = _configuration(kind, fields, where)
    if (missing := vocabulary - configuration.vocab_size) > 0 and missing not in _OWN_IDS:
        raise UsageError(
            f"the model knows {configuration.vocab_size} ids, the tokenizer has {vocabulary}",
            where=where,
            do="Prepare the data with the tokenizer that the model was trained with",
        )
    model = _build(transformers, configuration, context, where)
    if torch.get_default_device().type != "meta":
        model = _load(model, configuration, files, where)
    if missing > 0:
        # Separator and markers are ids of ours. Fresh rows are drawn as the model draws them.
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return model


def _repeats(cache: Any) -> bool:
    """Whether all that a cache of transformers keeps of one row can be repeated for many.

    Layers that keep a recurrent state, as state space models do, repeat none of it.
    """
    return hasattr(cache, "batch_repeat_interleave") and all(
        hasattr(layer, "batch_repeat_interleave") and not hasattr(layer, "recurrent_states")
        for layer in getattr(cache, "layers", ())
    )


def _config_class(transformers: ModuleType, fields: Mapping[str, Any], where: str) -> Any:
    model_type = fields.get("model_type")
    known = {
        kind.model_type: kind
        for kind in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        if kind.__module__.startswith("transformers.")
    }
    if model_type not in known:
        near = nearest(model_type, known) if isinstance(model_type, str) else None
        hint = f"Did you mean {near}?" if near else "Such as gpt2, llama, mistral or qwen3"
        raise UsageError(
            f"model_type {model_type!r} is no causal language model that transformers has",
            where=where,
            do=hint,
        )
    return known[model_type]


def _configuration(kind: Any, fields: dict[str, Any], where: str) -> Any:
    try:
        configuration = kind.from_dict(fields)
    except Exception as error:  # validators of the library's and of hub's raise many types
        raise _refused(error, fields, where) from error
    stated = configuration.to_dict()
    for name in stated:
        if _UNKEYED_DROPOUT.fullmatch(name):
            setattr(configuration, name, 0.0)
    # The library finds this out in a forward, and in its own words.
    heads, shared = (stated.get(f"num_{each}_heads") for each in ("attention", "key_value"))
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        raise UsageError(
            f"num_key_value_heads is {shared}, which does not divide {heads} attention heads",
            where=where,
            do="Choose it so that as many heads share each pair of keys and values",
        )
    return configuration


def _build(transformers: ModuleType, configuration: Any, context: int, where: str) -> Any:
    """A model with weights drawn from torch's global generator."""
    longest = getattr(configuration, "max_position_embeddings", None)
    if longest is not None and longest < context:
        names = {"max_position_embeddings": "max_position_embeddings"} | configuration.attribute_map
        raise UsageError(
            f"{names['max_position_embeddings']} is {longest}, the context {context}",
            where=where,
            do="Lower hyperparameters.context, or start from a model with more positions",
        )
    try:
        model = transformers.AutoModelForCausalLM.from_config(configuration, dtype=torch.float32)
    except Exception as error:  # what a size is wrong for shows anywhere in a model's code
        raise _refused(error, configuration.to_dict(), where) from error
    for fqn, module in model.named_modules():
        if getattr(module, "is_causal", True) is False:
            raise UsageError(
                f"{fqn} of {configuration.model_type} is no causal attention: it sees tokens "
                "that are to be predicted, or those of an encoder",
                where=where,
                do="Use a decoder, such as gpt2 or llama; some encoders become one by "
                "`is_decoder: true`",
            )
    return model


def _load(fresh: Any, configuration: Any, files: list[Path], where: str) -> Any:
    """A model with the weights of these files, each of its tensors from exactly one of them."""
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            read = load_file(file)
        except (SafetensorError, OSError) as error:
            raise UsageError(
                f"not a safetensors file: {error}", where=str(file), do="Copy the folder again"
            ) from error
        if twice := tensors.keys() & read.keys():
            raise UsageError(f"tensor {min(twice)} is in another file too", where=str(file))
        tensors |= read
    try:
        # No name, so that the library looks for no file.
        model, report = type(fresh).from_pretrained(
            None,
            config=configuration,
            state_dict=tensors,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    except Exception as error:  # what conversions of old files raise
        raise _refused(error, {}, where) from error
    # A tensor of another shape is listed with both shapes.
    misshapen = [key for key, *_ in report["mismatched_keys"]]
    for problem, keys in (
        ("has another shape in config.json", misshapen),
        ("is not in the folder's weights", report["missing_keys"]),
        ("is a weight of the folder that the model lacks", report["unexpected_keys"]),
    ):
        if keys:
            raise UsageError(
                f"tensor {min(keys)} {problem}",
                where=where,
                do="Weights must fit config.json; save both with save_pretrained",
            )
    _require_loaded(model, tensors, _ties(fresh), where)
    return model


def _ties(model: Any) -> dict[str, str]:
    """Name of a tied parameter → the first name of the same one."""
    first: dict[nn.Parameter, str] = {}
    return {
        name: first[parameter]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if first.setdefault(parameter, name) != name
    }


def _require_loaded(
    model: Any, tensors: Mapping[str, Tensor], ties: Mapping[str, str], where: str
) -> None:
    """Return if every tensor of the files is in the model, number by number.

    A head may differ from the embedding to which the configuration ties it. The library drops it,
    or keeps it until the embedding gets another row. It also renames, splits and joins tensors;
    then the numbers must be found somewhere.
    """
    held: dict[str, Tensor] = model.state_dict()
    for name, first in ties.items():
        if not torch.equal(held[name], held[first]):
            _refuse_own(name, first, where)
    prefix = f"{model.base_model_prefix}."
    converted: Mapping[str, Tensor] = {}
    for name, tensor in tensors.items():
        names = (name, prefix + name, name.removeprefix(prefix))
        known = next((each for each in names if each in held), None)
        if known is None and not converted:
            from transformers.core_model_loading import revert_weight_conversion

            converted = revert_weight_conversion(model, dict(held))
        among = [held[known]] if known else [*held.values(), *converted.values()]
        if any(equal(tensor, each) for each in among):
            continue
        if known is not None and known in ties:
            _refuse_own(name, ties[known], where)
        ignored = model._keys_to_ignore_on_load_unexpected or ()  # such as masks of old files
        if known or not any(re.search(pattern, name) for pattern in ignored):
            raise UsageError(
                f"tensor {name} has other numbers in the folder than in the model",
                where=where,
                do="Save the model with save_pretrained, by the installed transformers",
            )


def _refuse_own(name: str, first: str, where: str) -> NoReturn:
    raise UsageError(
        f"tensor {name} is not {first}, to which config.json ties it",
        where=where,
        do="If the folder's own is meant, set tie_word_embeddings to false in config.json",
    )


def _weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors."""
    whole = folder / "model.safetensors"
    found = [whole] if whole.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if found:
        return found
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    instead = (
        f", only {pickles[0]}, a pickle, which can run code when it is read" if pickles else ""
    )
    raise UsageError(
        f"the folder has no model.safetensors{instead}",
        where=f"{_PATH}: {folder}",
        do="Save the model with save_pretrained, which writes safetensors",
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{error.strerror or error}".lower(),
            where=f"{_PATH}: {file}",
            do="Give the folder of a model on this machine; nothing is downloaded",
        ) from error
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=f"{_PATH}: {file}") from error
    if not isinstance(value, dict):
        raise UsageError("not a JSON object", where=f"{_PATH}: {file}")
    return value


def _refused(error: Exception, fields: Mapping[str, Any], where: str) -> GovrayError:
    """What the library said, and of a lookup that failed, which field it was."""
    said = " ".join(str(error).split())
    if isinstance(error, KeyError):
        culprit = next((name for name, value in fields.items() if value == error.args[0]), None)
        if culprit is not None:
            return UsageError(f"{culprit} can't be {said}", where=f"{where}.{culprit}")
    return UsageError(f"transformers refuses it: {type(error).__name__}: {said}", where=where)
