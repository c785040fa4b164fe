"""What other libraries load a model of transformers by, collected when its run begins.

``AutoModelForCausalLM.from_pretrained`` reads a ``config.json`` beside weights, and
``AutoTokenizer`` a tokenizer's files; vLLM reads the same. The configuration is the model's as it
is trained. Tokenizer and chat template are the run's, by their bytes.

Invariants:

* Files have names of a closed list, and are regular and bounded. None of them is code or a pickle.
* No file names code of elsewhere: ``auto_map`` is left out.
* Conversations are trained by govray's own markers. So a template that was not trained is left out.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from govray.engine.model.causal_lm import saved_config
from govray.errors import UsageError
from govray.governance.attestation.model_folder import LOADER_FILES
from govray.governance.formats import canonical_json
from govray.governance.formats.row_schema import RowKind
from govray.storage.regular_file import read_regular
from govray.train.inputs.pretrained_start import Start

MOST_BYTES = 40 << 20
"""Of all files together. The largest tokenizers that are known have 32 MiB."""

_GENERATION, _TOKENIZER, _TOKENIZER_CONFIG, *_BESIDE = LOADER_FILES[1:]
_TEMPLATE_FILE = "chat_template.jinja"
# Code of elsewhere, and the path of a folder here.
_UNWANTED = ("auto_map", "_name_or_path", "name_or_path")
# What the library takes for a tokenizer file that says nothing of its class: the file as it is.
_ANY_FILE = {"tokenizer_class": "PreTrainedTokenizerFast"}


def loader_files(model: nn.Module, start: Start | None, tokenizer: str, rows: RowKind) -> bytes:
    """Canonical JSON of the files, name → base64; of an own module, none.

    Args:
        model: On any device. Its parameters have the precision in which they are trained.
        start: The folder that the model starts from, whose settings for generation it keeps.
        tokenizer: ``bytes``, or the tokenizer file. What lies beside it is taken if it is a
            folder's ``tokenizer.json``.

    Raises:
        UsageError: A file is not readable, no JSON, or too large.
    """
    files = {name: text.encode() for name, text in saved_config(model).items()}
    if files:
        if start:
            files |= _read(Path(start.folder), (_GENERATION,))
        if tokenizer != "bytes":
            files |= _of_tokenizer(Path(tokenizer), rows)
    files = {name: _plain(name, data, rows) for name, data in files.items()}
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise UsageError(
            f"the model's {', '.join(sorted(files))} have {size} bytes, more than {MOST_BYTES}",
            where=tokenizer,
            do="Use a smaller tokenizer",
        )
    coded = {name: b64encode(data).decode() for name, data in files.items()}
    return canonical_json.encode(coded)


def _of_tokenizer(path: Path, rows: RowKind) -> dict[str, bytes]:
    found = {_TOKENIZER: _bytes(path)}
    if path.name == _TOKENIZER:  # a file of another name may lie beside any other tokenizer's
        found |= _read(path.parent, (_TOKENIZER_CONFIG, *_BESIDE))
    found.setdefault(_TOKENIZER_CONFIG, json.dumps(_ANY_FILE).encode())
    if rows == "chat":
        found.pop(_TEMPLATE_FILE, None)
    return found


def _read(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    return {name: _bytes(folder / name) for name in names if (folder / name).exists()}


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UsageError(f"not readable: {error.strerror}", where=str(path)) from None


def _plain(name: str, data: bytes, rows: RowKind) -> bytes:
    """A file's bytes, without what names code, or a template that was not trained."""
    if not name.endswith("config.json"):
        return data
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=name) from None
    unwanted = {*_UNWANTED, *(["chat_template"] if rows == "chat" else [])}
    if not isinstance(fields, dict) or not unwanted & fields.keys():
        return data
    kept = {field: value for field, value in fields.items() if field not in unwanted}
    return json.dumps(kept, indent=2).encode()
