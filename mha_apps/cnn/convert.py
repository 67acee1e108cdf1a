"""Weights of timm's gates in ours: the only place that knows timm's names."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mha_apps.cnn.gates import (
    CBAM,
    ChannelAttention,
    EfficientChannelAttention,
    Gate,
    SpatialAttention,
    SqueezeExcitation,
)

__all__ = ["from_timm"]


def from_timm(module: nn.Module) -> Gate:
    """Our gate that computes what a gate of timm's computes, with its weights copied.

    Args:
        module: timm's `SEModule` (`SqueezeExcite`), `EcaModule`, `CbamModule`, or a half of CBAM. The spatial
            half keeps its batch norm.

    Raises:
        ValueError: it is none of these, or was made with options that ours do not have.
    """
    kind = type(module).__name__
    if kind not in _CONVERTERS:
        raise ValueError(f"{kind} is none of timm's gates that have a twin here: {', '.join(_CONVERTERS)}")
    gate = _CONVERTERS[kind](module)
    parameter = next(module.parameters())
    return gate.to(parameter.device, parameter.dtype).train(module.training)


def _squeeze_excitation(module: Any) -> Gate:
    _require(not module.add_maxpool and isinstance(module.bn, nn.Identity), "SEModule with max pooling or a norm")
    gate = SqueezeExcitation(module.fc1.in_channels, hidden=module.fc1.out_channels, bias=module.fc1.bias is not None)
    return _bottleneck(gate, module)


def _efficient_channel_attention(module: Any) -> Gate:
    _require(module.conv2 is None, "EcaModule with use_mlp")
    _require_sigmoid(module.gate)
    # timm's module does not know its number of channels, and neither needs it.
    gate = EfficientChannelAttention(1, kernel_size=module.conv.kernel_size[0])
    gate.load_state_dict({"conv.weight": module.conv.weight})
    return gate


def _channel_attention(module: Any) -> Gate:
    gate = ChannelAttention(module.fc1.in_channels, hidden=module.fc1.out_channels, bias=module.fc1.bias is not None)
    return _bottleneck(gate, module)


def _spatial_attention(module: Any) -> Gate:
    _require_sigmoid(module.gate)
    gate = SpatialAttention(1, kernel_size=module.conv.conv.kernel_size[0], batch_norm=True)
    gate.conv.load_state_dict(module.conv.conv.state_dict())
    norm = gate.norm
    assert norm is not None
    norm.eps, norm.momentum = module.conv.bn.eps, module.conv.bn.momentum
    norm.load_state_dict(module.conv.bn.state_dict())
    return gate


def _cbam(module: Any) -> Gate:
    channel, spatial = _channel_attention(module.channel), _spatial_attention(module.spatial)
    gate = CBAM(channel.channels, **(channel.options() | spatial.options()))
    gate.channel, gate.spatial = channel, spatial  # type: ignore[assignment]
    return gate


_CONVERTERS = {
    "SEModule": _squeeze_excitation,
    "EcaModule": _efficient_channel_attention,
    "ChannelAttn": _channel_attention,
    "SpatialAttn": _spatial_attention,
    "CbamModule": _cbam,
}


def _bottleneck(gate: Gate, module: Any) -> Gate:
    """The two layers, which timm writes as 1x1 convolutions."""
    _require_sigmoid(module.gate)
    _require(isinstance(module.act, nn.ReLU), f"an activation {type(module.act).__name__}")
    weights: dict[str, Tensor] = {}
    for name in ("fc1", "fc2"):
        layer = getattr(module, name)
        weights[f"{name}.weight"] = layer.weight.flatten(1)
        if layer.bias is not None:
            weights[f"{name}.bias"] = layer.bias
    gate.load_state_dict(weights)
    return gate


def _require_sigmoid(gate: nn.Module) -> None:
    _require(type(gate).__name__ == "Sigmoid", f"a gate function {type(gate).__name__}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} has no twin here; only ReLU, sigmoid and the papers' layout are converted")
