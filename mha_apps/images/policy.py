"""TrivialAugment and RandAugment on whole batches: fourteen changes of colour and geometry of byte images.

The operations, their order and their strengths are torchvision's; there an image is changed at a time, here all those
of a batch that drew the same operation, each at its own strength.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["OPERATIONS", "apply_operation", "apply_policy", "numbers_needed"]

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip

BINS = 31  # strengths are one of 0, 1, ..., 30 thirtieths of the greatest

Policy = Literal["none", "trivial", "rand"]


def numbers_needed(policy: Policy) -> int:
    """How many uniform numbers an image needs: operation, strength and sign for each operation applied."""
    return {"none": 0, "trivial": 3, "rand": 6}[policy]


def apply_policy(images: Tensor, policy: Policy, numbers: Tensor) -> Tensor:
    """Change each image by the operations that its numbers draw.

    Args:
        images: (batch, 1 or 3, height, width) uint8.
        policy: ``trivial``: one operation of any strength, up to very strong (Müller and Hutter 2021, wide); ``rand``:
            two operations of strength 9 of 30 (Cubuk et al. 2020).
        numbers: (batch, numbers_needed(policy)) in [0, 1).

    Returns:
        as ``images``.
    """
    if policy == "none":
        return images
    for drawn in numbers.reshape(len(images), -1, 3).unbind(1):
        operation, strength, sign = drawn.unbind(1)
        level = (strength * BINS).long() if policy == "trivial" else torch.full_like(strength, 9).long()
        signed = torch.where(sign < 0.5, 1.0, -1.0)
        chosen = (operation * len(OPERATIONS)).long()
        changed = images.clone()
        for number, name in enumerate(OPERATIONS):
            picked = (chosen == number).nonzero()[:, 0]
            if name != "identity" and len(picked):
                amount = _amount(name, policy, level[picked] / (BINS - 1), signed[picked], images.shape[-2:])
                changed[picked] = apply_operation(images[picked], name, amount)
        images = changed
    return images


def _amount(name: str, policy: Policy, level: Tensor, sign: Tensor, size: torch.Size) -> Tensor:
    """The argument of an operation at a level of 0..1."""
    wide = policy == "trivial"
    if name in ("shear_x", "shear_y"):
        return sign * level * (0.99 if wide else 0.3)
    if name == "translate_x":
        return (sign * level * (32.0 if wide else 150 / 331 * size[1])).trunc()
    if name == "translate_y":
        return (sign * level * (32.0 if wide else 150 / 331 * size[0])).trunc()
    if name == "rotate":
        return sign * level * (135.0 if wide else 30.0)
    if name in ("brightness", "color", "contrast", "sharpness"):
        return 1 + sign * level * (0.99 if wide else 0.9)
    if name == "posterize":
        return 8 - (level * (6 if wide else 4)).round()
    return 255 * (1 - level)  # the threshold of solarize; others have no argument


def apply_operation(images: Tensor, name: str, amount: Tensor) -> Tensor:
    """One operation on all images.

    Args:
        images: (batch, 1 or 3, height, width) uint8.
        name: of :data:`OPERATIONS`.
        amount: (batch,): a shear (tangent), a shift in pixels, an angle in degrees (counter-clockwise), a blending
            factor (1 changes nothing), the bits to keep, or a threshold of 0..255.
    """
    return _FUNCTIONS[name](images, amount)


def _affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Take each pixel from where ``matrix`` (batch, 2, 3) puts it, in pixels from the top left; black from outside."""
    height, width = images.shape[-2:]
    row = torch.arange(height, device=images.device, dtype=torch.float32)[:, None].expand(height, width)
    column = torch.arange(width, device=images.device, dtype=torch.float32).expand(height, width)
    place = torch.stack([column, row, torch.ones_like(row)]).flatten(1)
    source = (matrix @ place).round().long()
    x, y = source[:, 0].reshape(-1, height, width), source[:, 1].reshape(-1, height, width)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    taken = images[batch, :, y.clamp(0, height - 1), x.clamp(0, width - 1)]
    return (taken * inside[..., None]).permute(0, 3, 1, 2)


def _matrix(images: Tensor, rows: list[list[Tensor | float]]) -> Tensor:
    zero = torch.zeros(len(images), device=images.device)
    return torch.stack([torch.stack([zero + value for value in row], dim=1) for row in rows], dim=1)


# torchvision shears about the top left corner, between pixels: half a pixel from the centre of the first.
def _shear_x(images: Tensor, amount: Tensor) -> Tensor:
    return _affine(images, _matrix(images, [[1.0, amount, 0.5 * amount], [0.0, 1.0, 0.0]]))


def _shear_y(images: Tensor, amount: Tensor) -> Tensor:
    return _affine(images, _matrix(images, [[1.0, 0.0, 0.0], [amount, 1.0, 0.5 * amount]]))


def _translate_x(images: Tensor, amount: Tensor) -> Tensor:
    return _affine(images, _matrix(images, [[1.0, 0.0, -amount], [0.0, 1.0, 0.0]]))


def _translate_y(images: Tensor, amount: Tensor) -> Tensor:
    return _affine(images, _matrix(images, [[1.0, 0.0, 0.0], [0.0, 1.0, -amount]]))


def _rotate(images: Tensor, amount: Tensor) -> Tensor:
    cos, sin = (amount * math.pi / 180).cos(), (amount * math.pi / 180).sin()
    x, y = (images.shape[-1] - 1) / 2, (images.shape[-2] - 1) / 2
    return _affine(images, _matrix(images, [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]))


def _blend(images: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    factor = amount.reshape(-1, 1, 1, 1)
    return (factor * images + (1 - factor) * other).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images.float()
    luma = torch.tensor([0.2989, 0.587, 0.114], device=images.device).reshape(1, 3, 1, 1)
    return (images * luma).sum(dim=1, keepdim=True).floor()


def _brightness(images: Tensor, amount: Tensor) -> Tensor:
    return _blend(images.float(), torch.zeros((), device=images.device), amount)


def _color(images: Tensor, amount: Tensor) -> Tensor:
    return images if images.shape[1] == 1 else _blend(images.float(), _grey(images), amount)


def _contrast(images: Tensor, amount: Tensor) -> Tensor:
    return _blend(images.float(), _grey(images).mean(dim=(1, 2, 3), keepdim=True), amount)


def _sharpness(images: Tensor, amount: Tensor) -> Tensor:
    if min(images.shape[-2:]) <= 2:
        return images
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]], device=images.device) / 13
    channels = images.shape[1]
    smooth = images.float()
    inner = F.conv2d(smooth, kernel.expand(channels, 1, 3, 3), groups=channels).round()
    smooth = F.pad(inner, (1, 1, 1, 1))
    smooth[..., 0, :], smooth[..., -1, :] = images[..., 0, :].float(), images[..., -1, :].float()
    smooth[..., :, 0], smooth[..., :, -1] = images[..., :, 0].float(), images[..., :, -1].float()
    return _blend(images.float(), smooth, amount)


def _posterize(images: Tensor, amount: Tensor) -> Tensor:
    kept = (256 - 2 ** (8 - amount)).to(torch.uint8)
    return images & kept.reshape(-1, 1, 1, 1)


def _solarize(images: Tensor, amount: Tensor) -> Tensor:
    return torch.where(images >= amount.reshape(-1, 1, 1, 1), 255 - images, images)


def _autocontrast(images: Tensor, amount: Tensor) -> Tensor:
    values = images.float()
    low, high = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    flat = low == high
    scale = torch.where(flat, 1.0, 255 / (high - low))
    return ((values - torch.where(flat, 0.0, low)) * scale).clamp(0, 255).to(torch.uint8)


def _equalize(images: Tensor, amount: Tensor) -> Tensor:
    batch, channels, height, width = images.shape
    values = images.reshape(batch * channels, -1).long()
    counts = torch.zeros(batch * channels, 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    total = counts.cumsum(dim=1)
    # Pillow's rule: the brightest value that occurs is left out of the count of pixels.
    brightest = counts.gather(1, values.amax(dim=1, keepdim=True))
    step = (height * width - brightest) // 255
    table = (total[:, :-1] + step // 2) // step.clamp(min=1)
    table = F.pad(table, (1, 0)).clamp(0, 255)
    equal = torch.where(step > 0, table.gather(1, values), values)
    return equal.reshape(images.shape).to(torch.uint8)


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda images, amount: images,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
