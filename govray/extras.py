"""Extras: what the base install leaves out, and the words that say how to get it.

pip takes the installed govray for ``govray[train]``, and gets what the extra adds.
"""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, str] = {
    "ray": "train",
    "torch": "train",
    "pyarrow": "trace",
    "tensorboardX": "train",
    "safetensors": "train",
    "tokenizers": "train",
    "rensa": "trace",
    "regex": "trace",
    "obstore": "trace",
    "protego": "train",
    "fastapi": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "sqlmodel": "serve",
    "sqlalchemy": "serve",
    "alembic": "serve",
    "jax": "jax",
    "flax": "jax",
    "optax": "jax",
    "transformers": "huggingface",
    "optuna": "search",
    "presidio_analyzer": "pii",
    "docx": "reports",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "pkcs11": "pkcs11",
}
"""Import name → the extra that carries it."""


def install(extra: str) -> str:
    """The command that adds an extra to the govray that is installed."""
    return f"pip install 'govray[{extra}]'"
