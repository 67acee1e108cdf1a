"""The attention module: what padding cannot do, what a cache gives, and what does not change between modes."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mha_apps.attention import (
    ALiBi,
    Cache,
    Causal,
    Decoder,
    Dense,
    Encoder,
    FeedForward,
    Global,
    Mask,
    MultiHeadAttention,
    Padding,
    PerHead,
    RelativeBias,
    Rotary,
    Segments,
    Strided,
    TransformerBlock,
    Window,
)

KERNELS = ["explicit", "sdpa", "banded", "strided", "auto"]


def twin(attention: MultiHeadAttention, x: Tensor, context: Tensor, allowed: Tensor | None) -> Tensor:
    """The module by loops over heads, with its parameters, in float64."""
    outs = []
    size, per = attention.head_dim, attention.heads // attention.kv_heads
    query, key, value = attention.query(x), attention.key(context), attention.value(context)
    for head in range(attention.heads):
        q = query[..., head * size : (head + 1) * size]
        group = head // per
        k, v = (y[..., group * size : (group + 1) * size] for y in (key, value))
        scores = q @ k.transpose(1, 2) / size**0.5
        if allowed is not None:
            mine = allowed.expand(x.shape[0], attention.heads, *scores.shape[1:])[:, head]
            scores = scores.masked_fill(~mine, -1e300)
            weights = scores.softmax(-1) * mine
        else:
            weights = scores.softmax(-1)
        outs.append(weights @ v)
    return attention.output(torch.cat(outs, -1))


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (6, 3)]),
    cross=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_module_equals_loops_over_heads(
    kernel: str, lengths: tuple[int, int], heads: tuple[int, int], cross: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    attention = MultiHeadAttention(12, heads[0], kv_heads=heads[1], head_dim=5, kernel=kernel).double()
    x = torch.randn(2, lengths[0], 12, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, lengths[1], 12, dtype=torch.float64, requires_grad=True) if cross else x
    mask = Dense(torch.rand(2, heads[0], x.shape[1], context.shape[1]) < 0.6)
    out = attention(x, context if cross else None, mask=mask)
    expected = twin(attention, x, context, mask.mask)
    torch.testing.assert_close(out, expected)
    grad, variables = torch.randn_like(out), [x, *attention.parameters(), *([context] if cross else [])]
    for one, other in zip(
        torch.autograd.grad(out, variables, grad),
        torch.autograd.grad(expected, variables, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


MASKS = {
    "lengths": Padding(torch.tensor([12, 7])),
    "left": Padding(torch.arange(12).expand(2, 12) >= torch.tensor([[0], [5]])),
    "causal and left": Causal() & Padding(torch.arange(12).expand(2, 12) >= torch.tensor([[0], [5]])),
    "window and lengths": (Window(2, 2) | Global([0])) & Padding(torch.tensor([12, 7])),
    "per head": PerHead([Window(2, 2), Strided(3)]) & Padding(torch.tensor([12, 7])),
    "dense": Dense(torch.ones(2, 1, 12, 12, dtype=torch.bool) & Padding(torch.tensor([12, 7])).materialize(12, 12)),
    "row": Dense(Padding(torch.tensor([12, 7])).materialize(1, 12)),
    "segments": Segments(torch.ones(2, 12), torch.arange(12).expand(2, 12) < torch.tensor([[12], [7]])),
}


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("kernel", KERNELS)
def test_nan_that_no_query_may_see_reaches_nothing(kernel: str, mask: Mask, poison: float) -> None:
    attention = MultiHeadAttention(16, 4, kv_heads=2, kernel=kernel)
    unseen = ~mask.materialize(12, 12).any(1).any(1).expand(2, 12)
    assert unseen.any()
    clean = torch.randn(2, 12, 16)
    results = []
    for filling in (0.0, poison):
        x = clean.masked_fill(unseen.unsqueeze(-1), filling).requires_grad_()
        out = attention(x, mask=mask)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *attention.parameters()])])
    if not mask.key_only(12):  # a finite token that nothing sees is still a query, and has a gradient as one
        results = [[r[0], r[1].masked_fill(unseen.unsqueeze(-1), 0.0), *r[2:]] for r in results]
    for one, other in zip(*results, strict=True):
        assert other.isfinite().all()
        torch.testing.assert_close(one, other)


def test_nan_in_a_context_that_no_query_may_see_reaches_nothing() -> None:
    attention = MultiHeadAttention(16, 4, context_dim=8, value_dim=6)
    x = torch.randn(2, 5, 16, requires_grad=True)
    context, value = torch.randn(2, 9, 8), torch.randn(2, 9, 6)
    context[1, 4:] = value[1, 4:] = float("nan")
    context.requires_grad_(), value.requires_grad_()
    out = attention(x, context, value=value, mask=Padding(torch.tensor([9, 4])))
    grads = torch.autograd.grad(out.sum(), [x, context, value, *attention.parameters()])
    assert out.isfinite().all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("kernel", KERNELS)
def test_minus_infinity_in_a_float_mask_hides_nan_as_a_boolean_mask_does(kernel: str, rows: int) -> None:
    attention, x = MultiHeadAttention(16, 4, kernel=kernel), torch.randn(2, 9, 16)
    x[:, 6:] = float("nan")
    x.requires_grad_()
    mask = torch.zeros(rows, 9)
    mask[:, 6:] = -torch.inf
    for run in (attention, Encoder(16, 4, 1, kernel=kernel)):
        out, expected = run(x, mask=mask), run(x, mask=mask == 0)
        torch.testing.assert_close(out, expected)
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), [x, *run.parameters()]))


def test_nan_of_heads_that_look_elsewhere_is_hidden_where_no_head_sees_it() -> None:
    # Each mask alone lets some head see key 5; both together let none.
    evens = torch.tensor([True, False, True, False]).view(1, 4, 1, 1)
    hide = torch.arange(8).view(1, 1, 1, 8) != 5
    mask = Dense(evens | hide) & Dense(~evens | hide)
    attention, x = MultiHeadAttention(16, 4, kernel="sdpa"), torch.randn(1, 8, 16)
    x[:, 5] = float("nan")
    x.requires_grad_()
    out = attention(x, mask=mask)
    assert out.isfinite().all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), [x, *attention.parameters()]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_fewer_groups_than_heads_beside_a_tensor_for_each_head(kernel: str) -> None:
    attention, x = MultiHeadAttention(16, 4, kernel=kernel).double(), torch.randn(2, 9, 16, dtype=torch.float64)
    each = Dense(torch.rand(2, 4, 9, 9) < 0.7)
    mask = PerHead([Window(2, 2), Strided(3)]) & each
    allowed = torch.cat([Window(2, 2).materialize(9, 9)] * 2 + [Strided(3).materialize(9, 9)] * 2, 1) & each.mask
    torch.testing.assert_close(attention(x, mask=mask), twin(attention, x, x, allowed))
    torch.testing.assert_close(mask.materialize(9, 9), allowed)
    assert str(mask).count("head group") == 4
    Encoder(16, 4, 1, kernel=kernel)(x.float(), mask)


def test_explicit_keeps_nan_from_queries_that_may_not_see_it() -> None:
    attention = MultiHeadAttention(16, 4, kernel="explicit")
    context = torch.randn(1, 8, 16)
    context[:, 5] = float("nan")
    x = torch.randn(1, 8, 16, requires_grad=True)
    out = attention(x, context, mask=Causal())
    assert out[:, :5].isfinite().all()
    assert out[:, 5:].isnan().all()
    grads = torch.autograd.grad(out[:, :5].sum(), [x, attention.query.weight])
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_sees_nothing_gets_the_bias_of_the_output_projection(kernel: str) -> None:
    attention = MultiHeadAttention(16, 4, kernel=kernel)
    nn.init.normal_(attention.output.bias)
    x = torch.randn(2, 6, 16, requires_grad=True)
    out = attention(x, mask=Padding(torch.tensor([6, 0])))
    torch.testing.assert_close(out[1], attention.output.bias.expand(6, 16), rtol=0, atol=0)
    assert not torch.autograd.grad(out[1].sum(), x)[0].any()


POSITIONS = {
    "none": lambda: None,
    "rotary": Rotary,
    "alibi": lambda: ALiBi(4),
    "relative": lambda: RelativeBias(4, max_distance=4),
}
CACHED = {
    "causal": Causal(),
    "window": Window(4, 0),
    "window and global": (Window(4, 0) | Global([1])) & Causal(),
    "strided": Strided(3) & Causal(),
    "per head": PerHead([Window(3, 0), Window(6, 0) | (Strided(4) & Causal())]),
    "before itself": Window(2, -1),
    "all but itself": Causal() & ~Window(0, 0),
    "two groups and four heads": PerHead([Causal(), Window(3, -1)])
    & Dense(torch.rand(1, 4, 1, 1, generator=torch.Generator().manual_seed(0)) < 0.9),
}


class TestCache:
    @pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS.keys())
    @pytest.mark.parametrize("mask", CACHED.values(), ids=CACHED.keys())
    @pytest.mark.parametrize("steps", [[1] * 15, [8, 1, 1, 1, 1, 1, 1, 1], [5, 4, 6]])
    def test_cached_output_and_gradients_equal_uncached(self, mask: Mask, position, steps: list[int]) -> None:
        torch.manual_seed(0)
        attention = MultiHeadAttention(16, 4, kv_heads=2, position=position()).double()
        x = torch.randn(2, 15, 16, dtype=torch.float64, requires_grad=True)
        cache = Cache()
        parts = [attention(part, mask=mask, cache=cache) for part in x.split(steps, dim=1)]
        variables = [x, *attention.parameters()]
        expected = attention(x, mask=mask)
        torch.testing.assert_close(torch.cat(parts, 1), expected)
        grads = torch.autograd.grad(torch.cat(parts, 1).square().sum(), variables)
        for one, other in zip(grads, torch.autograd.grad(expected.square().sum(), variables), strict=True):
            torch.testing.assert_close(one, other)

    def test_keys_beyond_the_window_are_dropped_and_global_ones_kept(self) -> None:
        attention, cache = MultiHeadAttention(16, 4), Cache()
        for _ in range(30):
            attention(torch.randn(1, 1, 16), mask=(Window(4, 0) | Global([2])) & Causal(), cache=cache)
        assert cache.length == 30
        assert cache.kept(attention) == 4 + 1

    def test_a_mask_that_looks_ahead_is_refused(self) -> None:
        for mask in (None, Window(2, 2), Padding(torch.tensor([3])), Causal() | Strided(2)):
            with pytest.raises(ValueError, match="causal mask"):
                MultiHeadAttention(16, 4)(torch.randn(1, 3, 16), mask=mask, cache=Cache())

    def test_left_padded_prompts_decode_as_if_alone(self) -> None:
        decoder = Encoder(16, 4, 2, position=Rotary).eval()
        prompts = [torch.randn(1, 6, 16), torch.randn(1, 3, 16)]
        nexts = torch.randn(2, 2, 16)
        alone = [
            decoder(torch.cat([prompt, nexts[i : i + 1]], 1), Causal())[:, -2:] for i, prompt in enumerate(prompts)
        ]
        padded = torch.cat([prompts[0], torch.cat([torch.full((1, 3, 16), float("nan")), prompts[1]], 1)])
        real = torch.tensor([[True] * 6, [False] * 3 + [True] * 3])
        cache = Cache()
        decoder(padded, Causal() & Padding(real), cache=cache)
        for step in range(2):
            real = torch.cat([real, torch.ones(2, 1, dtype=torch.bool)], 1)
            out = decoder(nexts[:, step : step + 1], Causal() & Padding(real), cache=cache)
            torch.testing.assert_close(out, torch.cat([a[:, step : step + 1] for a in alone]))

    @pytest.mark.parametrize("build", [Encoder, Decoder])
    def test_a_stack_caches_tokens_that_only_later_ones_look_at(self, build: type[nn.Module]) -> None:
        stack, x = build(16, 4, 2).eval(), torch.randn(2, 7, 16)
        context = (torch.randn(2, 3, 16),) if build is Decoder else ()
        cache, mask = Cache(), Window(2, -1)
        parts = [stack(part, *context, mask=mask, cache=cache) for part in x.split([2, 1, 1, 3], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), stack(x, *context, mask=mask))

    def test_stacks_that_share_a_cache_go_at_their_own_pace(self) -> None:
        first, second, cache = Encoder(16, 4, 1).eval(), Encoder(16, 4, 1).eval(), Cache()
        real = torch.tensor([[False, True, True, True, True]])
        mask, x = Causal() & Padding(real), torch.randn(1, 5, 16)
        second(x[:, :2], Causal() & Padding(real[:, :2]), cache=cache)
        torch.testing.assert_close(first(x, mask, cache=cache), first(x, mask))

    @pytest.mark.parametrize("steps", [[9], [1] * 9, [4, 1, 1, 3]])
    def test_rows_of_a_tensor_are_those_of_the_queries_of_a_call(self, steps: list[int]) -> None:
        # A single row could be taken for padding, and the token that does not see itself for hidden.
        attention, x = MultiHeadAttention(16, 4), torch.randn(2, 9, 16)
        whole = torch.rand(2, 1, 9, 9) < 0.5
        cache, start, parts = Cache(), 0, []
        for step in steps:
            stop = start + step
            rows = Causal() & Dense(whole[:, :, start:stop, :stop])
            parts.append(attention(x[:, start:stop], mask=rows, cache=cache))
            start = stop
        torch.testing.assert_close(torch.cat(parts, 1), attention(x, mask=Causal() & Dense(whole)))

    @pytest.mark.parametrize("kernel", KERNELS)
    @pytest.mark.parametrize("kind", ["padding", "not hidden", "row", "either", "per head"])
    def test_nan_in_padding_reaches_no_later_query(self, kind: str, kernel: str) -> None:
        attention = MultiHeadAttention(16, 4, kernel=kernel)
        x, real = torch.randn(2, 8, 16), torch.arange(8) >= torch.tensor([[0], [3]])
        x[1, :3] = float("nan")
        x.requires_grad_()

        def mask(stop: int) -> Mask:
            known = Padding(real[:, :stop])
            return (
                Causal()
                & {
                    "padding": known,
                    "not hidden": ~Padding(~real[:, :stop]),
                    "row": Dense(real[:, None, None, :stop]) if stop == 6 else known,
                    "either": (Strided(2) & known) | (Window(2, 0) & known),
                    "per head": PerHead([Strided(2) & known, known]),
                }[kind]
            )

        cache = Cache()
        outs = [attention(part, mask=mask(stop), cache=cache) for part, stop in ((x[:, :6], 6), (x[:, 6:], 8))]
        grads = torch.autograd.grad(torch.cat(outs, 1).square().sum(), [x, *attention.parameters()])
        assert all(tensor.isfinite().all() for tensor in (*outs, *grads))

    def test_a_call_without_tokens_changes_nothing(self) -> None:
        attention, x, cache = MultiHeadAttention(16, 4, position=Rotary()), torch.randn(2, 6, 16), Cache()
        mask = Window(2, 0)
        parts = [attention(part, mask=mask, cache=cache) for part in x.split([0, 4, 0, 2, 0], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), attention(x, mask=mask))
        assert cache.length == 6

    def test_a_copied_cache_continues_on_its_own_with_gradients(self) -> None:
        attention, cache = MultiHeadAttention(16, 4), Cache()
        x, first, second = (torch.randn(2, length, 16, requires_grad=True) for length in (3, 1, 2))
        attention(x, mask=Causal(), cache=cache)
        twin = copy.deepcopy(cache)
        for tail, held in ((first, cache), (second, twin)):
            out = attention(tail, mask=Causal(), cache=held)
            expected = attention(torch.cat([x, tail], 1), mask=Causal())[:, 3:]
            torch.testing.assert_close(out, expected)
            (grad,), (wanted,) = (torch.autograd.grad(y.square().sum(), x, retain_graph=True) for y in (out, expected))
            torch.testing.assert_close(grad, wanted)

    def test_a_cache_copied_with_its_model_belongs_to_the_copy(self) -> None:
        attention, cache = MultiHeadAttention(16, 4), Cache()
        attention(torch.randn(1, 3, 16), mask=Causal(), cache=cache)
        twin, copied = copy.deepcopy((attention, cache))
        assert copied.layer_length(twin) == 3
        assert copied.layer_length(attention) == 0

    def test_a_reordered_cache_continues_other_samples(self) -> None:
        attention = MultiHeadAttention(16, 4)
        x, step = torch.randn(3, 5, 16), torch.randn(2, 1, 16)
        cache, index = Cache(), torch.tensor([2, 0])
        attention(x, mask=Causal(), cache=cache)
        cache.reorder(index)
        expected = attention(torch.cat([x[index], step], 1), mask=Causal())[:, -1:]
        torch.testing.assert_close(attention(step, mask=Causal(), cache=cache), expected)

    def test_a_decoder_with_a_cache_equals_one_without(self) -> None:
        decoder = Decoder(16, 4, 2, context_dim=8, position=Rotary).eval()
        x, context = torch.randn(2, 7, 16), torch.randn(2, 5, 8)
        padding, cache = Padding(torch.tensor([5, 2])), Cache()
        parts = [decoder(part, context, context_mask=padding, cache=cache) for part in x.split(3, dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), decoder(x, context, context_mask=padding))


@pytest.mark.parametrize("kernel", KERNELS)
def test_train_and_eval_differ_by_dropout_alone(kernel: str) -> None:
    block, x = TransformerBlock(16, 4, kernel=kernel), torch.randn(2, 9, 16)
    torch.testing.assert_close(block.train()(x, Causal()), block.eval()(x, Causal()), rtol=0, atol=1e-6)
    dropped = TransformerBlock(16, 4, kernel=kernel, dropout=0.5)
    dropped.load_state_dict(block.state_dict())
    torch.testing.assert_close(dropped.eval()(x, Causal()), block(x, Causal()), rtol=0, atol=1e-6)
    assert (dropped.train()(x, Causal()) - block(x, Causal())).abs().max() > 0.1


def test_without_positions_a_permutation_of_tokens_permutes_the_output() -> None:
    encoder, x, order = Encoder(16, 4, 2), torch.randn(2, 9, 16), torch.randperm(9)
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order])


def test_the_number_of_parameters_does_not_depend_on_the_heads() -> None:
    counts = {sum(p.numel() for p in MultiHeadAttention(48, heads).parameters()) for heads in (1, 2, 4, 12)}
    assert len(counts) == 1


@pytest.mark.parametrize("head_dim", [64, 512])
def test_scores_have_unit_variance_at_the_start(head_dim: int) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(2 * head_dim, 2)
    x = torch.randn(64, 2 * head_dim)
    query, key = (y.view(64, 2, head_dim).transpose(0, 1) for y in (attention.query(x), attention.key(x)))
    scores = query @ key.transpose(1, 2) / head_dim**0.5
    assert 0.8 < scores.var().item() < 1.25


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_the_feed_forward_holds_two_thirds_of_a_block(activation: str) -> None:
    block = TransformerBlock(192, 3, activation=activation)
    share = sum(p.numel() for p in block.feed_forward.parameters()) / sum(p.numel() for p in block.parameters())
    assert abs(share - 2 / 3) < 0.01


def test_swiglu_multiplies_a_gate() -> None:
    layer, x = FeedForward(8, activation="swiglu"), torch.randn(2, 8)
    expected = layer.output(nn.functional.silu(layer.gate(x)) * layer.hidden(x))
    torch.testing.assert_close(layer(x), expected)


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    block, x = TransformerBlock(16, 4, drop_path=0.5), torch.randn(1, 5, 16).expand(4000, 5, 16)
    with torch.no_grad():
        branch = block.attention_branch(x)
    kept = branch[:, 0, 0] != 0
    assert 0.45 < kept.float().mean() < 0.55
    torch.testing.assert_close(branch[kept], 2 * x[kept])
    assert not branch[~kept].any()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_is_attention_and_feed_forward_in_residual_branches(norm: str) -> None:
    block, x = TransformerBlock(16, 4, norm=norm, layer_scale=0.5), torch.randn(2, 5, 16)
    if norm == "pre":
        middle = x + 0.5 * block.attention(block.attention_norm(x))
        expected = middle + 0.5 * block.feed_forward(block.feed_forward_norm(middle))
    else:
        middle = block.attention_norm(x + 0.5 * block.attention(x))
        expected = block.feed_forward_norm(middle + 0.5 * block.feed_forward(middle))
    torch.testing.assert_close(block(x), expected)


def test_nan_in_padding_does_not_pass_an_encoder() -> None:
    encoder, x = Encoder(16, 4, 3), torch.randn(2, 8, 16)
    x[1, 5:] = float("nan")
    x.requires_grad_()
    out = encoder(x, Padding(torch.tensor([8, 5])))
    grads = torch.autograd.grad(out.sum(), [x, *encoder.parameters()])
    assert out.isfinite().all()
    assert all(grad.isfinite().all() for grad in grads)


class TestRefusals:
    x = torch.randn(2, 5, 16)
    attention = MultiHeadAttention(16, 4)

    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (torch.ones(5, 5, dtype=torch.int64), r"use \.bool\(\)"),
            (torch.ones(2, 5, 5, dtype=torch.bool), r"\(2, 5, 5\).*True means 'may attend'"),
            (torch.ones(5, 6, dtype=torch.bool), r"\(5, 6\).*\(2, 4, 5, 5\).*broadcast"),
            (torch.zeros(3, 1, 5, 5), r"\(3, 1, 5, 5\).*\(2, 4, 5, 5\)"),
            (Padding(torch.tensor([5, 5, 5])), r"\(3,\)"),
            (Padding(torch.ones(2, 6, dtype=torch.bool)), r"\(2, 6\)"),
            (PerHead([Causal()] * 3), "4 heads cannot be split into 3"),
            ("causal", "Mask or a tensor"),
        ],
    )
    def test_a_wrong_mask_is_refused_with_both_shapes_or_the_remedy(self, mask: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.attention(self.x, mask=mask)

    def test_a_float_mask_of_zeros_and_ones_is_warned_about(self) -> None:
        with pytest.warns(UserWarning, match=r"\.bool\(\)"):
            self.attention(self.x, mask=torch.tril(torch.ones(5, 5)))

    def test_a_stack_refuses_a_wrong_mask_as_its_layers_do(self) -> None:
        with pytest.raises(ValueError, match=r"\(3,\)"):
            Encoder(16, 4, 1)(self.x, Padding(torch.tensor([5, 5, 5])))

    def test_masks_that_differ_between_heads_are_refused_inside_per_head(self) -> None:
        with pytest.raises(ValueError, match="inside PerHead"):
            PerHead([Causal(), Dense(torch.ones(1, 4, 5, 5, dtype=torch.bool))])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dim": 15}, "15 is not a multiple of heads 4"),
            ({"kv_heads": 3}, "kv_heads 3"),
            ({"dropout": 1.0}, "1.0"),
            ({"kernel": "fast"}, "'fast'"),
        ],
    )
    def test_impossible_options_are_refused(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(**{"dim": 16, "heads": 4, **options})


def test_importing_the_core_loads_torch_and_einops_alone() -> None:
    code = (
        "import sys, torch, einops; before = set(sys.modules); import mha_apps.attention; "
        "print({m.split('.')[0] for m in set(sys.modules) - before} - {'mha_apps', 'torch', 'einops'} "
        "- set(sys.stdlib_module_names))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
