"""The Trainer of transformers, governed: the documented import."""

from __future__ import annotations

from govray.train.integrations.huggingface_trainer import GovernCallback, govern_trainer

__all__ = ["GovernCallback", "govern_trainer"]
