"""Where a token stands: additive codes for inputs, rotations of queries and keys, biases of scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Learned", "Sinusoidal"]


class Sinusoidal(nn.Module):
    """Adds the sinusoidal code of Vaswani et al. 2017, section 3.5, at any length.

    Args:
        dim: channels of the input; the first half of the code holds sines, the second half cosines.
        base: longest wavelength over 2 pi.
    """

    def __init__(self, dim: int, *, base: float = 10000.0) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"Sinusoidal needs an even dim, got {dim}")
        self.dim, self.base = dim, base

    def code(self, length: int, start: int = 0, device: torch.device | None = None) -> Tensor:
        """The code of ``length`` positions from ``start`` on, (length, dim)."""
        half = self.dim // 2
        frequency = self.base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        angle = (
            torch.arange(start, start + length, device=device, dtype=torch.float32).unsqueeze(1) * frequency
        )
        return torch.cat([angle.sin(), angle.cos()], dim=-1)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x (batch, length, dim) plus the code of positions start, start + 1, ..."""
        return x + self.code(x.shape[1], start, x.device).to(x.dtype)


class Learned(nn.Module):
    """Adds a learned vector per position (Devlin et al. 2019).

    Args:
        length: the number of positions there are; longer inputs raise a ValueError.
        dim: channels of the input.
    """

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, dim))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x (batch, length, dim) plus the vectors of positions start, start + 1, ..."""
        stop = start + x.shape[1]
        if stop > self.weight.shape[0]:
            raise ValueError(
                f"Learned has {self.weight.shape[0]} positions, the input reaches position {stop - 1}"
            )
        return x + self.weight[start:stop].to(x.dtype)
