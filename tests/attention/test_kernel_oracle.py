"""Every kernel gives the result and the gradients of a dense float64 oracle, under every mask and at every length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mha_apps.attention import (
    ALiBi,
    Causal,
    Dense,
    Dilated,
    Global,
    Mask,
    Padding,
    PerHead,
    RelativeBias,
    Rotary,
    Segments,
    Strided,
    Window,
    Window2d,
)
from mha_apps.attention import tiled as tiled_module
from mha_apps.attention.kernel import KERNELS, flex
from mha_apps.attention.mask import Grid, parse_mask
from mha_apps.attention.position import TensorBias

BATCH, HEADS = 2, 4
# Several tiles of each kind at the lengths drawn: whole runs, clipped ones, split keys, samples apart.
SMALL = {"ROWS": 8, "COLUMNS": 16, "STEP": 2000}
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def oracle(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """Attention by its definition, one exponential and one division, in float64."""
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    peak = scores.detach().where(allowed, torch.tensor(-1e300, dtype=torch.float64)).amax(-1, keepdim=True)
    weights = torch.where(allowed, scores - peak, -1e300).exp()
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True).clamp(min=1e-300), value)


@st.composite
def primitives(draw: st.DrawFn, query_length: int, key_length: int) -> Mask:
    small = st.integers(0, 20)
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) < draw(st.sampled_from([0.1, 0.5, 0.95]))

    kinds: dict[str, Callable[[], Mask]] = {
        "causal": Causal,
        "window": lambda: Window(draw(st.integers(-5, 40)), draw(st.integers(-5, 40))),
        "narrow": lambda: Window(draw(small), draw(st.sampled_from([0, 1, 3]))),
        "strided": lambda: Strided(draw(st.integers(1, 12))),
        "dilated": lambda: Dilated(draw(small), draw(st.integers(1, 6))),
        "global": lambda: Global(draw(st.lists(st.integers(0, max(key_length - 1, 0)), max_size=3))),
        "lengths": lambda: Padding(torch.randint(0, key_length + 1, (BATCH,), generator=generator)),
        "padding": lambda: Padding(random(BATCH, key_length)),
        "segments": lambda: Segments(
            torch.randint(0, 3, (BATCH, query_length), generator=generator),
            torch.randint(0, 3, (BATCH, key_length), generator=generator),
        ),
        "dense": lambda: Dense(random(query_length, key_length)),
        "dense4": lambda: Dense(
            random(draw(st.sampled_from([1, BATCH])), draw(st.sampled_from([1, HEADS])), query_length, key_length)
        ),
        "columns": lambda: Dense(random(BATCH, 1, 1, key_length)),
    }  # fmt: skip
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


@st.composite
def masks(draw: st.DrawFn, query_length: int, key_length: int) -> Mask:
    """Up to three primitives, joined in any way, and now and then different ones for groups of heads."""
    mask = draw(primitives(query_length, key_length))
    for _ in range(draw(st.integers(0, 2))):
        other = draw(primitives(query_length, key_length))
        operation = draw(st.sampled_from(["and", "or", "and not", "per head"]))
        if operation == "and":
            mask = mask & other
        elif operation == "or":
            mask = mask | other
        elif operation == "and not":
            mask = mask & ~other
        elif max(m.materialize(query_length, key_length).shape[1] for m in (mask, other)) == 1:
            mask = PerHead([mask, other])
    return mask


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, int, Mask | None]:
    query_length, key_length = draw(st.integers(1, 130)), draw(st.integers(1, 130))
    if draw(st.booleans()):
        key_length = query_length
    mask = None if draw(st.integers(0, 19)) == 0 else draw(masks(query_length, key_length))
    return query_length, key_length, mask


def inputs(query_length: int, key_length: int, dtype: torch.dtype, head_dim: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(query_length * 1000 + key_length)
    shapes = [(BATCH, HEADS, length, head_dim) for length in (query_length, key_length, key_length, query_length)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    error = (found.double() - expected).abs().max().item() if found.numel() else 0.0
    assert error <= tolerance * max(1.0, expected.abs().max().item()), error


def check(
    kernel: str, query_length: int, key_length: int, mask: Mask | None, dtype: torch.dtype, tolerance: float
) -> None:
    *tensors, grad = inputs(query_length, key_length, dtype)
    ours = [tensor.clone().requires_grad_() for tensor in tensors]
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    allowed = None if mask is None else mask.materialize(query_length, key_length, heads=HEADS)
    out, expected = KERNELS[kernel](*ours, mask, (), 0.0), oracle(*exact, allowed)
    assert_close(out, expected, tolerance)
    found = torch.autograd.grad(out, ours, grad)
    for one, other in zip(found, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        assert_close(one, other, tolerance)
    if allowed is not None:
        nothing = ~allowed.any(-1).expand(BATCH, HEADS, query_length)
        assert not out[nothing].any()
        assert not found[0][nothing].any()


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded", "strided"])
@quick
@given(problem=problems())
def test_a_kernel_equals_the_oracle_in_result_and_gradients(kernel: str, problem: tuple) -> None:
    check(kernel, *problem, torch.float32, 1e-5)


@quick
@given(problem=problems())
def test_tiles_of_every_cut_merge_to_the_same(problem: tuple) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in SMALL.items():
            patch.setitem(getattr(tiled_module, name), "cpu", size)
        check("banded", *problem, torch.float32, 1e-5)


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
@settings(quick, max_examples=20)
@given(problem=problems())
def test_a_kernel_equals_the_oracle_in_bfloat16(kernel: str, problem: tuple) -> None:
    check(kernel, *problem, torch.bfloat16, 2e-2)


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
def test_a_kernel_equals_the_oracle_in_image_windows(kernel: str, shift: int, prefix: int) -> None:
    mask = Window2d(7, 10, 4, 3, shift, prefix)
    check(kernel, mask.tokens, mask.tokens, mask, torch.float32, 1e-5)
    padded = mask & Padding(torch.tensor([mask.tokens, 30]))
    check(kernel, mask.tokens, mask.tokens, padded, torch.float32, 1e-5)


FLEX_MASKS = {
    "none": None,
    "causal": Causal(),
    "window, global and lengths": (Window(4, 4) | Global([0])) & Padding(torch.tensor([33, 20])),
    "padding": Padding(torch.arange(33).expand(2, 33) > 3) & ~Strided(3),
    "segments": Segments(torch.arange(21).expand(2, 21) // 8, torch.arange(33).expand(2, 33) // 9),
    "dense": Dense(torch.arange(21 * 33).view(21, 33) % 5 > 1),
    "dense per head": Dense(torch.arange(4 * 21 * 33).view(1, 4, 21, 33) % 5 > 1),
    "per head": PerHead([Window(3, 3), Dilated(3, 2)]),
}


@pytest.mark.parametrize("mask", FLEX_MASKS.values(), ids=FLEX_MASKS.keys())
def test_flex_equals_the_oracle_in_result(mask: Mask | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    *tensors, _ = inputs(21, 33, torch.float32, head_dim=16)
    allowed = None if mask is None else mask.materialize(21, 33, heads=HEADS)
    terms, _ = biases("relative", 21, 33)
    wide, _ = biases("wide", 21, 33)
    grid = Grid(torch.arange(21)[:, None], torch.arange(33)[None], 21, 33)
    dense = (terms[0].read(grid) + wide[0].read(grid)).detach()
    with torch.no_grad():
        out = flex(*tensors, mask, [*terms, *wide])
    assert_close(out, oracle(*(t.double() for t in tensors), allowed, dense.double()), 1e-5)


def biases(kind: str, query_length: int, key_length: int) -> tuple[list, list[Tensor]]:
    """Score biases, and the learned tensors among them."""
    if kind == "alibi":
        return [ALiBi(HEADS).score_bias(query_length, key_length)], []
    if kind == "relative":
        module = RelativeBias(HEADS, max_distance=5)
        torch.nn.init.normal_(module.table)
        return [module.score_bias(query_length, key_length)], [module.table]
    if kind in ("image", "near"):
        rows = -(-max(query_length, key_length) // 9)
        module = RelativeBias(HEADS, grid=(rows, 9), prefix=2, max_distance=None if kind == "image" else 3)
        torch.nn.init.normal_(module.table)
        return [module.score_bias(query_length, key_length)], [module.table]
    shape = {"tensor": (query_length, key_length), "wide": (BATCH, HEADS, query_length, key_length),
             "row": (BATCH, 1, 1, key_length)}[kind]  # fmt: skip
    tensor = torch.randn(shape, requires_grad=True)
    return [TensorBias(tensor)], [tensor]


@pytest.mark.parametrize("kind", ["alibi", "relative", "image", "near", "tensor", "wide", "row"])
@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
@settings(quick, max_examples=8)
@given(problem=problems(), small=st.booleans())
def test_a_bias_of_scores_is_added_and_learns(kernel: str, kind: str, problem: tuple, small: bool) -> None:
    query_length, key_length, mask = problem
    if kind in ("image", "near"):
        query_length = min(query_length, key_length)
        mask = Window(30, 12) if mask is not None else None
    terms, learned = biases(kind, query_length, key_length)
    *tensors, grad = inputs(query_length, key_length, torch.float32)
    ours = [tensor.clone().requires_grad_() for tensor in tensors]
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    index = torch.arange(query_length)[:, None], torch.arange(key_length)[None]
    dense = terms[0].read(Grid(*index, query_length, key_length)).double()
    allowed = None if mask is None else mask.materialize(query_length, key_length, heads=HEADS)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in SMALL.items() if small else ():
            patch.setitem(getattr(tiled_module, name), "cpu", size)
        out = KERNELS[kernel](*ours, mask, terms, 0.0)
        found = torch.autograd.grad(out, [*ours, *learned], grad)
    expected = oracle(*exact, allowed, dense)
    assert_close(out, expected, 1e-5)
    wanted = torch.autograd.grad(expected, [*exact, *learned], grad.double())
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        # A learned number that many scores share has a gradient of as many terms, whose rounding adds up at random.
        terms_each = BATCH * HEADS * query_length * key_length / one.numel() if number >= len(ours) else 1
        assert_close(one, other, 1e-5 * max(1, terms_each) ** 0.5)


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow_at_scores_of_ten_thousand(kernel: str, dtype: torch.dtype) -> None:
    # Before the scale of 1 / sqrt(head_dim) the products reach 80,000, beyond float16; after it, 10,000.
    query = torch.full((1, 1, 6, 64), 35.35, dtype=dtype).requires_grad_()
    key = torch.full((1, 1, 6, 64), 35.35, dtype=dtype)
    key[:, :, ::2] *= -1
    key.requires_grad_()
    value = torch.arange(6.0, dtype=dtype).view(1, 1, 6, 1).expand(1, 1, 6, 64).contiguous().requires_grad_()
    out = KERNELS[kernel](query, key, value, Window(5, 5), (), 0.0)
    torch.testing.assert_close(out.float(), torch.full_like(out, 3.0).float(), rtol=1e-2, atol=0)
    for grad in torch.autograd.grad(out.float().sum(), (query, key, value)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_least_number_of_float32_hides_and_a_row_of_it_is_not_one_that_sees_nothing(
    kernel: str, dtype: torch.dtype
) -> None:
    query, key, value = (x.to(dtype) for x in inputs(5, 7, torch.float32)[:3])
    query = query * 0  # so that a row of the least number is uniform, whether or not scores are absorbed by it
    added = torch.zeros(5, 7)
    added[:, 4:] = torch.finfo(torch.float32).min
    added[3] = torch.finfo(torch.float32).min
    added[2] = -torch.inf
    with torch.no_grad():
        mask, finite = parse_mask(added, (BATCH, HEADS, 5, 7))
        out = KERNELS[kernel](query, key, value, mask, [TensorBias(finite)], 0.0)
    expected = value[:, :, :4].double().mean(dim=2, keepdim=True).expand(-1, -1, 5, -1).clone()
    expected[:, :, 3], expected[:, :, 2] = value.double().mean(dim=2), 0.0
    assert_close(out, expected, 2e-2)


def test_nan_in_a_key_that_some_queries_see_makes_their_result_nan_and_reaches_no_gradient() -> None:
    *tensors, grad = inputs(8, 8, torch.float32)
    clean = [tensor.clone().requires_grad_() for tensor in tensors]
    broken = [tensor.clone() for tensor in tensors]
    broken[1][:, :, 5], broken[2][:, :, 6] = torch.nan, torch.inf
    for tensor in broken:
        tensor.requires_grad_()
    expected, out = KERNELS["explicit"](*clean, Causal(), (), 0.0), KERNELS["explicit"](*broken, Causal(), (), 0.0)
    assert out[:, :, 5:].isnan().all()
    torch.testing.assert_close(out[:, :, :5], expected[:, :, :5])
    wanted = torch.autograd.grad(expected[:, :, :5], clean, grad[:, :, :5])
    for one, other in zip(torch.autograd.grad(out, broken, grad), wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("mask", [None, Causal(), Dense(torch.ones(1, 1, dtype=torch.bool)), Padding([0])])
@pytest.mark.parametrize("sizes", [(2, 0, 0), (2, 0, 5), (2, 5, 0), (0, 5, 5)], ids=str)
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_nothing_in_gives_nothing_out(kernel: str, sizes: tuple[int, int, int], mask: Mask | None) -> None:
    batch, *lengths = sizes
    query, key, value = (
        torch.randn(batch, HEADS, n, 8, requires_grad=True) for n in (lengths[0], lengths[1], lengths[1])
    )
    with torch.set_grad_enabled(kernel != "flex"):
        out = KERNELS[kernel](query, key, value, mask, [ALiBi(HEADS).score_bias(*lengths)], 0.0)
    assert out.shape == query.shape
    assert not out.any()
    if kernel != "flex":
        assert not torch.autograd.grad(out.sum(), query)[0].any()


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
def test_dropout_drops_weights_and_keeps_their_mean(kernel: str) -> None:
    query, key, value, _ = inputs(70, 70, torch.float64)
    mask = Window(9, 9)
    exact = oracle(query, key, value, mask.materialize(70, 70))
    torch.manual_seed(0)
    draws = torch.stack([KERNELS[kernel](query, key, value, mask, (), 0.3) for _ in range(200)])
    assert (draws[0] - draws[1]).abs().max() > 0.05
    deviation = (draws.mean(0) - exact).abs() / (draws.std(0) / 200**0.5)
    assert deviation.max() < 6.0


def test_dropout_of_tiles_is_the_same_in_the_backward_pass() -> None:
    query, key, value, _ = (x.requires_grad_() for x in inputs(9, 9, torch.float64, head_dim=2))

    def run(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return KERNELS["banded"](*tensors, Window(2, 2) | Global([0]), (), 0.4)

    assert torch.autograd.gradcheck(run, (query, key, value), atol=1e-6)


def test_second_derivatives_of_tiles_are_refused_rather_than_wrong() -> None:
    query, key, value, _ = (x.requires_grad_() for x in inputs(9, 9, torch.float64))
    out = KERNELS["banded"](query, key, value, Causal(), (), 0.0)
    (grad,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (out.sum() + grad.square().sum()).backward()


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded", "strided"])
def test_rotary_scores_depend_on_distance_alone(kernel: str) -> None:
    query, key, value, _ = inputs(50, 50, torch.float64)
    rotary = Rotary()
    results = []
    for start in (0, 1000):
        position = torch.arange(start, start + 50)
        turned = rotary.rotate(query, position), rotary.rotate(key, position)
        results.append(KERNELS[kernel](*turned, value, Causal(), (), 0.0))
    torch.testing.assert_close(*results, rtol=0, atol=2e-4)  # angles are float32
