"""Positions against their definitions, written as loops."""

import copy

import pytest
import torch

from mha_apps.attention import MultiHeadAttention, RelativeBias
from mha_apps.attention.mask import Grid


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("max_distance", [None, 1, 2, 9])
def test_the_bias_of_an_image_belongs_to_the_clipped_difference_of_rows_and_columns(max_distance, prefix):
    rows, columns = 3, 4
    bias = RelativeBias(2, grid=(rows, columns), max_distance=max_distance, prefix=prefix)
    tokens = prefix + rows * columns
    index = torch.arange(tokens)
    read = bias.score_bias(tokens, tokens).read(Grid(index[:, None], index[None], tokens, tokens))
    groups: dict[object, list[torch.Tensor]] = {}
    for query in range(tokens):
        for key in range(tokens):
            if query < prefix or key < prefix:
                kind: object = ("prefix", query < prefix, key < prefix)
            else:
                step = [
                    a - b for a, b in zip(divmod(key - prefix, columns), divmod(query - prefix, columns), strict=True)
                ]
                limit = max(rows, columns) if max_distance is None else max_distance
                kind = tuple(max(-limit, min(limit, side)) for side in step)
            groups.setdefault(kind, []).append(read.reshape(-1, tokens, tokens)[:, query, key])
    # One number for each kind of pair, and as many kinds as the table holds.
    assert all(torch.equal(value, several[0]) for several in groups.values() for value in several)
    assert len({tuple(several[0].tolist()) for several in groups.values()}) == len(groups) == bias.table.shape[1]


@pytest.mark.parametrize("kernel", ["explicit", "sdpa", "banded"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_many_pairs_are_summed_in_full_precision(kernel, dtype):
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4, position=RelativeBias(4, max_distance=4), kernel=kernel).to(dtype)
    mask = torch.randn(1, 1, 1, 300).to(dtype).requires_grad_()
    x = torch.randn(4, 300, 16).to(dtype)
    exact = copy.deepcopy(attention).double()
    exact_mask = mask.detach().double().requires_grad_()
    learned = [attention.position.table, mask], [exact.position.table, exact_mask]
    grad = torch.randn(4, 300, 16)
    found = torch.autograd.grad(attention(x, mask=mask), learned[0], grad.to(dtype))
    expected = torch.autograd.grad(exact(x.double(), mask=exact_mask), learned[1], grad.to(dtype).double())
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).norm() < 0.05 * other.norm()


def test_one_dimension_needs_a_largest_distance():
    with pytest.raises(ValueError, match="max_distance"):
        RelativeBias(2)
