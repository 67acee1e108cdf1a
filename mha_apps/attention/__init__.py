"""The attention core: masks, positions, kernels, the module around them, blocks, and looking inside."""

from .block import Encoder, FeedForward, TransformerBlock
from .mask import Causal, Dense, Dilated, Global, Mask, Padding, PerHead, Segments, Strided, Window, Window2d
from .multihead import MultiHeadAttention
from .position import Learned, Sinusoidal
from .record import AttentionMaps, plot_attention, record_attention, rollout

__all__ = [
    "AttentionMaps", "Causal", "Dense", "Dilated", "Encoder", "FeedForward", "Global", "Learned", "Mask",
    "MultiHeadAttention", "Padding", "PerHead", "Segments", "Sinusoidal", "Strided", "TransformerBlock", "Window",
    "Window2d", "plot_attention", "record_attention", "rollout",
]  # fmt: skip
