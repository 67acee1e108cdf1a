"""What each mask means, by the sentence in its docstring evaluated pair by pair."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_apps.attention import (
    Causal,
    Dense,
    Dilated,
    Global,
    Mask,
    MultiHeadAttention,
    Padding,
    PerHead,
    Segments,
    Strided,
    Window,
    Window2d,
)
from mha_apps.attention.mask import And, Grid

Rule = Callable[[int, int], bool]  # (position of the query, key)

RULES: dict[str, tuple[Mask, Rule]] = {
    "causal": (Causal(), lambda p, k: k <= p),
    "window": (Window(2, 3), lambda p, k: p - 2 <= k <= p + 3),
    "strided": (Strided(3), lambda p, k: abs(p - k) % 3 == 0),
    "dilated": (Dilated(2, 3), lambda p, k: abs(p - k) in (0, 3, 6)),
    "global": (Global([1, 4]), lambda p, k: p in (1, 4) or k in (1, 4)),
    "and": (Causal() & Strided(2), lambda p, k: k <= p and (p - k) % 2 == 0),
    "or": (Window(1, 1) | Global([0]), lambda p, k: abs(p - k) <= 1 or 0 in (p, k)),
    "not": (~Window(1, 1), lambda p, k: abs(p - k) > 1),
}


@pytest.mark.parametrize(("mask", "rule"), RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize(("query_length", "key_length"), [(9, 9), (3, 9), (9, 3), (1, 7)])
def test_a_mask_means_its_rule_with_queries_at_the_last_positions(
    mask: Mask, rule: Rule, query_length: int, key_length: int
) -> None:
    found = mask.materialize(query_length, key_length)
    assert found.shape == (1, 1, query_length, key_length)
    for query in range(query_length):
        for key in range(key_length):
            assert bool(found[0, 0, query, key]) == rule(key_length - query_length + query, key)


def test_padding_counts_keys_or_marks_the_real_ones() -> None:
    lengths = Padding(torch.tensor([3, 0])).materialize(2, 4)
    marks = Padding(torch.tensor([[True, True, True, False], [False] * 4])).materialize(2, 4)
    assert lengths.shape == (2, 1, 2, 4)
    assert torch.equal(lengths, marks)
    assert lengths[0].sum() == 2 * 3


def test_segments_see_themselves() -> None:
    mask = Segments(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 1, 2]]))
    expected = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]]
    assert mask.materialize(3, 4)[0, 0].int().tolist() == expected


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
@pytest.mark.parametrize("prefix", [0, 2])
def test_image_windows_are_the_cells_of_a_shifted_lattice(shift: int, prefix: int) -> None:
    mask = Window2d(5, 7, 3, 2, shift, prefix)
    found = mask.materialize(mask.tokens, mask.tokens)[0, 0]
    for query in range(mask.tokens):
        for key in range(mask.tokens):
            if min(query, key) < prefix:
                expected = True
            else:
                (r1, c1), (r2, c2) = (divmod(token - prefix, 7) for token in (query, key))
                rows = {(r - shift % 3) // 3 for r in (r1, r2)}
                columns = {(c - shift % 2) // 2 for c in (c1, c2)}
                expected = len(rows) == len(columns) == 1
            assert bool(found[query, key]) == expected


def test_a_shifted_window_equals_swin_without_wrap_around() -> None:
    size, window, shift = 8, 4, 2
    # Swin: roll the image, cut it into windows, and forbid pairs that were not neighbours before the roll.
    region = torch.zeros(size, size)
    for number, (rows, columns) in enumerate((r, c) for r in _slices(window, shift) for c in _slices(window, shift)):
        region[rows, columns] = number
    where = torch.arange(size * size).view(size, size).roll((-shift, -shift), (0, 1))
    expected = torch.zeros(size * size, size * size, dtype=torch.bool)
    for top in range(0, size, window):
        for left in range(0, size, window):
            tokens = where[top : top + window, left : left + window].flatten()
            regions = region[top : top + window, left : left + window].flatten()
            expected[tokens[:, None], tokens[None]] = regions[:, None] == regions[None]
    mask = Window2d(size, size, window, window, shift)
    assert torch.equal(mask.materialize(64, 64)[0, 0], expected)


def _slices(window: int, shift: int) -> tuple[slice, slice, slice]:
    return slice(0, -window), slice(-window, -shift), slice(-shift, None)


def test_groups_of_heads_have_their_patterns_in_order() -> None:
    found = PerHead([Window(1, 1), Strided(4)]).materialize(8, 8, heads=6)
    assert found.shape == (1, 6, 8, 8)
    for head in range(6):
        expected = (Window(1, 1) if head < 3 else Strided(4)).materialize(8, 8)[0, 0]
        assert torch.equal(found[0, head], expected)


def test_hiding_padding_comes_last_or_global_keys_are_seen_again() -> None:
    padding = Padding(torch.tensor([2]))
    assert ((Window(0, 0) & padding) | Global([3])).materialize(4, 4)[0, 0, 0, 3]
    assert not ((Window(0, 0) | Global([3])) & padding).materialize(4, 4)[0, 0, 0, 3]


@pytest.mark.parametrize("query_length", [700, 650, 750])
@pytest.mark.parametrize(
    "mask",
    [
        Window(5, 300) & Segments(torch.arange(750)[None] // 90 + 1, torch.arange(700)[None] // 100),
        Window(-3, 9) & ~Strided(2),
        PerHead([Window(-3, 9) & ~Strided(2), Dilated(2, 9)]) & Padding([690, 20]),
    ],
    ids=["documents", "not", "heads"],
)
def test_what_is_seen_is_found_within_the_reach_of_a_window(mask: Mask, query_length: int) -> None:
    if isinstance(mask, And) and isinstance(mask.second, Segments):
        mask = mask.first & Segments(mask.second.query_ids[:, :query_length], mask.second.key_ids)
    seen = mask.seen(query_length, 700, torch.device("cpu"))
    assert seen is not None
    assert torch.equal(seen, mask.materialize(query_length, 700).any(1).any(1))


any_mask = st.recursive(
    st.sampled_from(
        [
            *(mask for mask, _ in RULES.values()), Window(-2, 6), Window(3, -1), Strided(4), Dilated(1, 5),
            Padding(torch.tensor([4, 9])), Dense(torch.eye(30).bool()[:1]),
            Dense(torch.arange(2 * 4 * 30).view(2, 4, 1, 30) % 5 > 2),
            PerHead([Window(2, 2), Padding(torch.tensor([4, 9]))]), PerHead([Padding([3]), Padding([7])]),
        ]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda mask: ~mask),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(mask=any_mask, query_length=st.integers(1, 40))
def test_what_a_mask_says_of_itself_agrees_with_its_matrix(mask: Mask, query_length: int) -> None:
    key_length = 30
    whole = mask.materialize(query_length, key_length)
    query, key = torch.arange(query_length)[:, None], torch.arange(key_length)[None]
    grid = Grid(query, key, query_length, key_length)
    covered = torch.zeros(query_length, key_length, dtype=torch.bool)
    for pattern in mask.support(query_length, key_length):
        covered |= pattern.contains(grid)
    assert not (whole & ~covered).any()
    seen = mask.seen(query_length, key_length, torch.device("cpu"))
    seen = torch.ones(1, key_length, dtype=torch.bool) if seen is None else seen
    assert torch.equal(*torch.broadcast_tensors(seen, whole.any(1).any(1)))
    if mask.causal:
        assert not (whole & ~Causal().materialize(query_length, key_length)).any()
    if mask.key_only(query_length):
        assert torch.equal(whole, whole[:, :, :1].expand_as(whole))


def test_a_printed_mask_shows_its_pairs() -> None:
    assert str(Causal() & Dense(torch.ones(3, 3, dtype=torch.bool))).splitlines()[1:] == ["■··", "■■·", "■■■"]
    assert "first of 2 samples" in str(Padding(torch.tensor([3, 1])))
    assert str(PerHead([Window(0, 0), Causal()])).count("head group") == 2
    assert "Window(left=1, right=2) | Global([0])" in str(Window(1, 2) | Global([0]))
    assert str(PerHead([Causal(), Dense(torch.ones(3, 3, dtype=torch.bool))])).count("■■■") == 1 + 3


class TestPlan:
    attention = MultiHeadAttention(64, 8, head_dim=8)

    @pytest.mark.parametrize(
        ("mask", "kernel"),
        [
            (Window(64, 64), "banded"),
            ((Window(64, 64) | Global([0])) & Padding(torch.tensor([4096])), "banded"),
            (Dilated(16, 4), "banded"),
            (PerHead([Window(32, 32), Dilated(32, 2)]), "banded"),
            (Strided(64), "strided"),
            (Causal() & Strided(64), "strided"),
            (Causal(), "sdpa"),
            (None, "sdpa"),
        ],
    )
    def test_long_inputs_use_the_structure_of_the_mask(self, mask: Mask | None, kernel: str) -> None:
        plan = self.attention.plan(torch.empty(1, 4096, 64), mask=mask)
        assert plan.kernel == kernel
        assert str(plan).startswith(f"{kernel}: ")

    @pytest.mark.parametrize("units", [True, False])
    def test_short_inputs_in_bfloat16_use_plain_products_where_those_are_fast(
        self, units: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mha_apps.attention.plan.has_half_units", lambda device: units)
        plan = self.attention.plan(torch.empty(256, 64, 64, dtype=torch.bfloat16))
        assert plan.kernel == ("explicit" if units else "sdpa")

    def test_dropout_leaves_the_fused_kernel_in_training_only(self) -> None:
        attention = MultiHeadAttention(64, 8, dropout=0.1)
        for length, kernel in ((64, "explicit"), (1024, "banded")):
            x = torch.empty(1, length, 64)
            assert attention.train().plan(x).kernel == kernel
            assert attention.eval().plan(x).kernel == "sdpa"

    def test_a_kernel_that_was_asked_for_is_used(self) -> None:
        attention = MultiHeadAttention(64, 8, kernel="sdpa")
        assert str(attention.plan(torch.empty(1, 16, 64))) == "sdpa: asked for"
