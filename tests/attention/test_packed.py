"""Query, key and value that read one tensor are one matrix product, and nobody can tell but by the clock."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.overrides import TorchFunctionMode

from mha_apps.attention import MultiHeadAttention, Padding, multihead


class Products(TorchFunctionMode):
    """Counts the calls of ``F.linear``."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is F.linear
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def packed_from_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multihead, "PACKED_FROM", 0)


def products(attention: nn.Module, *inputs: Tensor, **named) -> int:
    with Products() as mode:
        attention(*inputs, **named)
    return mode.count


def results(attention: nn.Module, leaves: list[Tensor], out: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out, *torch.autograd.grad(out, [*leaves, *attention.parameters()], weights)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["self", "the same context", "cross", "own values"])
def test_outputs_and_gradients_are_those_of_separate_projections(kind: str, kv_heads: int, bias: bool) -> None:
    attention = MultiHeadAttention(32, 4, kv_heads=kv_heads, bias=bias, qk_norm=True).double()
    x, y = (torch.randn(2, length, 32, dtype=torch.float64, requires_grad=True) for length in (6, 6))
    leaves, inputs, apart, expected = {
        "self": ([x], (x,), (x, x.clone(), x.clone()), 2),
        "the same context": ([x], (x, x, x), (x, x.clone(), x.clone()), 2),
        "cross": ([x, y], (x, y), (x, y, y.clone()), 3),
        "own values": ([x, y], (x, x, y), (x, x.clone(), y), 3),
    }[kind]

    def run(x: Tensor, context: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        return attention(x, context, value=value)

    together, separate = results(attention, leaves, run(*inputs)), results(attention, leaves, run(*apart))
    for one, other in zip(together, separate, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    with Products() as mode:
        run(*inputs)
    assert mode.count == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "autocast"])
def test_half_precision_packs_and_agrees_with_float32(dtype: torch.dtype | str) -> None:
    attention = MultiHeadAttention(32, 4)
    x = torch.randn(2, 6, 32)
    expected = attention(x)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
        if isinstance(dtype, torch.dtype):
            attention, x = attention.to(dtype), x.to(dtype)
        assert products(attention, x) == 2
        out = attention(x)
    assert out.dtype == (torch.bfloat16 if dtype == "autocast" else dtype)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)


def test_key_padding_leaves_one_tensor_for_all_three() -> None:
    attention, mask = MultiHeadAttention(32, 4), Padding(torch.tensor([3, 6]))
    assert products(attention, torch.randn(2, 6, 32), mask=mask) == 2


def test_few_rows_are_not_worth_joining_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multihead, "PACKED_FROM", 0.5)
    assert products(MultiHeadAttention(32, 4), torch.randn(2, 6, 32)) == 4


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
     "register_full_backward_pre_hook"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_hooks_on_a_projection_fire(name: str, register: str) -> None:
    attention, called = MultiHeadAttention(32, 4), []
    getattr(getattr(attention, name), register)(lambda module, *_: called.append(module))
    attention(torch.randn(2, 6, 32, requires_grad=True)).sum().backward()
    assert called == [getattr(attention, name)]


def test_hooks_on_all_modules_fire_for_each_projection() -> None:
    attention, called = MultiHeadAttention(32, 4), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
    try:
        attention(torch.randn(2, 6, 32))
    finally:
        handle.remove()
    assert {attention.query, attention.key, attention.value} <= set(called)


class Adapter(nn.Linear):
    """A linear layer of another kind."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


def test_an_adapter_in_place_of_a_projection_is_called() -> None:
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 6, 32)
    before = attention(x)
    adapter = Adapter(32, 32)
    adapter.load_state_dict(attention.value.state_dict())
    attention.value = adapter
    torch.testing.assert_close(attention(x), before + attention.output.weight.sum(dim=1))


def test_a_forward_replaced_on_the_instance_is_called() -> None:
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 6, 32)
    attention.value.forward = lambda x: torch.zeros(*x.shape[:-1], 32)  # type: ignore[method-assign]
    torch.testing.assert_close(attention(x), attention.output.bias.expand(2, 6, 32))


def test_a_parametrized_projection_is_called() -> None:
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 6, 32)
    before = attention(x)
    parametrizations.weight_norm(attention.key)
    assert products(attention, x) == 4
    torch.testing.assert_close(attention(x), before)


def test_a_projection_without_bias_beside_others_with_one() -> None:
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 6, 32)
    before = attention(x)
    attention.key.bias = None  # it was zero
    torch.testing.assert_close(attention(x), before)


def test_a_frozen_projection_gets_no_gradient() -> None:
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 6, 32)
    attention.key.requires_grad_(False)
    attention(x).square().sum().backward()
    assert attention.key.weight.grad is None
    assert attention.query.weight.grad is not None
    assert attention.value.weight.grad is not None


def test_the_packed_product_compiles_whole_at_any_length() -> None:
    attention = MultiHeadAttention(32, 4, kv_heads=2)
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="eager")
    for batch, length in ((2, 6), (3, 9), (1, 4)):
        x = torch.randn(batch, length, 32)
        torch.testing.assert_close(compiled(x), attention(x))


def test_the_state_dict_has_the_three_projections() -> None:
    names = {f"{name}.{kind}" for name in ("query", "key", "value", "output") for kind in ("weight", "bias")}
    assert set(MultiHeadAttention(32, 4).state_dict()) == names
