"""The built-in image model: a small pre-norm vision transformer, and its unreduced loss.

Parameters sit where the layer groups are: ``embedding`` (patches and positions), ``blocks``,
``final_norm``, ``head``. The blocks are those of the built-in GPT, with attention in both
directions. Patches are averaged before the head; there is no class token. Weights come from torch's
global generator.

Source: Dosovitskiy et al. 2021 (ViT), with the mean over patches of Zhai et al. 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.model.gpt import Block, require_sizes
from govray.errors import UsageError

_STD = 0.02
_HALF_RANGE = 127.5


class VisionTransformer(nn.Module):
    """A classifier of uint8 images of one shape.

    Args:
        image: Channels, height and width.
        classes: Labels are in ``[0, classes)``.
        patch: Height and width of a patch; it divides those of the image.
        blocks: Number of transformer blocks, at least 1.
        width: Channels of the residual stream.
        heads: Attention heads; they divide ``width``.
        dropout: Probability of zeroing a channel on the residual stream.

    Raises:
        UsageError: A size is not positive, ``patch`` does not divide the image, ``heads`` does not
            divide ``width``, or ``dropout`` is not in [0, 1).
    """

    def __init__(
        self,
        image: Sequence[int],
        classes: int,
        patch: int,
        blocks: int,
        width: int,
        heads: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        shape = list(image) if isinstance(image, Sequence) else []
        sizes = {"classes": classes, "patch": patch, "blocks": blocks}
        sizes |= {f"image[{place}]": size for place, size in enumerate(shape)}
        require_sizes("VisionTransformer", sizes, width, heads, dropout)
        if len(shape) != 3 or shape[1] % patch or shape[2] % patch:
            raise UsageError(
                f"image {shape} is not cut into patches of {patch}",
                where="VisionTransformer",
                do="Give [channels, height, width], and a patch that divides height and width",
            )
        self.image, self.classes = tuple(shape), classes
        count = (shape[1] // patch) * (shape[2] // patch)
        self.embedding = PatchEmbedding(shape[0], patch, count, width, dropout)
        self.blocks = nn.ModuleList(
            Block(width, heads, dropout, causal=False) for _ in range(blocks)
        )
        self.final_norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, classes, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's global generator.

        Places begin as large as patches. With places that are nearly 0, small images were learned
        half as fast.
        """
        pixels = self.embedding.patches.weight[0].numel()
        for name, parameter in self.named_parameters():
            if name.startswith("embedding."):
                nn.init.normal_(parameter, std=pixels**-0.5)
            elif parameter.dim() == 1:
                nn.init.ones_(parameter)
            elif name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=_STD / (2 * len(self.blocks)) ** 0.5)
            else:
                nn.init.normal_(parameter, std=_STD)

    def forward(self, image: Tensor) -> Tensor:
        """Logits of the classes.

        Args:
            image: uint8 of shape (rows, channels, height, width), on the parameters' device.

        Returns:
            Logits of shape (rows, classes), of the parameters' dtype.

        Raises:
            UsageError: The images have another shape.
        """
        if tuple(image.shape[1:]) != self.image:
            raise UsageError(
                f"images of shape {tuple(image.shape[1:])}, the model takes {self.image}",
                where="VisionTransformer",
                do="Write the corpora's --image-shape as hyperparameters.image",
            )
        scaled = image.to(self.head.weight.dtype) / _HALF_RANGE - 1
        hidden = self.embedding(scaled)
        for block in self.blocks:
            hidden = block(hidden)
        pooled = self.final_norm(hidden).mean(dim=1)
        return self.head(pooled)


class PatchEmbedding(nn.Module):
    """Each patch by its pixels and its place: (rows, channels, height, width) → (rows, patches,
    width)."""

    def __init__(self, channels: int, patch: int, patches: int, width: int, dropout: float) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch, bias=False)
        self.positions = nn.Embedding(patches, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image: Tensor) -> Tensor:
        """Embed images of the parameters' dtype and device."""
        found = self.patches(image).flatten(2).transpose(1, 2)
        # Looked up for every row, so that a row's part of the gradient can be told apart.
        places = torch.arange(found.shape[1], device=image.device).expand(len(image), -1)
        return self.dropout(found + self.positions(places))


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy of every image's label, unreduced, in nats.

    Args:
        model: Maps images to logits (rows, classes).
        batch: ``image`` of shape (rows, channels, height, width), and ``targets`` of shape (rows),
            int64, on the model's device.

    Returns:
        Losses of shape (rows), of the logits' dtype.
    """
    return F.cross_entropy(model(batch["image"]), batch["targets"], reduction="none")
