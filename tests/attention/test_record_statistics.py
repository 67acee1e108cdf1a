"""head_statistics, against loops over single rows, and against heads that are ill by construction."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mha_apps.attention import (
    AttentionMaps,
    Cache,
    Causal,
    Encoder,
    Global,
    MultiHeadAttention,
    Padding,
    Window,
    head_statistics,
    record_attention,
)


def naive_statistics(weights: Tensor, positions: list[int]) -> list[dict]:
    """The definitions, one row after the other in float64; None where a head has no row."""
    batch, heads, length, key_length = weights.shape
    weights = weights.double()
    found = []
    for h in range(heads):
        entropies, distances, largest = [], [], []
        for b in range(batch):
            rows = [i for i in range(length) if float(weights[b, h, i].sum()) > 0]
            for i in rows:
                row = weights[b, h, i].tolist()
                choices = sum(any(float(weights[b, g, i, k]) > 0 for g in range(heads)) for k in range(key_length))
                if choices > 1:
                    entropies.append(-sum(p * math.log(p) for p in row if p > 0) / math.log(choices))
                distances.append(sum(p * abs(k - positions[i]) for k, p in enumerate(row)))
            if rows:
                masses = [sum(float(weights[b, h, i, k]) for i in rows) / len(rows) for k in range(key_length)]
                largest.append(max(masses))
        if not distances:
            found.append(None)
            continue
        found.append(
            {
                "entropy": sum(entropies) / len(entropies) if entropies else 0.0,
                "mean_distance": sum(distances) / len(distances),
                "largest_mass": sum(largest) / len(largest),
            }
        )
    return found


def naive_overlap(weights: Tensor, first: int, second: int) -> float:
    shared = []
    for sample in weights.double():
        for a, b in zip(sample[first].tolist(), sample[second].tolist(), strict=True):
            if sum(a) > 0 and sum(b) > 0:
                shared.append(sum(min(p, q) for p, q in zip(a, b, strict=True)))
    return sum(shared) / len(shared) if shared else 0.0


@st.composite
def maps_with_holes(draw):
    """(weights, positions): keys masked for all heads alike, and rows of zeros."""
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    length, key_length = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scores = torch.randn(batch, heads, length, key_length, generator=generator) * draw(st.sampled_from([0.1, 1.0, 5.0]))
    allowed = torch.rand(batch, 1, length, key_length, generator=generator) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    scores = scores.masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(dim=-1).masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
    positions = draw(st.lists(st.integers(0, 8), min_size=length, max_size=length))
    return weights, positions


@settings(max_examples=60, deadline=None)
@given(maps_with_holes())
def test_numbers_are_those_of_the_definitions(case):
    weights, positions = case
    layer = head_statistics([weights], positions)["layer 0"]
    for head, expected in zip(layer["heads"], naive_statistics(weights, positions), strict=True):
        if expected is None:
            assert head["entropy"] is head["largest_mass"] is head["mean_distance"] is None
            continue
        for name, value in expected.items():
            assert head[name] == pytest.approx(value, abs=1e-5, rel=1e-5), name
        assert -1e-6 <= head["entropy"] <= 1 + 1e-6
    for first, row in enumerate(layer["similarity"]):
        for second, value in enumerate(row):
            assert value == pytest.approx(naive_overlap(weights, first, second), abs=1e-5)


def healthy(length: int = 16, heads: int = 1) -> Tensor:
    """Heads that look at different, content-dependent places."""
    torch.manual_seed(0)
    return (2.5 * torch.randn(2, heads, length, length)).softmax(dim=-1)


def test_healthy_heads_are_not_called_ill():
    statistics = head_statistics([healthy(heads=4)])
    assert statistics.ill == []
    assert "no head is ill" in str(statistics)


def test_a_head_that_is_all_on_one_token_is_named_with_the_token():
    sink = torch.full((2, 1, 16, 16), 0.05 / 15)
    sink[..., 3] = 0.95
    statistics = head_statistics([torch.cat([healthy(), sink], dim=1)])
    assert statistics.ill == ["layer 0, head 1: all on one token, 95% on token 3"]
    assert statistics["layer 0"]["heads"][1]["token"] == 3


def test_a_head_where_each_query_looks_at_its_own_token_is_sharp_but_not_ill():
    own = torch.eye(16).repeat(2, 1, 1, 1)
    head = head_statistics([torch.cat([healthy(), own], dim=1)])["layer 0"]["heads"][1]
    assert head["ill"] == []
    assert head["entropy"] == pytest.approx(0.0, abs=1e-6)
    assert head["mean_distance"] == 0.0
    assert head["largest_mass"] == pytest.approx(1 / 16)


@pytest.mark.parametrize("mask", [None, Causal(), Padding(torch.tensor([9, 5]))], ids=["none", "causal", "padding"])
def test_a_uniform_head_is_named_whatever_the_mask_leaves_it(mask):
    torch.manual_seed(0)
    encoder = Encoder(12, 3, 1)
    attention = encoder.blocks[0].attention
    with torch.no_grad():
        attention.query.weight.mul_(6.0)
        attention.query.weight[4:8] = 0.0
    with record_attention(encoder) as maps:
        encoder(torch.randn(2, 9, 12), mask)
    statistics = head_statistics(maps)
    assert [sentence[:26] for sentence in statistics.ill] == ["blocks.0.attention, head 1"]
    assert "uniform" in statistics.ill[0]


def test_copies_are_named_once_with_the_head_that_they_copy():
    first = healthy()
    nearly = 0.98 * first + 0.02 / 16
    statistics = head_statistics([torch.cat([first, healthy(heads=2)[:, 1:], nearly, first], dim=1)])
    assert [sentence.split(":")[0] for sentence in statistics.ill] == ["layer 0, head 2", "layer 0, head 3"]
    assert all("a copy of head 0" in sentence for sentence in statistics.ill)
    assert statistics["layer 0"]["heads"][0]["nearest"] == 3


def test_two_uniform_heads_are_called_uniform_not_copies():
    statistics = head_statistics([torch.full((1, 2, 8, 8), 1 / 8)])
    assert len(statistics.ill) == 2
    assert all("uniform" in sentence for sentence in statistics.ill)


def test_a_single_query_is_no_evidence_that_all_look_at_one_token():
    weights = torch.zeros(2, 1, 1, 8)
    weights[..., 2] = 1.0
    assert head_statistics([weights], [0]).ill == []


def test_distances_of_some_queries_are_from_where_they_stand():
    torch.manual_seed(0)
    encoder = Encoder(12, 3, 1)
    x = torch.randn(2, 9, 12)
    with record_attention(encoder) as whole:
        encoder(x)
    with record_attention(encoder, queries=[0, 4]) as some:
        encoder(x)
    rows = whole[0][:, :, [0, 4]]
    expected = [head["mean_distance"] for head in naive_statistics(rows, [0, 4])]
    for statistics in (head_statistics(some), head_statistics([rows], [0, 4])):
        (layer,) = statistics.values()
        assert [head["mean_distance"] for head in layer["heads"]] == pytest.approx(expected, rel=1e-5)


def test_distances_with_a_cache_are_from_where_keys_stand():
    attention, x, cache = MultiHeadAttention(12, 3), torch.randn(1, 10, 12), Cache()
    mask = (Window(2, 0) | Global([0])) & Causal()
    with record_attention(attention, queries=[9]) as whole:
        attention(x, mask=mask)
    for token in x.split(1, dim=1):
        with record_attention(attention) as maps:
            attention(token, mask=mask, cache=cache)
    found, expected = (head_statistics(some)[""]["heads"] for some in (maps, whole))
    for head, wanted in zip(found, expected, strict=True):
        assert head["mean_distance"] == pytest.approx(wanted["mean_distance"], rel=1e-5)
        assert head["token"] == wanted["token"]


def test_without_positions_queries_are_the_last_ones_as_with_a_cache():
    weights = torch.zeros(1, 1, 2, 5)
    weights[0, 0, 0, 3] = weights[0, 0, 1, 4] = 1.0
    assert head_statistics([weights])["layer 0"]["heads"][0]["mean_distance"] == 0.0


def test_a_table_is_80_columns_wide_and_the_whole_is_json():
    maps = AttentionMaps({"backbone.encoder.layers.11.attention.core": healthy(heads=2), "b": healthy(length=5)})
    maps["empty"] = torch.zeros(1, 1, 3, 3)
    statistics = head_statistics(maps)
    text = str(statistics)
    table = text.split("\n\n")[0].splitlines()
    assert len(table) == 5
    assert max(len(line) for line in table) <= 80
    assert table[1].split()[0].startswith("…")
    assert "no query may attend to anything" in table[4]
    assert json.loads(json.dumps(statistics, allow_nan=False)) == statistics


@pytest.mark.parametrize(
    ("maps", "positions", "message"),
    [
        ([], None, "record_attention"),
        ([torch.zeros(2, 3, 3)], None, r"\(2, 3, 3\)"),
        ([torch.full((1, 1, 2, 2), torch.nan)], None, "NaN"),
        ([torch.zeros(1, 1, 2, 0)], None, "no keys"),
        ([torch.zeros(1, 1, 2, 2)], [0, 1, 2], "2 queries"),
    ],
)
def test_what_are_no_maps_is_refused(maps, positions, message):
    with pytest.raises(ValueError, match=message):
        head_statistics(maps, positions)
