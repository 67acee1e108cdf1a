"""Recording attention maps, against weights computed entry by entry; and rollout, against loops."""

import math

import pytest
import torch
from torch import Tensor, nn

from mha_apps.attention import (
    ALiBi,
    AttentionMaps,
    Cache,
    Causal,
    Encoder,
    Global,
    Mask,
    MultiHeadAttention,
    Padding,
    TransformerBlock,
    Window,
    plot_attention,
    record_attention,
    rollout,
)

# Both compute the weights in float32, in another order.
TOLERANCE = {"atol": 1e-6, "rtol": 1e-5}


def naive_weights(attention: MultiHeadAttention, x: Tensor, mask: Mask | None) -> Tensor:
    """Softmax of scaled dot products, one entry after the other in float64."""
    batch, length, _ = x.shape
    heads, dim = attention.heads, attention.head_dim
    query, key = (
        layer(x).detach().double().reshape(batch, length, heads, dim) for layer in (attention.query, attention.key)
    )
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool) if mask is None else mask.materialize(length, length)
    allowed = allowed.expand(batch, heads, length, length)
    weights = torch.zeros(batch, heads, length, length, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                keys = [j for j in range(length) if allowed[b, h, i, j]]
                scores = [float(query[b, i, h] @ key[b, j, h]) / math.sqrt(dim) for j in keys]
                total = sum(math.exp(score) for score in scores)
                for j, score in zip(keys, scores, strict=True):
                    weights[b, h, i, j] = math.exp(score) / total
    return weights


def sharp_attention(**options) -> MultiHeadAttention:
    torch.manual_seed(0)
    attention = MultiHeadAttention(12, 3, **options)
    with torch.no_grad():
        attention.query.weight.mul_(3.0)
    return attention


@pytest.mark.parametrize("kernel", ["auto", "explicit", "sdpa", "banded", "strided"])
@pytest.mark.parametrize(
    "mask", [None, Causal(), Window(2, 1), Padding(torch.tensor([7, 4]))], ids=["none", "causal", "window", "padding"]
)
def test_maps_are_the_weights_whatever_kernel_runs(kernel, mask):
    attention = sharp_attention(kernel=kernel)
    x = torch.randn(2, 7, 12)
    expected = naive_weights(attention, x, mask)
    if isinstance(mask, Padding):
        # Padding asks nothing: its query is the projection of zero.
        expected = naive_weights(attention, x.masked_fill(~mask.materialize(7, 7)[:, 0, 0, :, None], 0.0), mask)
    out = attention(x, mask=mask)
    with record_attention(attention) as maps:
        recorded = attention(x, mask=mask)
    assert torch.equal(recorded, out)
    torch.testing.assert_close(maps[0].double(), expected, **TOLERANCE)


def test_a_query_that_may_attend_to_nothing_has_a_row_of_zeros():
    attention = sharp_attention()
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    with record_attention(attention) as maps:
        attention(torch.randn(2, 5, 12), mask=mask)
    assert (maps[0][:, :, 2] == 0).all()
    torch.testing.assert_close(maps[0].sum(dim=-1)[:, :, [0, 1, 3, 4]], torch.ones(2, 3, 4))


def test_maps_of_grouped_heads_and_of_positions_are_those_that_the_output_uses():
    torch.manual_seed(0)
    attention = MultiHeadAttention(12, 4, kv_heads=2, position=ALiBi(4), bias=False)
    x = torch.randn(2, 6, 12)
    with record_attention(attention) as maps:
        out = attention(x)
    value = attention.value(x).reshape(2, 6, 2, 3).transpose(1, 2).repeat_interleave(2, dim=1)
    mixed = (maps[0] @ value).transpose(1, 2).reshape(2, 6, 12)
    torch.testing.assert_close(attention.output(mixed), out, atol=1e-5, rtol=1e-5)


def test_dropout_acts_on_the_output_but_not_on_the_maps():
    attention = sharp_attention(dropout=0.5).train()
    x = torch.randn(2, 6, 12)
    with record_attention(attention) as maps:
        attention(x)
    torch.testing.assert_close(maps[0].double(), naive_weights(attention, x, None), **TOLERANCE)


@pytest.mark.parametrize("queries", [[0, 3], (0, 3), slice(0, 6, 3), [-6, -3], range(0, 6, 3)], ids=str)
def test_queries_keeps_those_rows_and_remembers_where_they_stand(queries):
    encoder = Encoder(12, 3, 2)
    x = torch.randn(2, 6, 12)
    with record_attention(encoder) as whole:
        encoder(x, Causal())
    with record_attention(encoder, queries=queries) as maps:
        encoder(x, Causal())
    for name, weights in maps.items():
        torch.testing.assert_close(weights, whole[name][:, :, [0, 3]], **TOLERANCE)
        assert maps.positions[name].tolist() == [0, 3]


@pytest.mark.parametrize("layers", [[1], [-1], ["blocks.1.attention"]])
def test_layers_are_chosen_by_number_or_by_name(layers):
    encoder = Encoder(12, 3, 2)
    with record_attention(encoder, layers=layers) as maps:
        encoder(torch.randn(2, 6, 12))
    assert list(maps) == ["blocks.1.attention"]


@pytest.mark.parametrize("layers", [[2], [-3], ["blocks.2.attention"]])
def test_a_layer_that_is_not_there_is_refused_with_those_that_are(layers):
    with (
        pytest.raises(ValueError, match=r"no attention layer .*blocks\.0\.attention"),
        record_attention(Encoder(12, 3, 2), layers=layers),
    ):
        pass


def test_a_model_without_the_core_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="replace_attention"), record_attention(nn.Linear(2, 2)):
        pass


def test_maps_beyond_the_limit_are_refused_with_the_estimate_in_bytes():
    encoder = Encoder(12, 3, 2)
    x = torch.randn(5, 16, 12)
    needed = 2 * 5 * 3 * 16 * 16 * 4
    with record_attention(encoder, limit=needed) as maps:
        encoder(x)
    assert sum(weights.numel() * weights.element_size() for weights in maps.values()) == needed
    with pytest.raises(ValueError, match=str(needed)), record_attention(encoder, limit=needed - 1) as maps:
        encoder(x)
    assert not maps
    with record_attention(encoder, limit=needed - 1, queries=[0]) as maps:
        encoder(x)
    assert len(maps) == 2


def test_a_recording_inside_another_leaves_it_its_maps():
    encoder, x = Encoder(12, 3, 2), torch.randn(2, 6, 12)
    with record_attention(encoder) as outer, record_attention(encoder, layers=[1], queries=[0]) as inner:
        encoder(x)
    assert [weights.shape[2] for weights in outer.values()] == [6, 6]
    assert [weights.shape[2] for weights in inner.values()] == [1]


@pytest.mark.parametrize("queries", [[6], [0, -7]])
def test_a_query_that_is_not_there_is_refused(queries):
    encoder = Encoder(12, 3, 1)
    with (
        pytest.raises(ValueError, match=rf"no query {queries[-1]} .*blocks\.0\.attention got 6"),
        record_attention(encoder, queries=queries),
    ):
        encoder(torch.randn(2, 6, 12))


def cached_maps() -> tuple[AttentionMaps, Tensor]:
    """Maps of the last token of ten, of which a window of three and the first are still held; and the whole map."""
    torch.manual_seed(0)
    attention, x, cache = MultiHeadAttention(12, 3, position=ALiBi(3)), torch.randn(1, 10, 12), Cache()
    mask = (Window(2, 0) | Global([0])) & Causal()
    with record_attention(attention) as whole:
        attention(x, mask=mask)
    for token in x.split(1, dim=1):
        with record_attention(attention) as maps:
            attention(token, mask=mask, cache=cache)
    return maps, whole[0]


def test_maps_of_a_cache_say_where_their_keys_stand():
    maps, whole = cached_maps()
    assert maps.positions[""].tolist() == [9]
    assert maps.key_positions[""].tolist() == [0, 7, 8, 9]
    torch.testing.assert_close(maps[0], whole[:, :, 9:, [0, 7, 8, 9]], **TOLERANCE)


def test_a_plot_of_maps_of_a_cache_counts_positions():
    maps, _ = cached_maps()
    ax = plot_attention(maps).axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "7", "8", "9"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["9"]
    named = plot_attention(maps, labels=list("abcdefghij")).axes[0]
    assert [label.get_text() for label in named.get_xticklabels()] == ["a", "h", "i", "j"]
    assert [label.get_text() for label in named.get_yticklabels()] == ["j"]


def test_the_model_is_left_as_it_was_also_after_an_exception():
    encoder = Encoder(12, 3, 2)
    x = torch.randn(2, 6, 12)
    before = {name: dict(vars(module)) for name, module in encoder.named_modules()}
    out = encoder(x)
    with pytest.raises(RuntimeError, match="shape"), record_attention(encoder):
        encoder(x[..., :5])
    with pytest.raises(ValueError, match="bytes"), record_attention(encoder, limit=1):
        encoder(x)
    assert {name: dict(vars(module)) for name, module in encoder.named_modules()} == before
    assert torch.equal(encoder(x), out)


def test_gradients_flow_as_without_recording():
    encoder = Encoder(12, 3, 1)
    x = torch.randn(2, 6, 12)
    encoder(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in encoder.parameters()]
    encoder.zero_grad()
    with record_attention(encoder) as maps:
        encoder(x).square().sum().backward()
    assert not maps[0].requires_grad
    assert all(torch.equal(p.grad, grad) for p, grad in zip(encoder.parameters(), expected, strict=True))


def test_cross_attention_is_recorded_beside_self_attention():
    block = TransformerBlock(12, 3, context_dim=8)
    with record_attention(block) as maps:
        block(torch.randn(2, 5, 12), context=torch.randn(2, 7, 8))
    assert {name: tuple(weights.shape) for name, weights in maps.items()} == {
        "attention": (2, 3, 5, 5),
        "cross_attention": (2, 3, 5, 7),
    }


def naive_rollout(layers: list[Tensor]) -> Tensor:
    """Paths through the layers, added up one by one in float64: each step goes along attention or stays."""
    batch, _, length, _ = layers[0].shape
    total = torch.eye(length, dtype=torch.float64).repeat(batch, 1, 1)
    for weights in layers:
        following = torch.zeros_like(total)
        for b in range(batch):
            for i in range(length):
                row = [float(weights[b, :, i, j].double().mean()) for j in range(length)]
                mass = sum(row) + 1.0
                for k in range(length):
                    through = sum(row[j] * float(total[b, j, k]) for j in range(length))
                    following[b, i, k] = (through + float(total[b, i, k])) / mass
        total = following
    return total


@pytest.mark.parametrize("mask", [None, Causal(), Padding(torch.tensor([6, 3]))], ids=["none", "causal", "padding"])
def test_rollout_is_the_sum_over_all_paths(mask):
    torch.manual_seed(0)
    encoder = Encoder(12, 3, 3)
    with record_attention(encoder) as maps:
        encoder(torch.randn(2, 6, 12), mask)
    rolled = rollout(maps)
    torch.testing.assert_close(rolled.double(), naive_rollout(list(maps.values())), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(rolled.sum(dim=-1), torch.ones(2, 6))


def test_rollout_of_a_class_token_finds_the_patch_that_it_reads_by_way_of_another():
    # Token 0 is the class token. In layer 1 patch 2 reads patch 3; in layer 2 the class token reads patch 2.
    first, second = torch.eye(4).repeat(1, 2, 1, 1), torch.eye(4).repeat(1, 2, 1, 1)
    first[:, :, 2] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    second[:, :, 0] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    from_class = rollout([first, second])[0, 0]
    # Half of it stays, half goes to patch 2, of which half came from patch 3.
    torch.testing.assert_close(from_class, torch.tensor([0.5, 0.0, 0.25, 0.25]))


def test_rollout_without_attention_is_the_identity():
    torch.testing.assert_close(rollout([torch.zeros(2, 3, 5, 5)]), torch.eye(5).repeat(2, 1, 1))


def test_rollout_refuses_what_is_not_square_and_nothing():
    with pytest.raises(ValueError, match=r"\(1, 1, 2, 3\)"):
        rollout([torch.zeros(1, 1, 2, 3)])
    with pytest.raises(ValueError, match="record_attention"):
        rollout([])
