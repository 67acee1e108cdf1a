"""Modules, masks, kernels and caches drawn at random, against one dense computation in float64."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mha_apps.attention import (
    ALiBi,
    Cache,
    Causal,
    Dense,
    Dilated,
    Global,
    Mask,
    MultiHeadAttention,
    Padding,
    PerHead,
    RelativeBias,
    Rotary,
    Segments,
    Strided,
    Window,
    record_attention,
)
from mha_apps.attention import tiled as tiled_module

BATCH, HEADS, HEAD_DIM, DIM = 2, 4, 4, 12
REACH = 3  # of the relative bias
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
SMALL_TILES = {"ROWS": 4, "COLUMNS": 8, "STEP": 500}


# --- the reference ---


def turned(x: Tensor, position: Tensor) -> Tensor:
    """Rotary, as a product of complex numbers."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = (position.float()[:, None] * frequency).double()  # angles are float32
    out = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([out.real, out.imag], dim=-1)


def reference(
    attention: MultiHeadAttention, x: Tensor, context: Tensor, allowed: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(output, weights) of a float64 module by the definitions, dense."""
    lengths = x.shape[1], context.shape[1]

    def split(y: Tensor, heads: int) -> Tensor:
        return y.unflatten(-1, (heads, HEAD_DIM)).transpose(1, 2).repeat_interleave(HEADS // heads, dim=1)

    query = split(attention.query(x), HEADS)
    key, value = (split(layer(context), attention.kv_heads) for layer in (attention.key, attention.value))
    if not isinstance(attention.query_norm, torch.nn.Identity):
        query, key = (
            y / (y.square().mean(-1, keepdim=True) + torch.finfo(torch.float64).eps).sqrt() * norm.weight
            for y, norm in ((query, attention.query_norm), (key, attention.key_norm))
        )
    stand, keys = torch.arange(lengths[0]) + lengths[1] - lengths[0], torch.arange(lengths[1])
    distance = keys - stand[:, None]
    if isinstance(attention.position, Rotary):
        query, key = turned(query, stand), turned(key, keys)
    scores = query @ key.transpose(-1, -2) / HEAD_DIM**0.5
    if isinstance(attention.position, RelativeBias):
        scores = scores + attention.position.table[:, distance.clamp(-REACH, REACH) + REACH]
    if isinstance(attention.position, ALiBi):
        scores = scores - torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(HEADS)])[:, None, None] * distance.abs()
    scores = scores if added is None else scores + added
    scores = scores.masked_fill(~allowed, -torch.inf)
    peak = scores.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    weights = (scores - peak).exp()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return attention.output((weights @ value).transpose(1, 2).flatten(2)), weights


# --- what is drawn ---


@dataclass
class Case:
    """A module and a call of it."""

    attention: MultiHeadAttention
    dtype: torch.dtype
    mask: Mask | Tensor | None
    key_mask: Mask | None
    chunks: list[int]  # of the queries with a cache; empty without one
    lengths: tuple[int, int]
    cross: bool

    def mask_of(self, start: int, stop: int) -> Mask | Tensor | None:
        """The mask of the queries from start to stop of a cached call, which sees keys up to stop."""
        cut = self.mask if isinstance(self.mask, Mask | None) else None
        parts = [cropped(mask, start, stop) for mask in (cut, self.key_mask) if mask is not None]
        return parts[0] if len(parts) == 1 else parts[0] & parts[1]

    def __str__(self) -> str:
        return f"{self.attention!r} {self.dtype} {self.mask!r} {self.key_mask!r} {self.chunks} {self.lengths}"


def cropped(mask: Mask, start: int, stop: int) -> Mask:
    """A mask over all positions as the one of a call in the middle, by cutting its tensors."""
    if isinstance(mask, Dense):
        rows = mask.mask if mask.mask.shape[-2] == 1 else mask.mask[..., start:stop, :]
        return Dense(rows[..., :stop] if rows.shape[-1] > 1 else rows)
    if isinstance(mask, Segments):
        return Segments(mask.query_ids[:, start:stop], mask.key_ids[:, :stop])
    if isinstance(mask, Padding) and mask.real_keys.dim() == 2:
        return Padding(mask.real_keys[:, :stop])
    if isinstance(mask, PerHead):
        return PerHead([cropped(part, start, stop) for part in mask.masks])
    if hasattr(mask, "first"):
        return type(mask)(cropped(mask.first, start, stop), cropped(mask.second, start, stop))
    if hasattr(mask, "mask"):
        return ~cropped(mask.mask, start, stop)
    return mask


class Drawer:
    """Draws with one seed."""

    def __init__(self, seed: int, kernel: str) -> None:
        self.draw, self.kernel = random.Random(seed), kernel
        torch.manual_seed(seed)

    def some(self, *shape: int) -> Tensor:
        return torch.rand(shape) < self.draw.choice([0.2, 0.5, 0.9])

    def primitive(self, lengths: tuple[int, int], cached: bool, heads: bool) -> Mask:
        draw, (rows, columns) = self.draw.choice, lengths
        kinds = ["causal", "window", "strided", "dilated", "global", "dense", "segments"]
        kinds += ["dense per head"] * heads + ["padding", "lengths", "row", "row per head"] * (not cached)
        match draw(kinds):
            case "causal":
                return Causal()
            case "window":
                return Window(draw([0, 1, 2, 5, 9]), draw([-2, -1, 0, 0, 1, 4]))
            case "strided":
                return Strided(draw([1, 2, 3, 5]))
            case "dilated":
                return Dilated(draw([0, 1, 3]), draw([1, 2, 3]))
            case "global":
                return Global(self.draw.sample(range(columns), k=min(columns, draw([0, 1, 2]))))
            case "dense":
                return Dense(self.some(*draw([(rows, columns), (BATCH, 1, rows, columns)])))
            case "dense per head":
                return Dense(self.some(draw([1, BATCH]), HEADS, rows, columns))
            case "segments":
                return Segments(torch.randint(0, 3, (BATCH, rows)), torch.randint(0, 3, (BATCH, columns)))
            case "padding":
                return Padding(self.some(BATCH, columns))
            case "lengths":
                return Padding(torch.randint(0, columns + 1, (BATCH,)))
            case "row":
                return Dense(self.some(*draw([(1, columns), (BATCH, 1, 1, columns)])))
        return Dense(self.some(BATCH, HEADS, 1, columns)) if heads else Dense(self.some(1, columns))

    def structure(self, lengths: tuple[int, int], cached: bool, heads: bool = True) -> Mask:
        """Up to three primitives, joined in any way."""
        mask = self.primitive(lengths, cached, heads)
        for _ in range(self.draw.choice([0, 0, 1, 1, 2])):
            other = self.primitive(lengths, cached, heads)
            mask = self.draw.choice([mask & other, mask | other, mask & ~other, ~mask | other])
        if heads and self.draw.random() < 0.25:
            groups = self.draw.choice([1, 2, 4])
            apart = PerHead([self.structure(lengths, cached, heads=False) for _ in range(groups)])
            mask = self.draw.choice([apart, mask & apart, mask | apart])
        return mask

    def case(self) -> Case:
        draw = self.draw.choice
        position = draw([None, None, Rotary(), RelativeBias(HEADS, max_distance=REACH), ALiBi(HEADS)])
        attention = MultiHeadAttention(
            DIM, HEADS, kv_heads=draw([1, 2, 4]), head_dim=HEAD_DIM, qk_norm=draw([False, False, True]),
            bias=draw([True, True, False]), position=position, kernel=self.kernel,
        )  # fmt: skip
        dtype = draw([torch.float64, torch.float32, torch.float32, torch.float16, torch.bfloat16])
        for parameter in attention.parameters():
            if parameter.dim() == 1 or parameter.shape[0] == HEADS:
                torch.nn.init.normal_(parameter)
        attention = attention.to(dtype)
        cached = self.draw.random() < 0.4
        cross = not cached and self.draw.random() < 0.3
        rows = self.draw.randint(1, 24)
        lengths = (rows, self.draw.randint(1, 24) if cross else rows)
        if cached:
            mask = self.structure(lengths, True) & draw([Causal(), Causal(), Window(4, 0), Window(3, -1)])
            chunks = [1] * rows
            if self.draw.random() < 0.7:
                chunks = []
                while sum(chunks) < rows:
                    chunks.append(min(self.draw.randint(0, 6), rows - sum(chunks)))
        else:
            chunks = []
            mask = draw([self.structure(lengths, False)] * 4 + [None, self.float_mask(lengths, dtype)])
        left = torch.arange(lengths[1]) >= torch.randint(0, lengths[1] + 1, (BATCH, 1))
        holes = self.some(BATCH, lengths[1])
        counts = torch.randint(0, lengths[1] + 1, (BATCH,))
        key_mask = draw([None, None, Padding(left), Padding(counts), Padding(holes), Dense(holes[:, None, None])])
        key_mask = None if isinstance(mask, Tensor) else key_mask
        return Case(attention, dtype, mask, key_mask, chunks, lengths, cross)

    def float_mask(self, lengths: tuple[int, int], dtype: torch.dtype) -> Tensor:
        shapes = [lengths, (1, lengths[1]), (lengths[0], 1), (BATCH, 1, 1, lengths[1]), (BATCH, HEADS, *lengths)]
        shape = self.draw.choice(shapes)
        mask = torch.randn(shape) * self.draw.choice([0.0, 1.0, 1.0])
        mask = mask.masked_fill(torch.rand(shape) < 0.3, self.draw.choice([-torch.inf, 0.0]))
        mask = mask.masked_fill(torch.rand(shape[-1]) < 0.2, self.draw.choice([-torch.inf, 0.5]))
        return mask.to(self.draw.choice([torch.float32, dtype])).requires_grad_(self.draw.random() < 0.5)


# --- the test ---


def run(case: Case, x: Tensor, context: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """(output, maps with a column for each position), in one call or in chunks with a cache."""
    if not case.chunks:
        mask = case.mask if case.key_mask is None else case.key_mask if case.mask is None else case.mask & case.key_mask
        with record_attention(case.attention) as maps:
            out = case.attention(x, context, mask=mask)
        return out, [maps[0]]
    cache, outs, weights, start = Cache(), [], [], 0
    for part in x.split(case.chunks, dim=1):
        stop = start + part.shape[1]
        with record_attention(case.attention) as maps:
            outs.append(case.attention(part, mask=case.mask_of(start, stop), cache=cache))
        assert maps.positions[""].tolist() == list(range(start, stop))
        whole = torch.zeros(*maps[0].shape[:3], x.shape[1])
        whole[..., maps.key_positions[""]] = maps[0]
        weights.append(whole)
        start = stop
    return torch.cat(outs, dim=1), weights


def check(case: Case) -> None:
    attention, dtype, lengths = case.attention, case.dtype, case.lengths
    exact = copy.deepcopy(attention).double()
    added = case.mask if isinstance(case.mask, Tensor) else None
    allowed = torch.ones(BATCH, HEADS, *lengths, dtype=torch.bool)
    for mask in (case.mask, case.key_mask):
        if isinstance(mask, Mask):
            allowed = allowed & mask.materialize(*lengths, heads=HEADS)
    if added is not None:
        allowed = allowed & (added > -torch.inf)
    unseen = ~allowed.any(dim=(1, 2))
    if case.chunks:  # what padding hides
        keys = None if case.key_mask is None else case.key_mask.materialize(*lengths)
        unseen = torch.zeros_like(unseen) if keys is None else ~keys[:, 0, 0]
    # A row of a tensor is padding to many queries of a call, but not to a single one.
    filling = 0.0 if case.chunks and isinstance(case.key_mask, Dense) else float("nan")

    def tokens(length: int, hidden: bool) -> tuple[Tensor, Tensor]:
        clean = torch.randn(BATCH, length, DIM).to(dtype)
        clean = clean.masked_fill(unseen.unsqueeze(-1), 0.0) if hidden else clean
        planted = clean.masked_fill(unseen.unsqueeze(-1), filling) if hidden else clean.clone()
        return planted.requires_grad_(), clean.double().requires_grad_()

    x, x_exact = tokens(lengths[0], not case.cross)
    context, context_exact = tokens(lengths[1], True) if case.cross else (x, x_exact)
    added_exact = None if added is None else added.detach().double().requires_grad_(added.requires_grad)
    out, maps = run(case, x, context if case.cross else None)
    expected, weights = reference(exact, x_exact, context_exact, allowed, added_exact)
    close(out, expected, dtype, "output")
    close(torch.cat(maps, dim=2), weights, dtype, "weights")
    assert not out[~allowed.any(-1).any(1).unsqueeze(-1).expand_as(out)].isnan().any()

    grad = torch.randn_like(out)
    learned = ["x", *(["context"] if case.cross else []), *dict(attention.named_parameters())]
    leaves = [x, *([context] if case.cross else []), *attention.parameters()]
    exact_leaves = [x_exact, *([context_exact] if case.cross else []), *exact.parameters()]
    if added is not None and added.requires_grad:
        learned, leaves, exact_leaves = [*learned, "mask"], [*leaves, added], [*exact_leaves, added_exact]
    found = torch.autograd.grad(out, leaves, grad, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(expected, exact_leaves, grad.double(), allow_unused=True, materialize_grads=True)
    largest = max(float(gradient.abs().max()) for gradient in wanted)  # those of keys cancel to small ones
    for name, one, other in zip(learned, found, wanted, strict=True):
        if name in ("x", "context") and other.shape[1] == len(unseen[0]) and not (case.cross and name == "x"):
            # What nothing looks at was taken for zero, whatever it was.
            one, other = (grad.masked_fill(unseen.unsqueeze(-1), 0.0) for grad in (one, other))
        close(one, other, dtype, f"gradient of {name}", largest)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype, what: str, scale: float = 1.0) -> None:
    assert found.isfinite().all(), f"{what} is not finite"
    error = float((found.detach().double() - expected.detach()).abs().max())
    scale = max(1.0, scale, float(expected.detach().abs().max()))
    assert error <= TOLERANCE[dtype] * scale, f"{what} is off by {error:.3g} at a scale of {scale:.3g}"


@pytest.mark.filterwarnings("ignore:a float mask is added")
@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded", "auto"])
def test_whatever_is_drawn_gives_what_the_dense_computation_gives(
    kernel: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "banded" and block:
        for name, size in SMALL_TILES.items():
            monkeypatch.setitem(getattr(tiled_module, name), "cpu", size)
    for seed in range(40 * block, 40 * (block + 1)):
        case = Drawer(seed, kernel).case()
        try:
            check(case)
        except Exception as error:
            raise AssertionError(f"seed {seed} of {kernel}: {case}: {error}") from error
