"""The vision transformer: a stem, the core's encoder, and a classifier on what it pools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from mha_apps.attention import Encoder, MultiHeadAttention, RelativeBias, Rotary
from mha_apps.attention.position import Position
from mha_apps.training.run import Run
from mha_apps.vision.pyramid import Pyramid
from mha_apps.vision.stem import ConvStem, PatchEmbedding, PooledStem, ShiftedPatches, sinusoidal_2d

__all__ = ["ViT", "load_model"]

STEMS = {"patch": PatchEmbedding, "conv": ConvStem, "pooled": PooledStem, "shifted": ShiftedPatches}
POOLS = ("mean", "class", "attention")
POSITIONS = ("learned", "sinusoidal", "rotary", "relative", "none")


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _positions(position: str) -> tuple[str | None, str | None]:
    """The position that is added to tokens, and the one that changes scores."""
    parts = position.split("+")
    added = [part for part in parts if part in ("learned", "sinusoidal")]
    scored = [part for part in parts if part in ("rotary", "relative")]
    if set(parts) - set(POSITIONS) or len(added) > 1 or len(scored) > 1 or ("none" in parts and len(parts) > 1):
        raise ValueError(
            f"position must be one of {', '.join(POSITIONS)}, or learned or sinusoidal joined with rotary or relative "
            f"by +, got {position!r}"
        )
    return (added or [None])[0], (scored or [None])[0]  # type: ignore[list-item]


class ViT(nn.Module, PyTorchModelHubMixin, library_name="mha_apps", tags=["image-classification"]):
    """Vision transformer (Dosovitskiy et al. 2021) on the attention core.

    ``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` are huggingface_hub's.

    Args:
        image_size: pixels, a side or (height, width); each a multiple of the patch.
        patch_size: pixels, a side or (height, width).
        channels: of the image.
        classes: how many there are, or their names.
        dim: channels of a token; with several stages, of the first.
        depth: transformer blocks; or blocks of each stage, where four neighbouring tokens merge into one of twice the
            channels and heads from stage to stage (Liu et al. 2021).
        heads: attention heads; with several stages, of the first.
        window: attend within windows of so many tokens a side, every second block with windows shifted by half (a
            small Swin); None for attention to the whole image.
        mlp_ratio: hidden channels of the feed-forward over dim.
        stem: ``patch`` (one linear map), ``conv`` (overlapping 3x3 convolutions), ``pooled`` (two of them
            a halving, with max pooling) or ``shifted`` (five shifted copies).
        pool: what the classifier reads: the ``mean`` of the patches' tokens, a ``class`` token, or ``attention`` of one
            learned query over all tokens (Zhai et al. 2022).
        position: how tokens know where they stand: ``learned`` or two-dimensional ``sinusoidal`` vectors are added to
            them; ``rotary`` (axial) turns queries and keys, ``relative`` adds a learned number per distance to the
            scores; one of each kind may be joined, as in ``learned+relative``; or ``none``.
        registers: tokens without a place (Darcet et al. 2024).
        activation: of the feed-forward, see ``mha_apps.attention.FeedForward``.
        dropout: on attention weights, hidden channels and branches.
        drop_path: probability with which the last block is skipped for an image; it grows linearly with depth.
        layer_scale: where the learned scale of the branches starts; None for none.
        qk_norm: normalise queries and keys.
        norm_epsilon: what the norms add to the variance.
        kernel: of the attention, see ``mha_apps.attention.MultiHeadAttention``.
        mean, std: of each channel of the images (scaled to 0..1) that the model was trained on. Kept with the model
            for those who prepare its input; :meth:`forward` takes normalised images.

    Raises:
        ValueError: sizes that do not divide, an unknown option.
    """

    def __init__(
        self,
        *,
        image_size: int | Sequence[int] = 32,
        patch_size: int | Sequence[int] = 4,
        channels: int = 3,
        classes: int | Sequence[str] = 10,
        dim: int = 192,
        depth: int | Sequence[int] = 9,
        heads: int = 3,
        window: int | None = None,
        mlp_ratio: float = 4.0,
        stem: Literal["patch", "conv", "pooled", "shifted"] = "patch",
        pool: Literal["mean", "class", "attention"] = "mean",
        position: str = "learned",
        registers: int = 0,
        activation: str = "gelu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        qk_norm: bool = False,
        norm_epsilon: float = 1e-5,
        kernel: str = "auto",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.image_size, self.patch_size = _pair(image_size), _pair(patch_size)
        if any(side % patch or side < patch for side, patch in zip(self.image_size, self.patch_size, strict=True)):
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size} in both directions"
            )
        if not (0 < heads <= dim and dim % heads == 0):
            raise ValueError(f"dim {dim} is not a multiple of heads {heads}")
        if not 1 <= dim * mlp_ratio < 2**31:
            raise ValueError(f"mlp_ratio {mlp_ratio} of dim {dim} leaves {dim * mlp_ratio:g} hidden channels")
        for name, value, known in (("stem", stem, STEMS), ("pool", pool, POOLS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        added, scored = _positions(position)
        self.channels, self.pool = channels, pool
        self.classes = tuple(str(number) for number in range(classes)) if isinstance(classes, int) else tuple(classes)
        self.mean = [0.0] * channels if mean is None else list(mean)
        self.std = [1.0] * channels if std is None else list(std)
        if not len(self.mean) == len(self.std) == channels:
            raise ValueError(f"mean and std need one value for each of {channels} channels, got {mean} and {std}")

        rows, columns = self.grid
        self.stem = STEMS[stem](self.patch_size, channels, dim)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim)) if pool == "class" else None
        self.registers = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        self.position: nn.Parameter | None = None
        if added == "learned":
            self.position = nn.Parameter(torch.zeros(rows * columns, dim))
        elif added == "sinusoidal":
            self.register_buffer("code", sinusoidal_2d(rows, columns, dim), persistent=False)
        self.dropout = nn.Dropout(dropout)
        block: dict[str, Any] = dict(
            mlp_ratio=mlp_ratio, activation=activation, dropout=dropout, drop_path=drop_path, layer_scale=layer_scale,
            qk_norm=qk_norm, kernel=kernel,
        )  # fmt: skip
        self.encoder: Encoder | Pyramid
        if isinstance(depth, int) and window is None:
            position_of = partial(self._score_position, scored, heads, self.grid)
            self.encoder = Encoder(dim, heads, depth, position=position_of if scored else None, **block)
        else:
            depths = [depth] if isinstance(depth, int) else list(depth)
            self.encoder = Pyramid(
                self.grid, dim, heads, depths, window=window, prefix=self.prefix,
                position=partial(self._score_position, scored), **block,
            )  # fmt: skip
            dim, heads = self.encoder.dim, self.encoder.heads
        self.pool_query = nn.Parameter(torch.zeros(1, 1, dim)) if pool == "attention" else None
        self.pool_attention = MultiHeadAttention(dim, heads) if pool == "attention" else None
        self.head = nn.Linear(dim, len(self.classes))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = norm_epsilon
        self.reset_parameters()

    def _score_position(
        self, scored: str | None, heads: int, grid: tuple[int, int], reach: int | None = None
    ) -> Position | None:
        """The position of one block's attention, which looks ``reach`` rows and columns far (None: everywhere)."""
        if scored == "relative":
            return RelativeBias(heads, grid=grid, prefix=self.prefix, max_distance=reach)
        if scored == "rotary":
            # Over the few rows and columns of an image the long waves of base 10000 would hardly turn.
            return Rotary(base=100.0, grid=grid, prefix=self.prefix)
        return None

    def reset_parameters(self) -> None:
        """Normal weights of variance 1 / fan-in and zero biases, which unlike a fixed deviation suit any dim."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        for token in (self.class_token, self.registers, self.pool_query):
            if token is not None:
                nn.init.trunc_normal_(token, std=0.02)
        if self.position is not None:
            # Tokens start with unit variance: at the usual 0.02 a model of small images learns only a bag of patches.
            nn.init.trunc_normal_(self.position, std=0.5)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def last_grid(self) -> tuple[int, int]:
        """Rows and columns of what is left of the patches after the last stage."""
        return self.encoder.grid if isinstance(self.encoder, Pyramid) else self.grid

    @property
    def prefix(self) -> int:
        """How many tokens stand before the patches' (class token, registers)."""
        return (self.class_token is not None) + (0 if self.registers is None else self.registers.shape[1])

    def tokens(self, images: Tensor) -> Tensor:
        """Normalised images (batch, channels, height, width) to the encoder's output (batch, prefix + patches, dim).

        With several stages there are fewer patches, of more channels, at the end than at the beginning.

        Raises:
            ValueError: images of another size or number of channels.
        """
        if images.dim() != 4 or tuple(images.shape[1:]) != (self.channels, *self.image_size):
            raise ValueError(
                f"images must be (batch, {self.channels}, {self.image_size[0]}, {self.image_size[1]}), "
                f"got {tuple(images.shape)}"
            )
        x = self.stem(images)
        if self.position is not None:
            x = x + self.position.to(x.dtype)
        elif hasattr(self, "code"):
            x = x + self.code.to(x.dtype)
        before = [
            token.expand(len(x), -1, -1).to(x.dtype)
            for token in (self.class_token, self.registers)
            if token is not None
        ]
        return self.encoder(self.dropout(torch.cat([*before, x], dim=1) if before else x))

    def features(self, images: Tensor) -> Tensor:
        """What the classifier reads, (batch, dim)."""
        x = self.tokens(images)
        if self.pool == "class":
            return x[:, 0]
        if self.pool == "mean":
            return x[:, self.prefix :].mean(dim=1)
        assert self.pool_query is not None
        assert self.pool_attention is not None
        return self.pool_attention(self.pool_query.expand(len(x), -1, -1).to(x.dtype), x)[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (batch, channels, height, width) to logits (batch, classes)."""
        return self.head(self.features(images))

    def settings(self) -> dict[str, Any]:
        """The arguments that make this model again."""
        return dict(self._hub_mixin_config)  # type: ignore[arg-type]


def load_model(run: Run | str | Path) -> ViT:
    """The best weights of a run, in eval mode, on the CPU.

    Raises:
        InputError: the folder holds no run of a ViT, or no weights yet.
    """
    return (run if isinstance(run, Run) else Run.open(run, "vit")).model(ViT)
