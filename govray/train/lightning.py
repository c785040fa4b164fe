"""The Trainer of Lightning, governed: the documented import."""

from __future__ import annotations

from govray.train.integrations.lightning_trainer import GovernCallback, GovernStrategy

__all__ = ["GovernCallback", "GovernStrategy"]
