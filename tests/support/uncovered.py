"""Names of files that no digest covers: what a loader may take, what is inert, and where."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import PurePosixPath

# What tools that load models load or execute, and what nobody can say is not.
LOADABLE = re.findall(
    r"\S+",
    """
pytorch_model.bin model.pt model.pth checkpoint.ckpt weights.pkl weights.pickle model.joblib
model.dill model.npz model.npy model.h5 model.hdf5 model.keras saved_model.pb variables.index
flax_model.msgpack tf_model.h5 rust_model.ot model.tflite model.onnx model.onnx_data model.engine
model.plan model.gguf ggml-model-q4_0.bin model.mlmodel model.mar model-00002-of-00002.safetensors
model.safetensors.index.json modeling_gpt.py configuration_gpt.py tokenization_gpt.py handler.py
__init__.py setup.py conftest.py sitecustomize.py module.pyc extension.so library.dylib plugin.dll
tokenizer.json tokenizer_config.json vocab.json vocab.txt merges.txt spiece.model
tokenizer.model special_tokens_map.json added_tokens.json generation_config.json
preprocessor_config.json processor_config.json adapter_config.json adapter_model.safetensors
chat_template.jinja chat_template.json args.yaml params.yml settings.toml run.sh Makefile
Dockerfile requirements.txt model.zip model.tar.gz model.7z notebook.ipynb data.parquet data.arrow
optimizer.bin rng_state.pth trainer_state.json training_args.bin model.exe model.jar model.wasm
model no-suffix .env .hidden.py a.md.py readme.py README.PY LICENSE.bin licence.json
README.safetensors NOTICE.pkl .gitmodules x.txt labels.csv main.js
.git/evil.pkl .git/HEAD .git/config .git/objects/ab/cdef0123 .git/hooks/post-checkout
.cache/model.bin .cache/huggingface/model.bin .cache/huggingface/download/x.incomplete
x.metadata uv.lock __pycache__/x.cpython-311.pyc .hidden/.deep/weights.pt thumbs.db
""",
)

HARMLESS = re.findall(
    r"\S+",
    """
README README.md readme.md README.txt README.rst Readme LICENSE LICENSE.txt LICENCE LICENSE.md
LICENSE-APACHE LICENSE-MIT.txt NOTICE NOTICE.txt COPYING COPYING.LESSER CHANGELOG.md AUTHORS
card.md report.html paper.pdf loss.png plots/loss.svg photo.jpg photo.JPEG anim.gif
.gitattributes .gitignore .DS_Store docs/deep/er/notes.md .hidden/NOTES.md .git/README.md
.cache/huggingface/.gitignore .cache/huggingface/CACHEDIR.TAG
.cache/huggingface/download/model.safetensors.metadata
.cache/huggingface/download/onnx/config.json.lock
""",
)

PICKLE = pickle.dumps({"weights": [1.0]})


def _archive() -> bytes:
    """As `torch.save` writes one."""
    with zipfile.ZipFile(made := io.BytesIO(), "w") as archive:
        archive.writestr("archive/data.pkl", PICKLE)
    return made.getvalue()


ARCHIVE = _archive()
MARKS = {
    ".png": b"\x89PNG\r\n\x1a\n",
    ".jpg": b"\xff\xd8\xff",
    ".jpeg": b"\xff\xd8\xff",
    ".gif": b"GIF89a",
    ".pdf": b"%PDF-1.7",
    "": b"\x00\x00\x00\x01Bud1",
}
CONTENTS = [b"", b"# text\n\ttabs", PICKLE, ARCHIVE, b"text" + ARCHIVE, b"\xff\xfea\x00"]
CONTENTS += [mark + ARCHIVE for mark in MARKS.values()]


def content(name: str) -> bytes:
    """What a file of a harmless name holds."""
    path = PurePosixPath(name.lower())
    if path.suffix or path.name == ".ds_store":
        return MARKS.get(path.suffix, b"text")
    return b"text"


FOLDERS = ["", "sub/", "a/b/c/", "onnx.d/", "README.md.d/", "sub/.git/", ".gitx/", ".cache/"]
