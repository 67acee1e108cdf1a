"""The attention core: masks, positions, kernels, the module around them, blocks, and looking inside."""

from .block import Decoder, Encoder, FeedForward, TransformerBlock
from .cache import Cache
from .convert import from_torch, mask_from_torch, to_torch
from .mask import Causal, Dense, Dilated, Global, Mask, Padding, PerHead, Segments, Strided, Window, Window2d
from .multihead import MultiHeadAttention
from .plan import Plan, attention_memory
from .position import ALiBi, Learned, RelativeBias, Rotary, Sinusoidal
from .record import AttentionMaps, HeadStatistics, head_statistics, plot_attention, record_attention, rollout
from .replace import Replacement, replace_attention

__all__ = [
    "ALiBi", "AttentionMaps", "Cache", "Causal", "Decoder", "Dense", "Dilated", "Encoder", "FeedForward", "Global",
    "HeadStatistics", "Learned", "Mask", "MultiHeadAttention", "Padding", "PerHead", "Plan", "RelativeBias",
    "Replacement", "Rotary", "Segments", "Sinusoidal", "Strided", "TransformerBlock", "Window", "Window2d",
    "attention_memory", "from_torch", "head_statistics", "mask_from_torch", "plot_attention", "record_attention",
    "replace_attention", "rollout", "to_torch",
]  # fmt: skip
