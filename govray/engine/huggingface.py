"""Causal models of transformers, by the name that experiment files and attested models know."""

from __future__ import annotations

from govray.engine.model.causal_lm import CausalLM, loss

__all__ = ["CausalLM", "loss"]
