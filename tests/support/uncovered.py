"""Names of files that no digest covers: what a loader may take, what is inert, and where."""

from __future__ import annotations

import re

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
""",
)

HARMLESS = re.findall(
    r"\S+",
    """
README README.md readme.md README.txt README.rst Readme LICENSE LICENSE.txt LICENCE LICENSE.md
LICENSE-APACHE LICENSE-MIT.txt NOTICE NOTICE.txt COPYING COPYING.LESSER CHANGELOG.md AUTHORS
card.md report.html paper.pdf loss.png plots/loss.svg photo.jpg photo.JPEG anim.gif
.gitattributes .gitignore .DS_Store docs/deep/er/notes.md
.git/HEAD .git/config .git/objects/ab/cdef0123 .git/hooks/pre-commit.sample
.cache/huggingface/download/model.safetensors.metadata
""",
)

FOLDERS = ["", "sub/", "a/b/c/", "onnx.d/", "README.md.d/", "sub/.git/", ".gitx/", ".cache/"]
