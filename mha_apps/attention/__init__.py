"""The attention core: masks, positions, kernels, the module around them, blocks, and looking inside."""

from .block import Decoder, Encoder, FeedForward, TransformerBlock
from .cache import Cache
from .mask import Causal, Dense, Dilated, Global, Mask, Padding, PerHead, Segments, Strided, Window, Window2d
from .multihead import MultiHeadAttention
from .plan import Plan, attention_memory
from .position import ALiBi, Learned, RelativeBias, Rotary, Sinusoidal
from .record import AttentionMaps, plot_attention, record_attention, rollout

__all__ = [
    "ALiBi", "AttentionMaps", "Cache", "Causal", "Decoder", "Dense", "Dilated", "Encoder", "FeedForward", "Global",
    "Learned", "Mask", "MultiHeadAttention", "Padding", "PerHead", "Plan", "RelativeBias", "Rotary", "Segments",
    "Sinusoidal", "Strided", "TransformerBlock", "Window", "Window2d", "attention_memory", "plot_attention",
    "record_attention", "rollout",
]  # fmt: skip
