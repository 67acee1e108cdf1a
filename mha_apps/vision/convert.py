"""ViTs from elsewhere and ViTs for other images: timm's weights, other image sizes, other classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mha_apps.attention import RelativeBias
from mha_apps.errors import InputError
from mha_apps.vision.model import ViT

__all__ = ["adapt", "from_timm", "replace_head", "resize"]


def from_timm(
    model: str | nn.Module,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
) -> ViT:
    """timm's VisionTransformer as a :class:`ViT` with the same logits (to rounding, about 1e-5).

    Args:
        model: a name that timm knows, such as ``vit_tiny_patch16_224``, or the timm model itself.
        pretrained: load the weights that timm knows for that name (from its cache, or the hub).
        weights: a local file with timm's weights (.safetensors, .pth, .bin) instead.

    Raises:
        InputError: an unknown name, weights that cannot be had or do not fit, or a variant that differs from a plain
            ViT in more than its sizes (the message names what).
    """
    import timm
    from timm.models.vision_transformer import VisionTransformer

    name = model if isinstance(model, str) else type(model).__name__
    if isinstance(model, str):
        try:
            model = timm.create_model(model, pretrained=pretrained, checkpoint_path=str(weights or ""))
        except Exception as error:  # timm raises RuntimeError, OSError, KeyError, the hub its own
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"{weights or name}: timm cannot load it ({reason}); give a model that timm lists, and its "
                "weights in a local file where there is no network"
            ) from error
    if not isinstance(model, VisionTransformer):
        raise InputError(f"{name}: is {type(model).__name__}, not timm's VisionTransformer; only that can be converted")
    settings = _settings(name, model)
    converted = ViT(**settings)
    converted.load_state_dict(_state(model, converted))
    return converted.eval()


def _settings(name: str, source: Any) -> dict[str, Any]:
    block = source.blocks[0]
    odd = [
        what
        for what, found in (
            ("pooling other than the class token", source.global_pool != "token"),
            ("a norm before the blocks", not isinstance(source.norm_pre, nn.Identity)),
            ("a norm of the pooled features", not isinstance(source.fc_norm, nn.Identity)),
            ("no final norm", not isinstance(source.norm, nn.LayerNorm)),
            ("normalised queries and keys", not isinstance(block.attn.q_norm, nn.Identity)),
            ("an activation other than GELU", not isinstance(block.mlp.act, nn.GELU)),
            ("gated feed-forwards", not hasattr(block.mlp, "fc1")),
            ("no biases", block.attn.qkv.bias is None),
            ("no learned positions", source.pos_embed is None),
            ("no class token", source.cls_token is None),
        )
        if found
    ]
    if odd:
        raise InputError(
            f"{name}: has {' and '.join(odd)}, which is not converted; choose a plain ViT, such as vit_tiny_patch16_224"
        )
    config = getattr(source, "pretrained_cfg", None) or {}
    embed = source.patch_embed
    channels = embed.proj.in_channels
    scale = getattr(block.ls1, "gamma", None)
    return {
        "image_size": list(embed.img_size),
        "patch_size": list(embed.patch_size),
        "channels": channels,
        "classes": source.num_classes,
        "dim": source.embed_dim,
        "depth": len(source.blocks),
        "heads": block.attn.num_heads,
        "mlp_ratio": block.mlp.fc1.out_features / source.embed_dim,
        "pool": "class",
        "position": "learned",
        "registers": 0 if source.reg_token is None else source.reg_token.shape[1],
        "layer_scale": None if scale is None else 1.0,
        "norm_epsilon": block.norm1.eps,
        "mean": list(config.get("mean", [0.5] * channels))[:channels],
        "std": list(config.get("std", [0.5] * channels))[:channels],
    }


def _state(source: Any, target: ViT) -> dict[str, Tensor]:
    """timm's weights under our names."""
    theirs = {key: value.detach().clone() for key, value in source.state_dict().items()}
    ours = {
        "stem.project.weight": theirs["patch_embed.proj.weight"].flatten(1),
        "stem.project.bias": theirs["patch_embed.proj.bias"],
        "encoder.norm.weight": theirs["norm.weight"],
        "encoder.norm.bias": theirs["norm.bias"],
        "head.weight": theirs["head.weight"],
        "head.bias": theirs["head.bias"],
    }
    positions = theirs["pos_embed"]
    before = positions.shape[1] - target.grid[0] * target.grid[1]
    prefix = torch.cat([theirs["cls_token"]] + ([theirs["reg_token"]] if "reg_token" in theirs else []), dim=1)
    # There the class token has a position too; here it is part of the token.
    prefix[:, :before] += positions[:, :before]
    ours["class_token"], ours["position"] = prefix[:, :1], positions[0, before:]
    if target.registers is not None:
        ours["registers"] = prefix[:, 1:]
    names = {
        "norm1": "attention_norm",
        "norm2": "feed_forward_norm",
        "attn.proj": "attention.output",
        "mlp.fc1": "feed_forward.hidden",
        "mlp.fc2": "feed_forward.output",
    }
    for number in range(len(source.blocks)):
        there, here = f"blocks.{number}", f"encoder.blocks.{number}"
        for kind in ("weight", "bias"):
            for theirs_name, our_name in names.items():
                ours[f"{here}.{our_name}.{kind}"] = theirs[f"{there}.{theirs_name}.{kind}"]
            parts = theirs[f"{there}.attn.qkv.{kind}"].chunk(3)
            for part, our_name in zip(parts, ("query", "key", "value"), strict=True):
                ours[f"{here}.attention.{our_name}.{kind}"] = part
        for theirs_name, our_name in (("ls1", "attention_branch"), ("ls2", "feed_forward_branch")):
            if f"{there}.{theirs_name}.gamma" in theirs:
                ours[f"{here}.{our_name}.0.scale"] = theirs[f"{there}.{theirs_name}.gamma"]
    return ours


def resize(model: ViT, image_size: int | Sequence[int]) -> ViT:
    """The same model for images of another size: learned positions and relative biases are interpolated (bicubic).

    Args:
        image_size: pixels, a side or (height, width); multiples of the patch.

    Returns:
        a new model; the given one is left as it is.

    Raises:
        ValueError: a size that the patch does not divide.
    """
    size = [image_size, image_size] if isinstance(image_size, int) else list(image_size)
    return adapt(model, image_size=size)


def adapt(model: ViT, *, image_size: Sequence[int], **rates: float) -> ViT:
    """:func:`resize`, and other rates of ``dropout`` and ``drop_path``."""
    resized = ViT(**model.settings() | {"image_size": list(image_size)} | rates)
    state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    if model.position is not None:
        state["position"] = _interpolate(state["position"].T, model.grid, resized.grid).T
    for name, bias in resized.named_modules():
        if isinstance(bias, RelativeBias):
            key = f"{name}.table"
            reaches = [cast(RelativeBias, parent.get_submodule(name)).reach for parent in (model, resized)]
            extents = [(2 * down + 1, 2 * across + 1) for down, across in reaches]
            count = extents[0][0] * extents[0][1]
            # Biases of windows, whose distances stay what they are, come out as they were.
            table = _interpolate(state[key][:, :count], extents[0], extents[1])
            state[key] = torch.cat([table, state[key][:, count:]], dim=1)
    resized.load_state_dict(state)
    return resized.train(model.training)


def _interpolate(values: Tensor, grid: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """(channels, rows * columns) to another number of rows and columns."""
    picture = rearrange(values.float(), "c (h w) -> 1 c h w", h=grid[0], w=grid[1])
    picture = F.interpolate(picture, wanted, mode="bicubic", antialias=True)
    return rearrange(picture, "1 c h w -> c (h w)").to(values.dtype)


def replace_head(model: ViT, classes: Sequence[str]) -> ViT:
    """The same model with a new, untrained classifier for other classes; the given one is left as it is."""
    replaced = ViT(**model.settings() | {"classes": list(classes)})
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    replaced.load_state_dict(state | {f"head.{key}": value for key, value in replaced.head.state_dict().items()})
    return replaced.train(model.training)
