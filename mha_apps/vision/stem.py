"""From pixels to tokens: plain patches, overlapping convolutions (strided, or pooled), shifted patches."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

__all__ = ["ConvStem", "PatchEmbedding", "PooledStem", "ShiftedPatches", "sinusoidal_2d"]


class PatchEmbedding(nn.Module):
    """One linear map of each patch (Dosovitskiy et al. 2021, equation 1).

    Args:
        patch_size: (height, width) of a patch in pixels.
        channels: of the image.
        dim: of a token.
    """

    def __init__(self, patch_size: tuple[int, int], channels: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.project = nn.Linear(channels * patch_size[0] * patch_size[1], dim)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, rows * columns, dim)."""
        p, q = self.patch_size
        return self.project(rearrange(images, "b c (h p) (w q) -> b (h w) (c p q)", p=p, q=q))


class ShiftedPatches(nn.Module):
    """Patches of the image and of its four copies shifted by half a patch (Lee et al. 2021, section 3.1).

    Args:
        patch_size, channels, dim: as for :class:`PatchEmbedding`.
    """

    def __init__(self, patch_size: tuple[int, int], channels: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.norm = nn.LayerNorm(5 * channels * patch_size[0] * patch_size[1])
        self.project = nn.Linear(5 * channels * patch_size[0] * patch_size[1], dim)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, rows * columns, dim)."""
        p, q = self.patch_size
        copies = [images]
        for down in (-(p // 2), p // 2):
            for right in (-(q // 2), q // 2):
                copies.append(F.pad(images, (right, -right, down, -down)))
        patches = rearrange(torch.cat(copies, dim=1), "b c (h p) (w q) -> b (h w) (c p q)", p=p, q=q)
        return self.project(self.norm(patches))


class ConvStem(nn.Module):
    """Overlapping 3x3 convolutions that halve the image until a pixel is a token (Xiao et al. 2021).

    Args:
        patch_size: the reduction, the same power of two in both directions.
        channels: of the image.
        dim: of a token, a multiple of the reduction; the convolutions before have a half of it, a quarter, ...

    Raises:
        ValueError: a patch that is no power of two, or a dim that it does not divide.
    """

    def __init__(self, patch_size: tuple[int, int], channels: int, dim: int) -> None:
        super().__init__()
        side = patch_size[0]
        if patch_size[1] != side or side & (side - 1) or side < 2:
            raise ValueError(f"a convolutional stem needs a square patch of 2, 4, 8, ... pixels, got {patch_size}")
        if dim % side:
            raise ValueError(f"a convolutional stem with patches of {side} needs a dim divisible by {side}, got {dim}")
        self.layers = nn.Sequential(*self.make_layers(channels, side.bit_length() - 1, dim))
        # On CPUs convolutions are faster with channels last, and tokens have them last anyway.
        self.to(memory_format=torch.channels_last)

    def make_layers(self, channels: int, halvings: int, dim: int) -> list[nn.Module]:
        """From an image's channels to ``dim`` of them, in so many halvings."""
        widths = [dim >> number for number in reversed(range(halvings + 1))]
        layers = _convolution(channels, widths[0])
        for before, after in pairwise(widths):
            layers += _convolution(before, after, stride=2)
        return layers

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, rows * columns, dim)."""
        return rearrange(self.layers(images), "b d h w -> b (h w) d")


class PooledStem(ConvStem):
    """:class:`ConvStem` that convolves before it halves, by max pooling, and once more after (as VGG, Simonyan and
    Zisserman 2015), with GELU.

    The first halving leaves a quarter of ``dim`` channels, each further one a half of it more, up to ``dim``.
    Convolutions learn the neighbourhood of a pixel from fewer images than attention does, and those on the finer grid
    learn the most: in equal time a model with this stem and fewer blocks is far more accurate.
    """

    def make_layers(self, channels: int, halvings: int, dim: int) -> list[nn.Module]:
        widths = [min(dim * (2 * number + 1) // 4, dim) for number in range(halvings - 1)]
        layers: list[nn.Module] = []
        for before, after in pairwise([channels, *widths, dim]):
            # The maximum commutes with the norm where its weight is positive, and a quarter is left to do.
            layers += _convolution(before, after, pool=True, activation=nn.GELU)
            layers += _convolution(after, after, activation=nn.GELU)
        return layers


def _convolution(
    before: int, after: int, *, stride: int = 1, pool: bool = False, activation: type[nn.Module] = nn.ReLU
) -> list[nn.Module]:
    """A 3x3 convolution (halved by a maximum if wanted), its norm and its activation."""
    return [
        nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
        *([nn.MaxPool2d(2)] if pool else []),
        nn.BatchNorm2d(after),
        activation(),
    ]


def sinusoidal_2d(rows: int, columns: int, dim: int, base: float = 10000.0) -> Tensor:
    """Sines and cosines of the row in one half of the channels and of the column in the other.

    The two-dimensional code of Beyer et al. 2022 ("Better plain ViT baselines"), after Vaswani et al. 2017.

    Returns:
        (rows * columns, dim) float32, row by row.

    Raises:
        ValueError: dim is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"a sinusoidal 2-D position needs a dim divisible by 4, got {dim}")
    frequency = base ** -(torch.arange(dim // 4, dtype=torch.float32) / (dim // 4))
    row = torch.arange(rows, dtype=torch.float32)[:, None] * frequency
    column = torch.arange(columns, dtype=torch.float32)[:, None] * frequency
    row_code = torch.cat([row.sin(), row.cos()], dim=1)[:, None].expand(rows, columns, dim // 2)
    column_code = torch.cat([column.sin(), column.cos()], dim=1)[None].expand(rows, columns, dim // 2)
    return rearrange(torch.cat([row_code, column_code], dim=-1), "h w d -> (h w) d")
