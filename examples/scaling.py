"""Why scores are divided by the root of head_dim.

The score of two independent vectors with entries of unit variance has a variance of head_dim (Vaswani et al. 2017,
section 3.2.1, footnote 4). Undivided, softmax then puts all weight on one key, where its gradient vanishes. Look at
the left panel for where that begins, and at the right one for what it does to a model of one attention layer that must
find, among 32 tokens, the one whose key is the same as the query's.
"""

from pathlib import Path

import torch
from _common import BLUE, COLOURS, ORANGE, PICTURES, figure, run, save, table, train
from torch import Tensor, nn

from mha_apps.attention import MultiHeadAttention

SIZES = (16, 64, 256, 1024)
KEYS, DIM, VALUES, STEPS = 32, 64, 16, 200

Case = tuple[int, bool]  # head_dim, and whether scores are divided by its root


def softmax_at(head_dim: int, divide: bool) -> tuple[float, float, float]:
    """Variance of the scores, mean largest weight, and mean norm of softmax's gradient."""
    query, key = torch.randn(1000, head_dim), torch.randn(1000, KEYS, head_dim)
    scores = torch.einsum("bd,bkd->bk", query, key) / (head_dim**0.5 if divide else 1.0)
    weights = scores.softmax(dim=1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]  # d weights / d scores
    return float(scores.var()), float(weights.amax(dim=1).mean()), float(jacobian.norm(dim=(1, 2)).mean())


class Finder(nn.Module):
    """One head of any size: the value of the token with the same key."""

    def __init__(self, head_dim: int, divide: bool) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(DIM, 1, head_dim=head_dim, context_dim=DIM + VALUES)
        self.exit = nn.Linear(DIM, VALUES)
        if not divide:  # the core always divides: multiply the queries by what it will divide by
            self.attention.query = nn.Sequential(self.attention.query, Times(head_dim**0.5))

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        return self.exit(self.attention(query, context))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def learn(head_dim: int, divide: bool, seed: int) -> list[float]:
    """The share of the values' variance that is unexplained, at each step."""
    torch.manual_seed(seed)
    model = Finder(head_dim, divide)

    def loss() -> Tensor:
        key, value = torch.randn(32, KEYS, DIM), torch.randn(32, KEYS, VALUES)
        wanted = torch.randint(KEYS, (32, 8, 1))
        query = key.gather(1, wanted.expand(-1, -1, DIM))
        target = value.gather(1, wanted.expand(-1, -1, VALUES))
        return (model(query, torch.cat([key, value], dim=2)) - target).square().mean()

    return train(model, loss, STEPS, 1e-3)


def main(out: Path = PICTURES / "scaling.png", seed: int = 0) -> dict[str, float]:
    torch.manual_seed(seed)
    found = {(size, divide): softmax_at(size, divide) for size in SIZES for divide in (True, False)}
    curves = {(size, divide): learn(size, divide, seed) for size in SIZES for divide in (True, False)}
    end = {case: sum(losses[-20:]) / 20 for case, losses in curves.items()}
    table(
        [
            "head_dim",
            "divided",
            "variance of scores",
            "largest weight",
            "norm of the gradient",
            "unexplained at the end",
        ],
        [(size, "yes" if divide else "no", *found[size, divide], end[size, divide]) for size, divide in found],
    )
    draw(found, curves, out)
    print(
        f"Divided, the scores' variance is {found[16, True][0]:.2f} at head_dim 16 and {found[1024, True][0]:.2f} at "
        f"1024; undivided it is {found[1024, False][0]:.0f}, softmax's gradient is "
        f"{found[1024, True][2] / found[1024, False][2]:.1f} times smaller, and after {STEPS} steps "
        f"{end[1024, False]:.0%} of the variance is unexplained against {end[1024, True]:.0%}."
    )
    return {
        "variance_divided": found[1024, True][0], "variance": found[1024, False][0],
        "gradient_divided": found[1024, True][2], "gradient": found[1024, False][2],
        "largest": found[1024, False][1],
        **{f"end_{size}_{'divided' if divide else 'raw'}": value for (size, divide), value in end.items()},
    }  # fmt: skip


def draw(found: dict[Case, tuple[float, ...]], curves: dict[Case, list[float]], out: Path) -> None:
    picture, (left, right) = figure(1, 2, height=3.4)
    for divide, colour, name in ((True, BLUE, "divided"), (False, ORANGE, "undivided")):
        for number, style, what in ((2, "o-", "gradient's norm"), (1, "s--", "largest weight")):
            numbers = [found[size, divide][number] for size in SIZES]
            left.plot(SIZES, numbers, style, color=colour, label=f"{what}, {name}")
    left.set(xlabel="head_dim", ylabel="mean over 1,000 queries", ylim=(0, 1), title=f"softmax over {KEYS} keys")
    left.set_xscale("log", base=2)
    left.set_xticks(SIZES, SIZES)
    left.legend(loc="center right", bbox_to_anchor=(1, 0.45))
    for size, colour in zip(SIZES, COLOURS, strict=False):
        for divide in (True, False):
            smooth = torch.tensor(curves[size, divide]).unfold(0, 10, 10).mean(dim=1)
            label = f"head_dim {size}" if divide else None
            right.plot(range(5, STEPS, 10), smooth, color=colour, ls="-" if divide else ":", label=label)
    right.plot([], [], color="0.4", ls=":", label="undivided")
    right.set(xlabel="optimizer step", ylabel="unexplained variance", ylim=(0, None), title="finding the same key")
    right.legend()
    save(picture, out)


if __name__ == "__main__":
    run(main, __doc__)
