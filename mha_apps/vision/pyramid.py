"""Stages of blocks that attend within shifted windows and merge patches in between: a small Swin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from einops import rearrange
from torch import Tensor, nn

from mha_apps.attention import Mask, TransformerBlock, Window2d, rollout
from mha_apps.attention.position import Position

__all__ = ["PatchMerging", "Pyramid", "Stage"]

#: Makes the position of a block: its heads, its grid, and how far it looks (None: everywhere).
MakePosition = Callable[[int, tuple[int, int], int | None], Position | None]


class PatchMerging(nn.Module):
    """Four neighbouring tokens become one of twice the channels (Liu et al. 2021, section 3.1).

    Args:
        grid: (rows, columns) of tokens, both even.
        dim: channels of a token before.
    """

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.norm = nn.LayerNorm(4 * dim)
        self.project = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, rows * columns, dim) to (batch, rows / 2 * columns / 2, 2 dim)."""
        rows = self.grid[0] // 2
        x = rearrange(x, "b (h p w q) d -> b (h w) (p q d)", h=rows, p=2, q=2)
        return self.project(self.norm(x))

    def spread(self, weights: Tensor) -> Tensor:
        """Weights of tokens after merging, (..., rows / 2 * columns / 2), shared among those before, a quarter each."""
        rows, columns = self.grid[0] // 2, self.grid[1] // 2
        weights = rearrange(weights, "... (h w) -> ... h w", h=rows, w=columns) / 4
        return weights.repeat_interleave(2, dim=-2).repeat_interleave(2, dim=-1).flatten(-2)


class Stage(nn.Module):
    """Blocks on one grid; every second one shifts its windows by half (Liu et al. 2021, section 3.2).

    Args:
        grid: (rows, columns) of patches.
        prefix: tokens before them, which see all and are seen by all.
        window: side of a window in tokens. A grid that is no larger is attended to as a whole.
        blocks: the blocks, made by the caller.
    """

    def __init__(self, grid: tuple[int, int], prefix: int, window: int | None, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.masks: list[Mask | None] = [None, None]
        if window is not None and window < max(grid):
            self.masks = [Window2d(*grid, window, window, shift, prefix) for shift in (0, window // 2)]

    def forward(self, x: Tensor) -> Tensor:
        """(batch, prefix + rows * columns, dim) to the same."""
        for number, block in enumerate(self.blocks):
            x = block(x, self.masks[number % 2])
        return x


class Pyramid(nn.Module):
    """Stages with patch merging between them, then a norm; each stage has half the rows and columns, twice the dim.

    Args:
        grid: (rows, columns) of the first stage's patches; divisible by two once for each further stage.
        dim, heads: of the first stage.
        depths: blocks of each stage.
        window: side of the windows in tokens; None for attention to the whole image.
        prefix: tokens before the patches; merging leaves no room for any.
        position: makes a block's position.
        drop_path: of the last block of all; it grows linearly from 0 at the first.
        block: every other keyword of :class:`mha_apps.attention.TransformerBlock`.

    Raises:
        ValueError: a grid that cannot be halved that often; prefix tokens and more than one stage.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        heads: int,
        depths: Sequence[int],
        *,
        window: int | None,
        prefix: int = 0,
        position: MakePosition,
        drop_path: float = 0.0,
        **block: Any,
    ) -> None:
        super().__init__()
        halvings = len(depths) - 1
        if halvings and prefix:
            raise ValueError("merging patches leaves no class token and no registers: use mean or attention pooling")
        if any(side % 2**halvings for side in grid):
            raise ValueError(f"{grid[0]}x{grid[1]} patches cannot be merged {halvings} times: give fewer stages")
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1 token, got {window}")
        rates = (drop_path * number / max(sum(depths) - 1, 1) for number in range(sum(depths)))
        self.stages, self.merges = nn.ModuleList(), nn.ModuleList()
        for number, depth in enumerate(depths):
            if number:
                self.merges.append(PatchMerging(grid, dim))
                grid, dim, heads = (grid[0] // 2, grid[1] // 2), 2 * dim, 2 * heads
            near = None if window is None or window >= max(grid) else window - 1
            made = partial(TransformerBlock, dim, heads, **block)
            blocks = [made(drop_path=next(rates), position=position(heads, grid, near)) for _ in range(depth)]
            self.stages.append(Stage(grid, prefix, window, blocks))
        self.depths, self.grid, self.dim, self.heads = tuple(depths), grid, dim, heads
        self.norm = nn.LayerNorm(dim)

    def rollout(self, view: Tensor, layers: Sequence[Tensor]) -> Tensor:
        """How much of each first token is in a weighting of the last ones (Abnar and Zuidema 2020).

        Args:
            view: the weighting, (batch, last tokens).
            layers: the attention of every block in order, (batch, heads, tokens, tokens).

        Returns:
            (batch, first tokens); tokens that were merged share alike.
        """
        end = len(layers)
        for number in reversed(range(len(self.stages))):
            begin = end - self.depths[number]
            view, end = torch.einsum("bq,bqk->bk", view, rollout(layers[begin:end])), begin
            if number:
                view = cast(PatchMerging, self.merges[number - 1]).spread(view)
        return view

    def forward(self, x: Tensor) -> Tensor:
        """(batch, prefix + patches, dim) to what the last stage makes of it."""
        for number, stage in enumerate(self.stages):
            x = stage(self.merges[number - 1](x) if number else x)
        return self.norm(x)
