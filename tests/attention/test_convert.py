"""Weights and masks from and to nn.MultiheadAttention; nn.MultiheadAttention itself is the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mha_apps.attention import (
    Causal,
    Dense,
    Mask,
    MultiHeadAttention,
    Padding,
    Rotary,
    from_torch,
    mask_from_torch,
    to_torch,
)

# Float32 through two implementations of the same sums.
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def random_host(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    host = nn.MultiheadAttention(12, 3, batch_first=True, **options).eval()
    for bias in (host.in_proj_bias, host.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias)
    return host


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5}, {"vdim": 7}, {"kdim": 5, "vdim": 7}])
def test_from_torch_computes_what_the_host_does(options):
    host = random_host(**options)
    attention = from_torch(host)
    query, key, value = torch.randn(2, 4, 12), torch.randn(2, 6, host.kdim), torch.randn(2, 6, host.vdim)
    expected = host(query, key, value, need_weights=False)[0]
    torch.testing.assert_close(attention(query, key, value=value), expected, **TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5, "vdim": 7}, {"dropout": 0.25}])
def test_to_torch_is_the_inverse_of_from_torch(options):
    host = random_host(**options)
    back = to_torch(from_torch(host))
    assert back.dropout == host.dropout
    assert back.training == host.training
    assert set(back.state_dict()) == set(host.state_dict())
    for name, tensor in host.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_from_torch_copies_so_that_training_one_leaves_the_other():
    host = random_host()
    attention = from_torch(host)
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in host.state_dict().items())


def test_conversion_keeps_mode_dtype_frozen_weights_and_the_random_state():
    host = random_host().double().train()
    host.in_proj_weight.requires_grad_(False)
    state = torch.get_rng_state()
    attention = from_torch(host)
    assert torch.equal(torch.get_rng_state(), state)
    assert attention.training
    assert attention.query.weight.dtype == torch.float64
    trained = {name for name, parameter in attention.named_parameters() if parameter.requires_grad}
    assert trained == {"query.bias", "key.bias", "value.bias", "output.weight", "output.bias"}


def test_a_bias_that_only_some_projections_have_is_zero_in_the_others():
    attention = MultiHeadAttention(12, 3).eval()
    attention.key.bias = None
    nn.init.normal_(attention.value.bias)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(to_torch(attention)(x, x, x)[0], attention(x), **TOLERANCE)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_names_what_it_cannot_convert(option):
    with pytest.raises(ValueError, match=option):
        from_torch(nn.MultiheadAttention(12, 3, **{option: True}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_heads": 1}, "kv_heads 1"),
        ({"head_dim": 8}, "head_dim 8"),
        ({"qk_norm": True}, "qk_norm"),
        ({"position": Rotary()}, "position"),
    ],
)
def test_to_torch_names_what_it_cannot_convert(options, named):
    with pytest.raises(ValueError, match=named):
        to_torch(MultiHeadAttention(12, 3, **options))


def test_no_mask_stays_none_and_each_kind_becomes_its_own():
    square = torch.ones(4, 4, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False, False, True, True]])
    assert mask_from_torch() is None
    assert isinstance(mask_from_torch(padding), Padding)
    assert isinstance(mask_from_torch(None, square), Dense)
    assert mask_from_torch(is_causal=True) == Causal()
    assert mask_from_torch(None, square, is_causal=True) == Causal()
    joined = mask_from_torch(padding, square, is_causal=True)
    expected = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    assert torch.equal(joined.materialize(4, 4)[0, 0], expected)


def test_a_learned_float_mask_stays_a_tensor_with_its_gradient():
    learned = torch.zeros(4, 4, requires_grad=True)
    assert mask_from_torch(None, learned) is learned


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ((torch.ones(2, 4, dtype=torch.long), None), "key_padding_mask must be boolean"),
        ((None, torch.ones(4, 4, dtype=torch.long)), "attn_mask must be boolean"),
        ((None, torch.ones(6, 4, 4, dtype=torch.bool)), "heads=None"),
        ((torch.ones(1, 2, 4, dtype=torch.bool), None), r"\(1, 2, 4\)"),
        ((None, torch.ones(4, dtype=torch.bool)), r"\(4,\)"),
    ],
)
def test_masks_of_another_kind_are_refused_with_the_remedy(masks, message):
    with pytest.raises(ValueError, match=message):
        mask_from_torch(*masks)


@st.composite
def torch_calls(draw):
    """(host's heads, inputs, masks): what can be passed to nn.MultiheadAttention, rows without any key included."""
    heads, batch = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 3))
    query_length, key_length = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def masking(shape: tuple[int, ...], kind: str) -> torch.Tensor | None:
        if kind == "none":
            return None
        forbidden = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.6]))
        if kind == "bool":
            return forbidden
        zeros = torch.zeros(shape).masked_fill(forbidden, float("-inf"))
        return zeros if kind == "-inf" else zeros + torch.randn(shape, generator=generator)

    kinds = st.sampled_from(["none", "bool", "-inf", "float"])
    axes = draw(st.sampled_from([2, 3]))
    padding = masking((batch, key_length), draw(kinds))
    first = () if axes == 2 else (batch * heads,)
    pairs = masking((*first, query_length, key_length), draw(kinds))
    x = torch.randn(batch, query_length, 6 * heads, generator=generator)
    context = torch.randn(batch, key_length, 6 * heads, generator=generator)
    return heads, x, context, padding, pairs


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@settings(max_examples=150, deadline=None)
@given(torch_calls())
def test_masks_mean_the_same_after_conversion(call):
    heads, x, context, padding, pairs = call
    torch.manual_seed(1)
    host = nn.MultiheadAttention(x.shape[-1], heads, batch_first=True)
    nn.init.normal_(host.out_proj.bias)
    expected = host(x, context, context, key_padding_mask=padding, attn_mask=pairs)[0]
    mask = mask_from_torch(padding, pairs, heads=heads)
    out = from_torch(host)(x, context, mask=mask)
    nothing = expected.isnan()  # rows that may attend to nothing
    torch.testing.assert_close(out[~nothing], expected[~nothing], **TOLERANCE)
    # For some heads only, the host is NaN as a whole; for all of them, ours is the projection of zero.
    assert out.isfinite().all()
    if heads == 1:
        bias = host.out_proj.bias.expand_as(out)
        torch.testing.assert_close(out[nothing], bias[nothing], **TOLERANCE)


@settings(max_examples=50, deadline=None)
@given(torch_calls())
def test_boolean_masks_stay_masks_so_that_kernels_see_their_structure(call):
    heads, _, _, padding, pairs = call
    is_boolean = [m is None or m.dtype == torch.bool or bool(((m == 0) | m.isinf()).all()) for m in (padding, pairs)]
    mask = mask_from_torch(padding, pairs, heads=heads)
    assert isinstance(mask, Mask | None) == all(is_boolean)
