"""The built-in GPT, by the name that experiment files and attested models know."""

from __future__ import annotations

from govray.engine.model.gpt import GPT, loss

__all__ = ["GPT", "loss"]
