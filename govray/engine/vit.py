"""The built-in ViT, by the name that experiment files and attested models know."""

from __future__ import annotations

from govray.engine.model.vit import VisionTransformer, loss

__all__ = ["VisionTransformer", "loss"]
