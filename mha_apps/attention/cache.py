"""Keys and values of earlier calls, for decoding a few queries at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .mask import Mask
from .pattern import Band, Columns, Rows

__all__ = ["Cache"]

# Longer than any sequence: what a mask can reach at all, now and later.
FOREVER = 2**40


@dataclass
class Layer:
    """What one attention module has seen: keys and values (batch, kv_heads, kept, head_dim)."""

    key: Tensor
    value: Tensor
    position: Tensor  # (kept,) absolute
    length: int  # positions seen, kept or not


class Cache:
    """Keys and values of all layers of a model, passed to each call as ``cache=cache``.

    Every call appends its positions. Keys that no later query can reach (beyond a window) are dropped, those of
    global tokens kept. The mask of a call is that of all positions so far: with left-padded prompts,
    ``Causal() & Padding(real)`` where ``real`` is (batch, positions so far).

    ``copy.deepcopy`` gives a cache for the same modules that continues on its own, gradients included.
    """

    def __init__(self) -> None:
        self._layers: dict[nn.Module, Layer] = {}

    @property
    def length(self) -> int:
        """Positions that every layer has seen."""
        return min((layer.length for layer in self._layers.values()), default=0)

    def layer_length(self, module: nn.Module) -> int:
        """Positions that one layer has seen."""
        return self._layers[module].length if module in self._layers else 0

    def kept(self, module: nn.Module) -> int:
        """How many positions of one layer are held in memory."""
        return len(self._layers[module].position) if module in self._layers else 0

    def reorder(self, index: Tensor) -> None:
        """Take the samples ``index`` (new batch,) of the batch, as beam search does."""
        for layer in self._layers.values():
            layer.key, layer.value = layer.key[index], layer.value[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        # Modules are whose keys these are, unless they are being copied as well; and tensors that have a gradient
        # have no deepcopy.
        made = memo[id(self)] = Cache()
        for module, layer in self._layers.items():
            key, value, position = (tensor.clone() for tensor in (layer.key, layer.value, layer.position))
            made._layers[memo.get(id(module), module)] = Layer(key, value, position, layer.length)
        return made

    def extend(self, module: nn.Module, key: Tensor, value: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor, Tensor]:
        """Append keys and values, and return all that the new queries may reach, with absolute positions.

        Raises:
            ValueError: the mask is not causal, so that earlier outputs would have been wrong.
        """
        if mask is None or not mask.causal:
            raise ValueError(f"a cache needs a causal mask, such as Causal() & other masks, got {mask!r}")
        start = self.layer_length(module)
        stop = start + key.shape[2]
        position = torch.arange(start, stop, device=key.device)
        if module in self._layers:
            layer = self._layers[module]
            if layer.key.shape[0] != key.shape[0]:
                raise ValueError(f"the cache holds a batch of {layer.key.shape[0]}, got one of {key.shape[0]}")
            key, value = torch.cat([layer.key, key], dim=2), torch.cat([layer.value, value], dim=2)
            position = torch.cat([layer.position, position])
        self._layers[module] = _evict(Layer(key, value, position, stop), mask)
        return key, value, position


def _evict(layer: Layer, mask: Mask) -> Layer:
    """The layer without the keys that no query from position ``length`` on can reach."""
    patterns = mask.support(FOREVER, FOREVER)
    reach, keep = 0, set()
    for pattern in patterns:
        if isinstance(pattern, Band) and pattern.left is not None:
            reach = max(reach, pattern.left)
        elif isinstance(pattern, Columns):
            keep |= set(pattern.tokens)
        elif not (isinstance(pattern, Rows) and max(pattern.tokens, default=-1) < layer.length):
            return layer  # something looks back without bound, or a global token is still to come
    kept = layer.position >= layer.length - reach
    if keep:
        kept |= torch.isin(layer.position, torch.tensor(sorted(keep), device=kept.device))
    if bool(kept.all()):
        return layer
    return Layer(layer.key[:, :, kept], layer.value[:, :, kept], layer.position[kept], layer.length)
